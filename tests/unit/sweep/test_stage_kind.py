"""A kind of stage that the package does not have: a class of one's own is enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from played_sweep import play

from froude.config import Run
from froude.space import Grid, Past, Space, Trial
from froude.sweep.agenda import Agenda

BASE = Run(tokens=768 * 10)


@dataclass(frozen=True)
class Bisection:
    """Narrows an interval of ln lr round the least loss: three rates, then always between the two best neighbours."""

    name: str
    low: float
    high: float
    rounds: int
    role: str = "lr_transfer"
    after: tuple[str, ...] | None = None
    extends: bool = False
    one_by_one: bool = True

    def trial(self, number: int, lr: float) -> Trial:
        name = f"{self.name}-{number:02d}"
        return Trial(name, (BASE.replace({"optimizer.lr": lr}, name=name, stage=self.name),))

    def planned(self) -> list[Trial]:
        middle = math.sqrt(self.low * self.high)
        return [self.trial(number, middle) for number in range(3 + self.rounds)]

    def undecided(self, before: Sequence[str]) -> str:
        return "rates, each from the losses before"

    def next(self, past: Past) -> list[Trial] | None:
        number = len(past.trials)
        if number == 0:
            rates = (self.low, math.sqrt(self.low * self.high), self.high)
            return [self.trial(i, lr) for i, lr in enumerate(rates)]
        rows = [past.outcome(trial) for trial in past.trials]
        if number == 3 + self.rounds or not all(rows):
            return None
        found = sorted((row["lr"], row["loss"]) for row in rows if row)
        best = min(range(1, len(found) - 1), key=lambda i: found[i][1])
        wide = max((best - 1, best), key=lambda i: found[i + 1][0] / found[i][0])
        return [self.trial(number, math.sqrt(found[wide][0] * found[wide + 1][0]))]


def loss(run: Run) -> float:
    return 2.0 + (math.log2(run.optimizer.lr) + 8) ** 2 / 50


def space() -> Space:
    seen: list[Trial] = []

    def later(rows: object) -> list[Trial]:
        return seen

    return Space("x", 0, (Bisection("b", 2**-12, 2**-4, 6), Grid("g", later, role="loss_law")), BASE)  # type: ignore[arg-type]


def test_it_is_planned_swept_and_resumed_like_the_packages_own() -> None:
    made = space()
    assert [len(trials) for trials in made.planned().values()] == [9, 0]
    assert made.stage_table()["b"] == {"role": "lr_transfer", "trials": 9, "extends": False}
    agenda = Agenda(made, {})
    assert agenda.counts()["b"] == (0, 9)
    order = play(agenda, loss)
    assert order[3:] == [f"b-{number:02d}" for number in range(3, 9)]
    rates = [trial.runs[0].optimizer.lr for trial in agenda.stages[0].trials]
    assert abs(math.log2(rates[-1]) + 8) < 1
    cut = Agenda(made, {})
    play(cut, loss, stop_after=5)
    again = Agenda(made, cut.results)
    play(again, loss)
    assert [trial.runs[0].optimizer.lr for trial in again.stages[0].trials] == rates
    assert again.resumed == len(cut.results)
