"""A parametrization from outside the package: trained, fitted, drawn, judged by the gate, and gone without a trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planted import WIDTHS, runs
from small_study import TARGET

from froude import Study
from froude.config import ConfigError, Run
from froude.parametrizations import ANY, PARAMETRIZATIONS, Parametrization, Powers
from froude.promote.diagnosis.diagnose import diagnose
from froude.promote.fits import fit
from froude.promote.gate import Refused
from froude.promote.promotion import promote
from froude.report.law_plots import transfer_line, u_curves
from froude.train import api
from froude.train.optimizers import build
from froude.train.parallel import World
from froude.train.parametrization import attention_multiplier, logit_multiplier, parameter_groups, scales
from froude.train.probe.coordcheck import checked
from froude.train.trial import run_trial

#: Each kind's update moves what it puts out as far as 1/sqrt(m) does, and the readout starts smaller.
NTK = Parametrization(
    name="ntk",
    label="NTK",
    transfers=True,
    table={
        "Adam": {
            "hidden": Powers(lr=-0.5, weight_decay=0.5, eps=-0.5),
            "readout": Powers(init=-0.25),
        },
        "SGD": {},
    },
    logits=-0.5,
    attention=-0.75,
)
WIDE = {"model.width": 128, "model.head_dim": 32, "model.base_width": 32, "model.readout_sd": 0.5}


@pytest.fixture
def ntk() -> Iterator[Parametrization]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PARAMETRIZATIONS, NTK.name, NTK)
        yield NTK
    assert NTK.name not in PARAMETRIZATIONS


@pytest.mark.usefixtures("ntk")
def test_it_trains_two_steps() -> None:
    run = Run(tokens=2 * 768, batch=768, eval_windows=16, parametrization="ntk").replace(WIDE)
    outcome = run_trial([run], trial="t")
    assert [row["step"] for row in outcome.steps] == [1, 2]
    assert [row["parametrization"] for row in outcome.trials] == ["ntk"]
    model = api.build_model(run)
    groups = parameter_groups(run, model)
    assert {group["lr"] for group in groups} == {run.optimizer.lr, run.optimizer.lr / 2}
    assert {group["weight_decay"] for group in groups} == {0.0, 0.1, 0.2}
    sd = api.initial_sd(run, "readout", 128)
    assert sd == pytest.approx(0.5 / 4**0.25)
    assert model.readout.std().item() == pytest.approx(sd, rel=0.02)
    assert api.multiplier(run, "logits") == logit_multiplier(run) == model.logit_multiplier == 0.5
    assert api.multiplier(run, "attention") == attention_multiplier(run) == pytest.approx(32**-0.5)


@pytest.mark.long
@pytest.mark.parametrize(("transfers", "refused"), [(True, True), (False, False)])
def test_it_gets_a_law_a_figure_and_a_check_of_the_gate(
    tmp_path: Path,
    study_factory: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    transfers: bool,
    refused: bool,
) -> None:
    """The study's optima move as 1/width: that is refused to a parametrization which promises that they stay."""
    monkeypatch.setitem(PARAMETRIZATIONS, "ntk", replace(NTK, transfers=transfers))

    def renamed(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "parametrization": {"sp": "ntk"}.get(row["parametrization"], "mup")}

    study = Study(
        study_factory(tmp_path / "study", change=renamed, target=TARGET.replace(parametrization="ntk"))
    )
    fits = fit(study)
    assert list(fits.transfer) == ["mup", "ntk"]
    assert fits.transfer["ntk"].slope.value == pytest.approx(-1, abs=0.02)
    assert fits.peak_lr is not None
    width = 64 if transfers else TARGET.model.width
    assert math.log2(fits.peak_lr.value) == pytest.approx(-7.5 - math.log2(width / 64), abs=0.05)
    assert [plot.title for plot in u_curves(fits.transfer)] == [
        "μP: loss against learning rate",
        "NTK: loss against learning rate",
    ]
    assert "NTK" in transfer_line(fits.transfer).svg
    with pytest.raises(Refused) as reasons:
        promote(study, fits=fits)
    assert any(reason.startswith("lr_transfers: ") for reason in reasons.value.reasons) == refused


@pytest.mark.slow
@pytest.mark.usefixtures("ntk")
def test_correct_code_breaks_none_of_its_rules() -> None:
    found = diagnose(runs(parametrization="ntk", **{"model.readout_sd": 0.5}))
    assert found.widths == WIDTHS
    assert found.code == ()
    rules = {(row.what, row.of): row.rule for row in found.exponents}
    assert rules["rate", "hidden matrices"] == rules["multiplier", "logits"] == -0.5


def test_a_coordinate_check_is_of_what_promises_transfer(ntk: Parametrization) -> None:
    run = Run(tokens=768)
    assert checked(run.replace(parametrization="ntk")) is ntk
    assert [checked(run.replace(parametrization=name)).name for name in ("mup", "sp")] == ["mup", "mup"]


def test_a_run_takes_it_while_it_is_registered(ntk: Parametrization) -> None:
    assert Run(tokens=768, parametrization="ntk").width_rules is ntk
    assert Run(tokens=768, parametrization="ntk", optimizer={"name": "sgd"}).width_rules is ntk
    with pytest.raises(
        ConfigError,
        match=r"^`parametrization` must be 'sp', 'mup', 'depth_mup', 'completep' or 'ntk' "
        r"\(did you mean 'ntk'\?\), but got 'nkt'$",
    ):
        Run(tokens=768, parametrization="nkt")


@pytest.mark.parametrize("wrong", ["ntk", 3, ["sp"], None])
def test_what_is_not_registered_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError) as error:
        Run(tokens=768, parametrization=wrong)
    assert (
        str(error.value)
        == f"`parametrization` must be 'sp', 'mup', 'depth_mup' or 'completep', but got {wrong!r}"
    )


def test_rules_for_one_family_of_optimizers_are_not_taken_for_another() -> None:
    with pytest.raises(ConfigError) as error:
        Run(tokens=768, optimizer={"name": "sgd"})
    start = '`parametrization` must be "sp" with sgd, but got "mup", whose rules here are only for '
    assert str(error.value).startswith(start)
    covered = str(error.value).removeprefix(start)
    assert "adamw" in covered
    assert "muon" in covered
    assert "sgd" not in covered
    assert [p.name for p in PARAMETRIZATIONS.values() if p.covers("a family to come")] == ["sp"]
    assert replace(NTK, table={ANY: {}}).covers("a family to come")


@pytest.mark.parametrize("head", range(2, 130, 2))
@pytest.mark.parametrize("base", [0, 16, 24])
def test_multipliers_are_rounded_once(head: int, base: int) -> None:
    """To the last bit what they were as formulas: recipes' bits hang on it."""
    run = Run(tokens=768, model={"width": 3 * head, "head_dim": head, "base_head_dim": base})
    m = 3 * head / 64
    assert attention_multiplier(run) == math.sqrt(base or head) / head
    assert logit_multiplier(run) == 1.0 / m
    assert attention_multiplier(run.replace(parametrization="sp")) == 1.0 / math.sqrt(head)
    factors = run.width_rules.factors(run.model, "hidden", "Adam")
    assert (factors.init, factors.lr, factors.weight_decay, factors.eps) == (1.0, 1.0 / m, m, 1.0 / m)
    assert api.initial_sd(run, "hidden", 3 * head) == (3 * head) ** -0.5


def _groups(parametrization: str) -> dict[tuple[str, bool], tuple[float, float, float, float]]:
    """By kind and place: factors on variance, rate, decay and epsilon at m = 4, m_L = 3."""
    model = {"width": 128, "base_width": 32, "depth": 6, "base_depth": 2, "context": 8, "readout_sd": 0.5}
    run = Run(tokens=768, parametrization=parametrization, model=model)
    found = {}
    for kind in ("embedding", "hidden", "readout", "norm"):
        for place in (True, False):
            factors = scales(run, kind, in_block=place)
            found[kind, place] = (factors.init**2, factors.lr, factors.weight_decay, factors.eps)
    return found


@pytest.mark.parametrize(("parametrization", "a"), [("mup", None), ("depth_mup", 0.5), ("completep", 1.0)])
def test_factors_are_those_of_the_published_tables(parametrization: str, a: float | None) -> None:
    """CompleteP's table 1 (2505.01618) with Adam; 1/fan_in is not among them, since every parametrization has it."""
    deep, small = (1.0, 1.0) if a is None else (3 ** (a - 1), 3**-a)
    assert _groups(parametrization) == {
        ("embedding", False): (1, 1, 0, 1),
        ("embedding", True): pytest.approx((1, deep, 0, small)),
        ("hidden", False): pytest.approx((1, 1 / 4, 4, 1 / 4)),
        ("hidden", True): pytest.approx((1, deep / 4, 4, small / 4)),
        ("readout", False): (1, 1, 1, 1),
        ("readout", True): pytest.approx((1, deep, 1, small)),
        ("norm", False): (1, 1, 0, 1),
        ("norm", True): pytest.approx((1, deep, 0, small)),
    }


@pytest.mark.parametrize(
    ("parametrization", "a"), [("sp", 0.0), ("mup", 0.0), ("depth_mup", 0.5), ("completep", 1.0)]
)
def test_a_model_starts_and_multiplies_as_its_table_says(parametrization: str, a: float) -> None:
    shape = {"width": 256, "base_width": 64, "depth": 6, "base_depth": 2, "readout_sd": 0.5}
    run = Run(tokens=768, parametrization=parametrization, model=shape)
    model = api.build_model(run)
    sd = {
        name: float(p.detach().double().square().mean().sqrt())
        for name, p in model.named_parameters()
        if p.ndim > 1
    }
    branch = (12 if a == 0 else 4) ** -0.5
    for layer in range(6):
        assert sd[f"layers.{layer}.qkv"] == pytest.approx(256**-0.5, rel=0.01)
        assert sd[f"layers.{layer}.attention_out"] == pytest.approx(branch * 256**-0.5, rel=0.02)
        assert sd[f"layers.{layer}.down"] == pytest.approx(branch * 768**-0.5, rel=0.02)
    assert sd["embedding"] == pytest.approx(0.5, rel=0.02)
    assert sd["readout"] == pytest.approx(0.5, rel=0.02)
    assert [block.residual for block in model.layers] == pytest.approx([3**-a] * 6)
    assert model.logit_multiplier == pytest.approx(1.0 if parametrization == "sp" else 0.25)


def test_rates_of_a_models_groups_say_where_a_parameter_is() -> None:
    shape = {"width": 128, "base_width": 32, "depth": 6, "base_depth": 2}
    run = Run(tokens=768, parametrization="depth_mup", model=shape, optimizer={"name": "muon"})
    groups = build(run, api.build_model(run), World()).param_groups
    rates = {round(group["peak"] / run.optimizer.lr, 6) for group in groups if "momentum" in group}
    assert rates == {
        round(3**-0.5, 6),
        round(3**-0.5 * 3**-0.5, 6),
    }  # wide matrices have sqrt(rows / columns), too
    rest = {round(group["peak"] / run.optimizer.rest.lr, 6) for group in groups if "momentum" not in group}
    assert rest == {1.0, round(3**-0.5, 6)}
