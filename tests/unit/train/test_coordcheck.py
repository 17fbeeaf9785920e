"""The coordinate check: muP passes over width and SP does not; what is judged, and by which bounds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from froude.cli import main
from froude.config import ConfigError, Run
from froude.parametrizations import PARAMETRIZATIONS
from froude.parametrizations.mup import MUP
from froude.train.probe.coordcheck import check, measure, sizes_of
from froude.train.probe.slopes import DOWNHILL

pytestmark = pytest.mark.slow

RUN = Run(batch=768, tokens=768 * 170, optimizer={"lr": 2**-7.5}, schedule={"warmup_tokens": 7680})
SMALL = Run(
    batch=256,
    tokens=256 * 100,
    model={"context": 32, "head_dim": 16, "base_width": 32},
    optimizer={"lr": 2**-7},
)
OPTIMIZERS = {
    "adamw": {"name": "adamw", "lr": 2**-7.5},
    "lion": {"name": "lion", "lr": 1e-3},
    "muon": {"name": "muon", "lr": 0.02, "rest": {"lr": 2**-7.5}},
}


@pytest.mark.long
def test_mup_passes_over_width_and_its_control_fails() -> None:
    found = check(RUN, "width", (64, 128, 256))
    assert found.passed, found.reasons
    slopes = {(s.parametrization, s.name, s.t): s.slope for s in found.slopes}
    assert {t for _, _, t in slopes} == {1, 3, 10}
    assert all(slope >= 0.5 for (p, name, _), slope in slopes.items() if p == "sp" and name != "logits")


@pytest.mark.long
@pytest.mark.parametrize(
    "model",
    [
        {"kv_heads": 2, "sliding_window": 12, "global_every": 2},
        {"attention_bias": True, "mlp_bias": True, "rope_base": 5e5},
        {"parallel": True},
    ],
    ids=lambda model: " ".join(model),
)
def test_mup_passes_with_each_option_of_attention(model: dict[str, Any]) -> None:
    """KV heads keep their share of the heads: two of four at width 64."""
    options = {
        "model.context": 32,
        "model.width": 64,
        **{f"model.{key}": value for key, value in model.items()},
    }
    found = check(RUN.replace(options), "width", (64, 128, 256), times=(1, 3))
    assert found.passed, found.reasons


@pytest.mark.long
def test_updates_of_signs_have_the_same_rules() -> None:
    found = check(
        RUN.replace({"optimizer.name": "lion", "optimizer.lr": 1e-3, "optimizer.beta2": 0.99}),
        "width",
        (64, 128, 256),
        times=(1, 3),
    )
    assert found.passed, found.reasons
    control = [s for s in found.slopes if s.parametrization == "sp"]
    assert control
    assert all(s.slope >= 0.5 for s in control)


def test_a_model_without_the_output_multiplier_fails_over_width() -> None:
    planted = SMALL.replace({"model.factory": "planted:output_multiplier"})
    found = check(planted, "width", (16, 32, 64), seeds=1, times=(1, 3))
    assert not found.passed
    assert any("logits of mup" in reason for reason in found.reasons)


@pytest.mark.parametrize(
    ("factory", "verdict"),
    [
        ("froude.train.model:Transformer", "passed"),
        ("planted:output_root", "failed"),
        ("planted:tied_twice", "failed"),
        ("planted:output_multiplier", "failed"),
    ],
)
def test_tied_tables_pass_and_their_wrong_multipliers_fail(factory: str, verdict: str) -> None:
    tied = SMALL.replace({"model.tied": True, "model.factory": factory})
    found = check(tied, "width", (32, 64, 128, 256), seeds=2, times=(1, 3))
    assert found.verdict == verdict, found.reasons
    assert verdict == "passed" or any("logits as built" in reason for reason in found.reasons)


@pytest.mark.parametrize(
    "name", [name if name == "adamw" else pytest.param(name, marks=pytest.mark.long) for name in OPTIMIZERS]
)
@pytest.mark.parametrize(("parametrization", "verdict"), [("mup", "failed"), ("completep", "passed")])
def test_over_depth_completep_passes_and_mup_fails(name: str, parametrization: str, verdict: str) -> None:
    deep = {"optimizer": OPTIMIZERS[name], "parametrization": parametrization, "model.context": 32}
    found = check(RUN.replace(deep), "depth", (2, 4, 8), seeds=2)
    assert found.verdict == verdict, found.reasons
    if verdict == "failed":
        assert max(s.slope - 2 * s.se for s in found.slopes) >= 0.5


@pytest.mark.campaign
@pytest.mark.parametrize("options", [{}, {"heads": True}, {"scale": "match_rms"}])
def test_updates_of_one_spectral_norm_move_blocks_alike_and_logits_show_the_control(
    options: dict[str, Any],
) -> None:
    lr = 5e-3 if options.get("scale") else 0.02
    run = RUN.replace({"optimizer": {**OPTIMIZERS["muon"], "lr": lr, "options": options}})
    found = check(run, "width", (64, 128, 256), times=(3, 10))
    assert found.passed, found.reasons
    control = {(s.name, s.t): s.slope for s in found.slopes if s.parametrization == "sp"}
    assert control["logits", 3] >= 0.5


@pytest.mark.campaign
def test_an_update_of_one_rms_fails_without_its_root_of_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under SP, too: its blocks are what fails."""
    wrong = replace(MUP, table={**MUP.table, "spectral of one RMS": {}})
    monkeypatch.setitem(PARAMETRIZATIONS, "mup", wrong)
    muon = {"name": "muon", "lr": 5e-3, "options": {"scale": "match_rms"}}
    found = check(RUN.replace({"optimizer": muon}), "width", (64, 128, 256), times=(3, 10))
    assert found.verdict == "failed"
    assert any("blocks" in reason for reason in found.reasons)


@pytest.mark.parametrize("lr", [2**-7, 2**-9])
def test_many_tokens_at_narrow_widths_pass_at_any_rate(lr: float) -> None:
    """Of 512 tokens that are all of one frequency most have little to do with one another."""
    run = SMALL.replace(
        {
            "data.source": "froude.train.data.markov:Markov",
            "data.options": {"vocab": 512, "order": 1, "concentration": 10.0},
            "model.vocab": 512,
            "optimizer.lr": lr,
            "batch": 1024,
            "tokens": 1024 * 100,
        }
    )
    found = check(run, "width", (32, 64, 128), seeds=2, times=(1, 3))
    assert found.passed, found.reasons
    slopes = {(s.parametrization, s.name, s.t): s.slope for s in found.slopes}
    assert slopes["mup", "logits", 1] < -0.1
    assert abs(slopes["mup", DOWNHILL, 1]) < 0.05


def test_a_table_of_tokens_that_is_called_hidden_is_named() -> None:
    planted = SMALL.replace({"model.factory": "planted:hidden_embedding"})
    found = check(planted, "width", (16, 32, 64), seeds=1, times=(1,))
    assert found.verdict == "failed"
    assert found.reasons[0].startswith(
        "embedding has a row for each of 256 tokens or positions at every width"
    )


def test_everything_but_size_and_seed_stays_as_it_is() -> None:
    found = measure([RUN.replace({"model.width": 32, "seed": seed}) for seed in (0, 0, 1)], times=(1, 2))
    first, again, other = found[:10], found[10:20], found[20:]
    assert first == again
    assert [row["delta"] for row in other[3:]] != [row["delta"] for row in first[3:]]
    assert [row["t"] for row in first] == [0] * 3 + [1] * 4 + [2] * 3


def test_too_few_sizes_and_a_run_without_mup_are_refused() -> None:
    with pytest.raises(ConfigError, match="three sizes"):
        check(RUN, "width", (64, 128))
    with pytest.raises(ConfigError, match="sgd"):
        check(RUN.replace({"optimizer.name": "sgd", "parametrization": "sp"}), "width", (64, 128, 256))


def test_widths_are_multiples_of_the_head() -> None:
    assert sizes_of(RUN) == [64, 128, 256, 512, 1024]
    assert sizes_of(RUN.replace({"model.head_dim": 96, "model.width": 96}))[0] == 96
    assert sizes_of(RUN.replace({"model.width": 512, "model.kv_heads": 4}))[0] == 128
    wide = {"model.width": 2048, "model.head_dim": 64, "model.kv_heads": 4}
    assert sizes_of(RUN.replace(wide)) == [512, 1024, 2048]


def test_the_verb_writes_a_table_and_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, plot = tmp_path / "run.toml", tmp_path / "check.svg"
    file.write_text(SMALL.to_toml())
    command = ["coordcheck", str(file), "--widths", "32,64,128", "--times", "1,3", "--plot", str(plot)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "sp blocks.1" in text
    assert "passed" in text
    assert "href" not in plot.read_text().replace('xlink:href="#', "")
    broken = SMALL.replace({"model.factory": "planted:output_multiplier"})
    file.write_text(broken.to_toml())
    assert main([*command, "--json"]) == 2  # not trusted
    assert "--trust" in capsys.readouterr().err
    assert main([*command, "--json", "--trust"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert (content["passed"], content["verdict"]) == (False, "failed")
    assert content["slopes"]
    assert [cause["name"] for cause in content["causes"]] == ["output_multiplier"]
    assert content["plot"] == str(plot)


def test_a_failed_check_names_the_rules_that_the_code_breaks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(SMALL.replace({"model.factory": "planted:naive"}).to_toml())
    short = ["--widths", "32,64,128", "--times", "1,3", "--seeds", "2", "--plot", str(tmp_path / "check.svg")]
    assert main(["coordcheck", str(file), "--trust", *short]) == 1
    text = capsys.readouterr().out
    assert "rules that the code breaks, by what real updates do at widths 32, 64, 128:" in text
    assert ". output_multiplier (readout): logits must be divided by the width" in text
    assert 'multiply logits by multiplier(run, "logits")' in text
    assert (
        ". initialisation (layers.0.qkv and 7 more): hidden matrices must start with variance 1/fan_in"
        in text
    )


def test_a_width_that_a_foreign_model_does_not_take_is_refused_before_any_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(SMALL.replace({"model.factory": "planted:manual_attention"}).to_toml())
    plot = tmp_path / "check.svg"
    command = ["coordcheck", str(file), "--widths", "32,33,64", "--trust", "--plot", str(plot)]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "multiples of `model.head_dim` = 16" in error
    assert "mup, width" not in error
    assert not plot.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["none.toml"],
        ["space.py"],
        ["run.toml", "--widths", "a"],
        ["run.toml", "--widths", "64,128"],
        ["run.toml", "--plot", "a.txt"],
        ["run.toml", "--widths", "64,128,256", "--depths", "2,4,8"],
    ],
)
def test_wrong_input_is_exit_code_2(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(RUN.to_toml())
    assert main(["coordcheck", *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) <= 2
    assert not list(tmp_path.glob("*.svg"))
