"""The table `data` of a mixture: how it is written, what it is to fingerprints and rows, and what is refused."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from froude import schedules
from froude.config import ConfigError, Run
from froude.mixtures import MIXTURE
from froude.space import Trial, load_space
from froude.train.data.soundness import check_corpus

TOML = """
tokens = 76800

[[data.parts]]
name = "web"
weight = 7

[[data.parts]]
name = "code"
source = "froude.train.data.markov:Markov"
weight = 3
epochs = 2

[[data.phases]]
from_share = 0.8
weights = {code = 1}
"""
WEB, CODE = {"name": "web", "weight": 7}, {"name": "code", "weight": 3}


def mixed(*parts: dict[str, Any], phases: list[dict[str, Any]] = [], **more: Any) -> Run:  # noqa: B006
    return Run(**{"tokens": 76800} | more, data={"parts": list(parts) or [WEB, CODE], "phases": phases})


def test_it_reads_well_in_toml_and_comes_back_the_same() -> None:
    run = Run.from_toml(TOML)
    assert run.data.source == MIXTURE
    assert [part.name for part in run.data.parts] == ["web", "code"]
    assert run.data.mixture() == [{"web": 0.7, "code": 0.3}, {"web": 0.0, "code": 1.0}]
    assert run.data.phases[0].tokens(run.tokens) == 61440
    assert Run.from_toml(run.to_toml()) == run == Run.from_dict(run.to_dict())
    assert Run.from_toml(run.to_toml()).fingerprint == run.fingerprint


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("postgres://me:hunter2@db", "***@db"),
        ("postgres://me:hunter2@db/corpus", "corpus"),
        ("mysql://me:hunter2/@here@db", "***@db"),
        ("https://hunter2@host", "***@host"),
        ("https://host/corpus?token=hunter2", "corpus?token=***"),
        ("host=db password=hunter2", "host=db password=***"),
        ("s3://bucket/corpus@2", "corpus@2"),
        ("s3://bucket/token=gpt2/[ab]*", "[ab]*"),
        ("hf://datasets/one/corpus@main", "corpus@main"),
        ("/data//old/corpus@2", "corpus@2"),
        ("/data/token=gpt2", "token=gpt2"),
        ("one/corpus@main", "corpus@main"),
    ],
)
def test_rows_name_a_corpus_by_the_end_of_its_path_without_passwords(path: str, name: str) -> None:
    """Plain names stay as they were: rows of earlier versions are compared with them."""
    run = Run(tokens=768, data={"source": "mine.code:Src", "path": path})
    assert run.data.corpus == f"mine.code:Src {name}"


def test_its_fingerprint_is_of_all_but_its_paths(tmp_path: Path) -> None:
    runs = []
    for name, text in (("a", "same"), ("b", "same"), ("c", "other")):
        (tmp_path / name).write_text(text)
        runs.append(mixed({**WEB, "source": "froude.train.data.text:TextFile", "path": str(tmp_path / name)}))
    a, b, c = runs
    assert a.data.parts[0].sha256
    assert a.fingerprint == b.fingerprint != c.fingerprint
    assert a.differences(b) == []
    (changed,) = a.differences(c)
    assert changed.startswith("data.parts.web.sha256 ")
    assert a.data.corpus == b.data.corpus != c.data.corpus
    assert mixed().fingerprint != mixed(WEB, {**CODE, "weight": 4}).fingerprint
    assert mixed().differences(mixed(WEB, {**CODE, "weight": 4})) == [
        "data.parts.code.weight 4.0 instead of 3.0"
    ]


def test_code_of_a_part_is_code_that_needs_the_users_word() -> None:
    assert mixed(WEB, {**CODE, "source": "mine:Code"}).foreign == ("mine:Code",)


def test_what_the_guide_shows_is_what_it_says(root: Path, tmp_path: Path) -> None:
    page = (root / "docs" / "guide" / "mixtures.md").read_text()
    toml, space = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)[0] for kind in ("toml", "python"))
    (tmp_path / "mixed.py").write_text(space)
    target = load_space(tmp_path / "mixed.py").target
    assert target.data == Run.from_toml("tokens = 153600\n" + toml).data
    (note,) = check_corpus(target)
    assert note in page


def test_a_part_is_changed_by_its_name() -> None:
    run = mixed(phases=[{"from_share": 0.5, "weights": {"web": 1}}])
    assert run.replace({"data.parts.code.weight": 7.0}).data.mixture()[0] == {"web": 0.5, "code": 0.5}
    with pytest.raises(ConfigError, match=r"but 'cod' is none \(did you mean 'code'\?\); known: web, code"):
        run.replace({"data.parts.cod.weight": 7.0})
    with pytest.raises(
        ConfigError, match=r"`data.phases.0.from_share` must lead .* but '0' is none; known: none"
    ):
        run.replace({"data.phases.0.from_share": 0.6})


def test_rows_name_the_shares_and_when_they_hold() -> None:
    by_share = [{"from_share": 0.8, "weights": {"code": 1}}]
    settings = [mixed(phases=by_share, tokens=n).data.settings_of(n) for n in (768, 76800)]
    assert settings[0] == settings[1] != mixed().data.settings_of(768)
    assert '[0.8, {"code": 1.0}]' in settings[0]
    by_tokens = [{"from_tokens": 61440, "weights": {"code": 1}}]
    seen = [mixed(phases=by_tokens, tokens=n).data.settings_of(n) for n in (768, 7680, 76800)]
    assert seen[0] == seen[1] != seen[2] == settings[0]  # two never reach it


def test_branches_leave_the_trunk_where_their_data_do() -> None:
    def branch(share: float, **more: Any) -> int:
        return schedules.branch_step(mixed(phases=[{"from_share": share, "weights": {"web": 1}}], **more))

    plain = schedules.branch_step(mixed())
    assert plain == 80
    assert branch(0.9) == plain
    assert branch(0.8) == plain
    assert branch(0.5) == 50
    assert branch(0.505) == 50  # in the middle of a step
    assert schedules.branch_step(mixed(phases=[{"from_tokens": 768, "weights": {"web": 1}}])) == plain
    runs = [
        mixed(phases=[{"from_share": 0.5, "weights": {"web": 1}}], tokens=n, name=f"r{n}")
        for n in (38400, 76800)
    ]
    assert Trial("t", tuple(runs)).steps == 50 + (50 - 25) + (100 - 50)


@pytest.mark.parametrize(
    ("parts", "phases", "message"),
    [
        ([{**WEB, "weight": -1}], [], r"`data.parts.weight` must be a number from 0 on, but that of 'web' is -1.0"),
        ([{**WEB, "weight": math.nan}], [], r"`data.parts.weight` must be a finite number, but got nan"),
        ([{**WEB, "weight": math.inf}], [], r"`data.parts.weight` must be a finite number, but got inf"),
        ([{**WEB, "weight": 0}, {**CODE, "weight": 0}], [], r"weight above 0, but got 0 for web, code; raise one"),
        ([WEB, WEB], [], r"different names, but 'web' comes more than once; rename one"),
        ([{"name": "web"}], [], r"`data.parts.weight` is required and missing; add it"),
        ([{**WEB, "name": "validation"}], [], r"not train or validation, but got 'validation'; rename the part"),
        ([{**WEB, "name": "a b"}], [], r"letters, digits and _.*but got 'a b'"),
        ([{**WEB, "epoch": 1}], [], r"unknown key `data.parts.epoch`; did you mean `data.parts.epochs`"),
        ([{**WEB, "epochs": -1}], [], r"`data.parts.epochs` must be greater than or equal to 0, but got -1"),
        ([WEB, {**CODE, "weight": 0}], [], r"above 0 somewhere, but 'code' has none; raise it, or leave the part out"),
        (
            [WEB, CODE],
            [{"from_share": 0.5, "weights": {"wbe": 1}}],
            r"must name parts \(web, code\), but got 'wbe' \(did you mean 'web'\?\)",
        ),
        ([WEB], [{"from_share": 0.5, "weights": {"web": -1}}], r"`data.phases.weights` .* that of 'web' is -1.0"),
        ([WEB], [{"from_share": 0.5, "weights": {"web": math.nan}}], r"must be a finite number, but got nan"),
        ([WEB], [{"from_share": 0.5, "weights": {"web": 0}}], r"must have a weight above 0, but got {'web': 0.0}"),
        ([WEB], [{"from_share": 0.5, "weights": {}}], r"must have a weight above 0, but got {}"),
        ([WEB], [{"weights": {"web": 1}}], r"`from_tokens` or `from_share`, above 0, but got neither"),
        (
            [WEB],
            [{"from_tokens": 5, "from_share": 0.5, "weights": {"web": 1}}],
            r"`from_tokens` or `from_share`, above 0, but got both",
        ),
        ([WEB], [{"from_share": 1.0, "weights": {"web": 1}}], r"from_share` must be less than 1, but got 1.0"),
        (
            [WEB],
            [{"from_share": share, "weights": {"web": 1}} for share in (0.5, 0.4)],
            r"`data.phases` must rise, but got 0.4 after 0.5; sort them",
        ),
        (
            [WEB],
            [{"from_share": 0.5, "weights": {"web": 1}}, {"from_tokens": 5000, "weights": {"web": 1}}],
            r"all have `from_tokens` or all `from_share`, but got both; use one of the two",
        ),
        ([], [{"from_share": 0.5, "weights": {"web": 1}}], r"are of a mixture, but got some without `data.parts`"),
    ],
)  # fmt: skip
def test_what_no_mixture_can_be_is_refused(
    parts: list[dict[str, Any]], phases: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        Run(tokens=76800, data={"parts": parts, "phases": phases})
    assert str(error.value).count("\n") == 0


def test_parts_go_with_a_source_that_takes_them() -> None:
    with pytest.raises(
        ConfigError, match=r"but got 1 of them with froude.train.data.kjv:KingJames; set that source"
    ):
        Run(tokens=768, data={"source": "froude.train.data.kjv:KingJames", "parts": [WEB]})
    with pytest.raises(
        ConfigError, match=r"but got none with froude.train.data.mixture:Mixture; add \[\[data.parts"
    ):
        Run(tokens=768, data={"source": MIXTURE})
    assert Run(tokens=768, data={"source": "mine:Mix", "parts": [WEB]}).foreign == ("mine:Mix",)
    with pytest.raises(ConfigError, match=r"`data.parts` must be a valid tuple"):
        Run.from_toml('tokens = 768\n[data.parts]\nname = "web"\n')
