"""A sweep without a cluster: trials whose losses come from a formula."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from froude import schemas
from froude.config import Run
from froude.space import Trial
from froude.sweep.agenda import Agenda
from froude.sweep.trial_store import Stored
from froude.train.rows import describe

Loss = Callable[[Run], float]


def outcome(trial: Trial, loss: Loss) -> Stored:
    """What the study has once the trial has run: NaN is a diverged run, -1 a failed one."""
    rows = []
    for run in trial.runs:
        value = loss(run)
        status = "diverged" if math.isnan(value) else "failed" if value < 0 else "finished"
        row = {
            **describe(run),
            "status": status,
            "trial": trial.name,
            "params": 26 * run.model.width**2,
            "attempts": 1,
        }
        rows.append(row | {"loss": value if status == "finished" else None})
        if trial.stop_loss is not None and value <= trial.stop_loss:
            break
    return Stored(trial, schemas.table(schemas.TRIALS, rows))


def play(
    agenda: Agenda, loss: Loss, *, slots: int = 2, seed: int = 0, stop_after: int | None = None
) -> list[str]:
    """Run the agenda's trials, `slots` at a time, which end in an order of chance; names in the order of starting."""
    chance, running, started = random.Random(seed), [], []
    while not agenda.done:
        while len(running) < slots and (trial := agenda.next()) is not None:
            running.append(trial)
            started.append(trial.name)
        assert running, "nothing runs and nothing is next"
        if stop_after is not None and len(agenda.results) >= stop_after:
            break
        agenda.finish(outcome(running.pop(chance.randrange(len(running))), loss))
    return started


def tank(run: Run) -> float:
    """Losses with the features that the quickstart looks for.

    The optimum is 2^-7.25 under muP at every width and falls by an octave per octave of width under SP; noise
    doubles the steps at a batch of 400 tokens.
    """
    width, batch = run.model.width, run.batch
    best = -7.25 + 0.5 * math.log2(batch / 768)
    if run.parametrization == "sp":
        best -= math.log2(width / 64)
    miss = math.log2(run.optimizer.lr) - best
    if miss > 4:
        return math.nan
    effective = run.steps / (1 + 400 / batch)
    schedule = 0.07 if run.schedule.name == "cosine" else 0.0
    return 1.0 + 0.18 * (64 / width) ** 0.7 + 9.6 / effective**0.5 + 0.04 * miss**2 + schedule
