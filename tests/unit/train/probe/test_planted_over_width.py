"""Bugs of width, planted in the parametrization or the optimizer: the coordinate check calls each of them a failure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from froude.config import Run
from froude.optimizers import OPTIMIZERS, Spec
from froude.parametrizations import PARAMETRIZATIONS, Kind, Parametrization
from froude.parametrizations.mup import MUP
from froude.train.probe.coordcheck import measure
from froude.train.probe.slopes import CoordinateCheck, judge

pytestmark = pytest.mark.slow

WIDTHS, SEEDS, TIMES = (64, 128, 256), 3, (3,)
RUN = Run(batch=256, tokens=256 * 100, model={"context": 32})
OPTIMIZER: dict[str, dict[str, Any]] = {
    "adamw": {"name": "adamw", "lr": 2**-7.5},
    "lion": {"name": "lion", "lr": 1e-3},
    "muon": {"name": "muon", "lr": 0.02, "rest": {"lr": 2**-7.5}},
}


@dataclass(frozen=True)
class Planted:
    """The rules in place of muP's, the spec in place of Muon's, and changes of the run that the bug needs."""

    rules: Parametrization = MUP
    muon: Spec = OPTIMIZERS["muon"]
    run: dict[str, Any] = field(default_factory=dict)


def row(family: str, kind: Kind, run: dict[str, Any] | None = None, **powers: float) -> Planted:
    """MuP, but for the powers of one kind."""
    rows = {**MUP.table[family], kind: replace(MUP.powers(kind, family), **powers)}
    return Planted(replace(MUP, table={**MUP.table, family: rows}), run=run or {})


#: Each kind of start or rate has a run on which it matters: of tables of sd .5 a few updates change next to nothing.
SMALL_TABLES = {"model.embedding_sd": 0.02}
ONE_RMS = {"optimizer.options": {"scale": "match_rms"}, "optimizer.lr": 5e-3}
UNDIVIDED = Planted(replace(MUP, logits=0.0))
BUGS = {
    "adamw": {
        "hidden rate as it is": row("Adam", "hidden", lr=0.0, weight_decay=0.0),
        "hidden rate by the root of the width": row("Adam", "hidden", lr=-0.5, weight_decay=0.5),
        "readout rate falls, too": row("Adam", "readout", lr=-1.0),
        "hidden matrices start with one sd": row("Adam", "hidden", init=0.5),
        "logits are not divided": UNDIVIDED,
    },
    "lion": {
        "hidden rate as it is": row("sign", "hidden", lr=0.0, weight_decay=0.0),
        "hidden rate by the root of the width": row("sign", "hidden", lr=-0.5, weight_decay=0.5),
        "embedding rate falls, too": row("sign", "embedding", SMALL_TABLES, lr=-1.0),
        "hidden matrices start with one sd": row("sign", "hidden", init=0.5),
        "logits are not divided": UNDIVIDED,
    },
    "muon": {
        "updates of one RMS without the root of the width": row(
            "spectral of one RMS", "hidden", ONE_RMS, lr=0.0, weight_decay=0.0
        ),
        "hidden rate falls as Adam's": row("spectral", "hidden", lr=-1.0, weight_decay=1.0),
        "factor of the rows alone": Planted(
            muon=replace(OPTIMIZERS["muon"], factor=lambda settings, rows, columns: math.sqrt(rows / 64))
        ),
        "the rest's embedding rate falls": row("Adam", "embedding", SMALL_TABLES, lr=-1.0),
        "logits are not divided": UNDIVIDED,
    },
}


def checked(optimizer: str, planted: Planted, monkeypatch: pytest.MonkeyPatch) -> CoordinateCheck:
    monkeypatch.setitem(PARAMETRIZATIONS, "mup", planted.rules)
    monkeypatch.setitem(OPTIMIZERS, "muon", planted.muon)
    run = RUN.replace({"optimizer": OPTIMIZER[optimizer]}).replace(planted.run)
    runs = [run.replace({"model.width": w, "seed": s}) for w in WIDTHS for s in range(SEEDS)]
    return judge("width", measure(runs, times=TIMES))


def case(optimizer: str, *rest: Any) -> Any:
    """Muon's take a minute each on two cores: one bug is looked for at once, the others with the long tests."""
    later = optimizer == "muon" and rest != ("factor of the rows alone",)
    return pytest.param(optimizer, *rest, marks=[pytest.mark.long] if later else [])


@pytest.mark.parametrize(
    ("optimizer", "bug"), [case(name, bug) for name, bugs in BUGS.items() for bug in bugs]
)
def test_a_planted_bug_fails(optimizer: str, bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = checked(optimizer, BUGS[optimizer][bug], monkeypatch)
    assert found.verdict == "failed", found.lines()


@pytest.mark.parametrize(
    ("optimizer", "run"),
    [
        *(case(name, {}) for name in OPTIMIZER),
        case("lion", SMALL_TABLES),
        case("muon", SMALL_TABLES),
        case("muon", ONE_RMS),
    ],
)
def test_without_a_bug_the_same_check_passes(
    optimizer: str, run: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = checked(optimizer, Planted(run=run), monkeypatch)
    assert found.verdict == "passed", found.reasons
