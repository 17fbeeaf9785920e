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
from froude.train.parametrization import attention_multiplier, logit_multiplier, parameter_groups
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


@pytest.mark.slow
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
    with pytest.raises(ConfigError, match=r"^`parametrization` must be 'sp', 'mup' or 'ntk', but got 'nkt'$"):
        Run(tokens=768, parametrization="nkt")


@pytest.mark.parametrize("wrong", ["ntk", 3, ["sp"], None])
def test_what_is_not_registered_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError) as error:
        Run(tokens=768, parametrization=wrong)
    assert str(error.value) == f"`parametrization` must be 'sp' or 'mup', but got {wrong!r}"


def test_rules_for_one_family_of_optimizers_are_not_taken_for_another() -> None:
    with pytest.raises(ConfigError) as error:
        Run(tokens=768, optimizer={"name": "sgd"})
    rule = (
        '`parametrization` must be "sp" with sgd, but got "mup", whose rules here are only for Adam and sign'
    )
    assert str(error.value) == rule
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
