"""Several sources as one: what is read, trained, validated, written down and refused."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import honest_run
import numpy as np
import polars as pl
import pytest
import torch
from cut_runs import trained
from hypothesis import given, settings
from hypothesis import strategies as st

from froude import Study
from froude.config import ConfigError, Run
from froude.promote.token_audit import misplaced
from froude.train import api
from froude.train.data import leak
from froude.train.data.mixture import Mixture
from froude.train.data.order import Batches
from froude.train.data.soundness import check_corpus
from froude.train.probe import contract
from froude.train.trial import run_trial

#: A window's tokens say of which part and which number it is; the vocabulary is 256.
MODULE = """
import hashlib
import numpy as np

class Numbered:
    def __init__(self, run, split):
        options = run.data.options
        self.length = options["length"] if split == "train" else options.get("held", 10)
        self.mark = options["mark"] if split == "train" else options.get("held_mark", options["mark"])
        self.context = run.model.context
        self.sha256 = hashlib.sha256(repr((sorted(options.items()), self.context)).encode()).hexdigest()

    def read(self, first, n):
        found = np.full((n, self.context + 1), self.mark, dtype=np.uint8)
        found[:, 0], found[:, 1] = np.divmod(np.arange(first, first + n), 256)
        return found
"""
STEPS = 8


def part(
    name: str, mark: int, length: int, weight: float, epochs: float = 0, **options: Any
) -> dict[str, Any]:
    content = {"mark": mark, "length": length, **options}
    return {
        "name": name,
        "source": "numbered:Numbered",
        "options": content,
        "weight": weight,
        "epochs": epochs,
    }


PARTS = [part("web", 2, 300, 0.7), part("code", 3, 40, 0.2), part("math", 4, 7, 0.1)]
LATE = [{"from_share": 0.5, "weights": {"math": 1, "code": 3}}]
RUN = Run(
    name="large",
    tokens=256 * STEPS,
    batch=256,
    slots=4,
    eval_windows=20,
    model={"width": 16, "context": 16, "depth": 1},
    norms_every=0,
    data={"parts": PARTS, "phases": LATE},
)


@pytest.fixture(autouse=True, scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("numbered")
    (folder / "numbered.py").write_text(MODULE)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))
    sys.modules.pop("numbered", None)


def drawn(windows: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    """Mark of the part, and number in it, of each window."""
    return [(int(row[-1]), int(row[0]) * 256 + int(row[1])) for row in windows]


def samples(run: Run, number: int) -> list[tuple[int, int]]:
    source = Mixture(run, "train")
    return drawn(
        np.concatenate([source.read(int(i), 1) for i in source.numbers(run.seed, np.arange(number))])
    )


@settings(max_examples=20)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    seed=st.integers(0, 2**31 - 1),
    data=st.data(),
)
def test_each_window_of_a_part_comes_once_an_epoch(
    lengths: list[int], seed: int, data: st.DataObject
) -> None:
    weights = data.draw(st.lists(st.floats(0.1, 1), min_size=len(lengths), max_size=len(lengths)))
    parts = [part(f"p{i}", i, n, w) for i, (n, w) in enumerate(zip(lengths, weights, strict=True))]
    late = [{"from_tokens": 16 * 100, "weights": {"p0": 1}}]
    found = samples(RUN.replace({"data.parts": parts, "data.phases": late, "seed": seed}), 500)
    assert {mark for mark, _ in found[100:]} == {0}
    for mark, length in enumerate(lengths):
        mine = [number for each, number in found if each == mark]
        for epoch in range(len(mine) // length):
            assert sorted(mine[epoch * length : (epoch + 1) * length]) == list(range(length))
        rest = mine[len(mine) // length * length :]
        assert len(set(rest)) == len(rest)


@given(context=st.integers(4, 40), token=st.integers(1, 5000))
@settings(max_examples=20)
def test_a_phase_begins_with_the_first_window_at_or_past_its_token(context: int, token: int) -> None:
    phases = [{"from_tokens": token, "weights": {"code": 1}}]
    run = RUN.replace({"model.context": context, "batch": 4 * context, "tokens": 4 * context * 2000})
    run = run.replace({"data.parts": [PARTS[0], PARTS[1] | {"weight": 0}], "data.phases": phases})
    marks = [mark for mark, _ in samples(run, token // context + 5)]
    first = marks.index(3)
    assert (first - 1) * context < token <= first * context
    assert set(marks[:first]) <= {2}
    assert set(marks[first:]) == {3}


@settings(max_examples=20)
@given(first=st.integers(0, 347), n=st.integers(0, 347))
def test_windows_are_those_of_the_parts_one_after_another(first: int, n: int) -> None:
    source = Mixture(RUN, "train")
    everything = [*((2, i) for i in range(300)), *((3, i) for i in range(40)), *((4, i) for i in range(7))]
    if first + n > source.length:
        with pytest.raises(ValueError, match=r"must lie in \[0, 347\)"):
            source.read(first, n)
        return
    found = source.read(first, n)
    assert found.shape == (n, 17)
    assert drawn(found) == everything[first : first + n]
    counts = Counter({2: "web", 3: "code", 4: "math"}[mark] for mark, _ in everything[first : first + n])
    assert source.parts_of(np.arange(first, first + n)) == counts


def test_a_batch_depends_neither_on_its_slots_nor_on_a_ramp() -> None:
    source = Mixture(RUN, "train")
    orders = set()
    for slots, per_slot, factor in ((1, 16, 1), (16, 1, 1), (4, 4, 2), (2, 8, 4)):
        batches = Batches(source, 5, per_slot, slots)
        rows = [batches.slot(b, s, factor) for b in range(0, 8, factor) for s in range(slots)]
        for row in rows:
            marks = Counter({2: "web", 3: "code", 4: "math"}[mark] for mark, _ in drawn(row.tokens))
            assert row.parts == marks
        orders.add(tuple(place for row in rows for place in drawn(row.tokens)))
    assert len(orders) == 1


def test_an_order_of_a_users_own_is_asked_and_looked_at() -> None:
    class Backwards(Mixture):
        off = 0

        def numbers(self, seed: int, samples: Any) -> Any:
            return self.length - 1 - samples % self.length + self.off

    source = Backwards(RUN, "train")
    assert Batches(source, 0, 4, 1).windows(0, 0) == [346, 345, 344, 343]
    source.off = 1
    with pytest.raises(
        ConfigError, match=r"numbers\(seed, samples\) of Backwards .* 0 to 346, but returned .* 1 to 347"
    ):
        Batches(source, 0, 4, 1).windows(0, 0)


def test_validation_has_the_last_phases_weights_and_each_part_as_a_set() -> None:
    run = RUN.replace(eval_windows=12)
    source = Mixture(run, "validation")
    assert source.length == 12
    found = drawn(source.read(0, 12))
    assert Counter(mark for mark, _ in found) == {3: 9, 4: 3}
    assert sorted(number for mark, number in found if mark == 4) == [0, 3, 6]  # evenly over the part
    assert len(set(found)) == 12
    # code has ten, three quarters of it
    assert Mixture(run.replace(eval_windows=999), "validation").length == 13
    assert {name: each.length for name, each in api.validation_sets(run, source).items()} == {
        "web": 10,
        "code": 10,
        "math": 10,
    }


def test_its_content_is_its_parts_and_how_they_are_mixed() -> None:
    def changed(i: int, **change: Any) -> Run:
        return RUN.replace(
            {"data.parts": [each | (change if i == j else {}) for j, each in enumerate(PARTS)]}
        )

    runs = [
        RUN,
        changed(0, weight=0.6),
        changed(0, name="net"),
        changed(1, options={"mark": 9, "length": 40}),
        RUN.replace({"data.phases": [LATE[0] | {"from_share": 0.6}]}),
        RUN.replace({"data.parts": PARTS[::-1]}),
    ]
    assert len({Mixture(run, "train").sha256 for run in runs}) == len(runs)
    material = api.material_of(RUN)
    assert material.corpus == {"corpus": Mixture(RUN, "validation").sha256}
    assert set(material.modules) == {"numbered"}
    with pytest.raises(ConfigError, match=r"numbered:Numbered; read that code, then pass --trust"):
        api.check_trust(RUN, trust=False)


@pytest.mark.slow
def test_a_run_that_was_stopped_has_the_same_bits_and_its_ledger_says_what_it_read(tmp_path: Path) -> None:
    run = RUN.replace(reduction="exact", checkpoint_every=2)
    ramped = run.replace({"schedule.ramp": [[256 * 2, 2]]})
    assert trained(tmp_path / "cut", run, 3, STEPS) == trained(tmp_path / "whole", run, STEPS)
    trained(tmp_path / "ramped", ramped, 5)
    source = Mixture(run, "train")
    due = {name: round(epochs * source.parts[name].length) for name, epochs in source.epochs(run).items()}
    assert sum(due.values()) == run.tokens // 16
    for folder in ("cut", "whole", "ramped"):
        ledger = Study(tmp_path / folder).ledger()
        by_part = ledger.select(pl.col("parts").explode().struct.unnest()).group_by("part").sum().collect()
        assert dict(by_part.iter_rows()) == due
        rows = ledger.collect()
        batches = Batches(source, run.seed, run.windows_per_slot, run.slots)
        assert misplaced(rows, batches) == ([], [])
        forged = rows.with_columns(pl.col("parts").shift(1).fill_null(strategy="backward"))
        wrong, mixed = misplaced(forged, batches)
        assert wrong == []
        assert mixed
        unsaid = rows.with_columns(parts=pl.lit(None, rows.schema["parts"]))
        assert len(misplaced(unsaid, batches)[1]) == rows.height


def test_the_ledger_of_one_source_and_those_before_name_no_parts(tmp_path: Path) -> None:
    run = RUN.replace({"data": {"source": "froude.train.data.kjv:KingJames"}})
    trained(tmp_path, run, STEPS)
    rows = Study(tmp_path).ledger().collect()
    assert rows["parts"].null_count() == rows.height > 0
    for file in (tmp_path / "runs" / "large" / "parts").glob("ledger-*"):
        pl.read_parquet(file).drop("parts").write_parquet(file)
    assert Study(tmp_path).ledger().collect().equals(rows)


@pytest.mark.slow
def test_verify_run_knows_whose_windows_a_slot_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RUN.replace(reduction="exact", checkpoint_every=2)
    monkeypatch.setattr(honest_run, "RUN", run)
    honest_run.train(tmp_path, honest_run.sealed(tmp_path, run=run))
    torch.use_deterministic_algorithms(False)
    assert honest_run.failed(tmp_path) == []
    file = min((tmp_path / "runs" / "large" / "parts").glob("ledger-*"))
    rows = pl.read_parquet(file)
    rows.with_columns(pl.col("parts").shift(1).fill_null(strategy="backward")).write_parquet(file)
    assert honest_run.failed(tmp_path) == [
        "what the run's commits keep is whole",
        "every slot names its parts of the mixture",
    ]


@pytest.mark.parametrize("share", [0.55, 0.9])
def test_branches_have_the_bits_of_runs_alone(share: float) -> None:
    """Also where a phase that is a share of each run begins before their tails."""
    run = RUN.replace({"data.phases": [LATE[0] | {"from_share": share}], "optimizer.lr": 0.02})
    runs = [run.replace(name=f"n{n}", tokens=256 * n) for n in (6, 10, 14)]
    rows = run_trial(runs, trial="t").trials
    alone = [run_trial([each], trial="t").trials[0]["loss"] for each in runs]
    assert [row["loss"] for row in rows] == alone


def test_a_limit_of_epochs_is_kept_or_the_run_refused() -> None:
    def limited(epochs: float, **changes: Any) -> Run:
        parts = [*PARTS[:1], PARTS[1] | {"epochs": epochs}]
        return RUN.replace({"data.parts": parts, "data.phases": [], "tokens": 256 * 64} | changes)

    used = Mixture(limited(0), "train").epochs(limited(0))["code"]
    assert used == pytest.approx(1024 * 0.2 / 0.9 / 40, abs=0.03)
    Mixture(limited(used), "train")
    with pytest.raises(
        ConfigError,
        match=r"`data.parts` 'code' may be used 2 times \(`epochs`\), but a run of 16,384 tokens uses its 40 windows "
        r"5.\d+ times; lower `tokens` to at most ([\d,]+), or its weight, or raise `epochs`",
    ) as error:
        Mixture(limited(2), "train")
    most = int(str(error.value).split("at most ")[1].split(", or")[0].replace(",", ""))
    Mixture(limited(2, tokens=most), "train")
    with pytest.raises(ConfigError, match="may be used 2 times"):
        Mixture(limited(2, tokens=most + 256), "train")
    # Before anything starts: of many runs the longest is looked at.
    with pytest.raises(ConfigError, match="'code' may be used 2 times"):
        contract.check([limited(2, tokens=256 * n) for n in (4, 64, 8)], skip=["forward"])
    assert contract.check([limited(2, tokens=256 * n) for n in (4, 8)], skip=["forward"]).corpora == 1


def test_the_probe_looks_at_every_part_and_says_what_is_used_how_often() -> None:
    (note,) = check_corpus(RUN.replace(eval_windows=8))
    assert note == (
        "mixture: web 0.7, code 0.2, math 0.1; from 1,024 tokens on code 0.75, math 0.25; "
        "epochs in 2,048 tokens: web 0.147, code 1.52, math 3.29"
    )
    beyond = RUN.replace({"data.phases": [{"from_tokens": 9999, "weights": {"web": 1}}], "eval_windows": 8})
    assert "from 9,999 tokens on (beyond its end) web 1;" in check_corpus(beyond)[0]
    rare = [part("web", 2, 100, 0.7), part("rare", 250, 3, 0.001)]
    with pytest.raises(ConfigError, match=r"part 'rare' of the mixture: token ids .* holds 250"):
        check_corpus(RUN.replace({"data.parts": rare, "data.phases": [], "model.vocab": 200}))


def test_what_one_part_trains_on_and_another_is_validated_on_is_a_leak() -> None:
    for mark, found in ((6, 0.0), (5, 1.0)):  # half of all windows, and all of web's own set
        parts = [part("web", 2, 100, 1, held_mark=5), part("code", mark, 50, 1, held_mark=7)]
        run = RUN.replace({"data.parts": parts, "data.phases": []})
        assert leak.leaked(run) == pytest.approx(found, abs=0.01)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data.parts": [part("a", 1, 0, 1)]}, "part 'a'|the train split of 'a' has length 0; use a longer corpus"),
        ({"data.parts": [part("a", 1, 5, 1), part("b", 1, 5, 1e-6)]}, "one in 65,536 .* that of 'b' is 1e-06 of it"),
        ({"data.path": "web.txt"}, "`data.path` must be empty for Mixture"),
        ({"data.options": {"seed": 1}}, "unknown key `data.options.seed` of Mixture"),
        ({"data.sha256": "0" * 64}, "must have the SHA-256 000000000000… that the run names"),
        (
            {"data.parts": [{"name": "a", "source": "froude.train.data.text:TextFile", "weight": 1, "path": "/no"}]},
            "part 'a' of the mixture: `data.path` must be a readable file .* '/no': No such file",
        ),
        (
            {"data.parts": [{"name": "a", "source": "froude.train.data.kjv:KingJames", "weight": 1}], "model.vocab": 9},
            "part 'a' of the mixture: `model.vocab` must be at least 256",
        ),
        (
            {"data.parts": [{"name": "a", "source": "nowhere:Source", "weight": 1}]},
            "part 'a' of the mixture: an import path must name an importable module",
        ),
    ],
)  # fmt: skip
def test_parts_that_cannot_be_used_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        api.build_source(RUN.replace({"data.phases": []} | change), "train")
