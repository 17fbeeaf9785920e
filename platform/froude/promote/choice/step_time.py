"""How long a target's steps take, by batch and workers: on its cluster, by the study's trials, or timed here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl
from scipy.optimize import nnls

from froude.config import ConfigError, Run
from froude.laws.loss.trade import Part
from froude.material.commands import EXTERNAL
from froude.study import Study

FILE = "target-steps.json"  # of a study: how long the target's steps took on a cluster
HOUR = 3600.0
APART = "what workers wait for one another is not in it"
TRIALS = 6  # from which a time by step and FLOP can be told apart from what a trial takes to start


class Timed(NamedTuple):
    """Seconds of a step of `batch` tokens by so many workers."""

    workers: int
    batch: int
    seconds: float


class Line(NamedTuple):
    """Seconds of a step: `overhead`, and `per_token` for each token of the batch."""

    overhead: float
    per_token: float


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: `overhead`, and `per_flop` for each FLOP of a worker; `source` says where they are from.

    `measured` has those of a cluster by its number of workers, what they wait for one another included.
    """

    overhead: float
    per_flop: float
    source: str
    measured: Mapping[int, Line] = field(default_factory=dict)

    def hours(self, parts: Sequence[Part], *, flops_per_token: float, workers: int) -> float:
        """Wall hours of a run of these parts, without evaluations and failures.

        What workers wait for one another is in it for numbers of workers that were measured.
        """
        line = self.measured.get(workers, Line(self.overhead, self.per_flop * flops_per_token / workers))
        steps = sum(part.tokens / part.batch for part in parts)
        return (steps * line.overhead + sum(part.tokens for part in parts) * line.per_token) / HOUR


def of_study(study: Study, target: Run) -> StepTime | None:
    """What was measured on a cluster for this target; else what the study's trials tell, if they do."""
    trials = of_trials(study.trials().collect())
    place = study.location / FILE
    if not place.exists():
        return trials
    try:
        content = json.loads(place.read())
        timed = [Timed(int(w), int(b), float(s)) for w, b, s in content["times"]]
        here = target.fingerprint, _place(target)
        same = (content["target"], content.get("place", here[1])) == here
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{place} must hold times of steps, but reading it gave: {error}; delete it"
        ) from None
    return of_cluster(timed, trials) if same else trials


def keep(study: Study, target: Run, timed: Sequence[Timed]) -> None:
    """Store what was measured for this target, as it is to run."""
    content = {"target": target.fingerprint, "place": _place(target), "times": [[*each] for each in timed]}
    (study.location / FILE).replace(json.dumps(content, indent=1).encode())


def _place(target: Run) -> str:
    """What a step's time depends on besides the run's fingerprint: its workers, devices and how they share the work."""
    content = target.to_dict()
    return json.dumps({name: content.get(name) for name in ("workers", "device", "compute")}, sort_keys=True)


def of_cluster(timed: Sequence[Timed], trials: StepTime | None) -> StepTime:
    """A line over batches for each number of workers; `trials` says what another number would take."""
    lines = {}
    for workers in {each.workers for each in timed}:
        own = sorted((each.batch, each.seconds) for each in timed if each.workers == workers)
        (few, quick), (many, slow) = own[0], own[-1]
        slope = (slow - quick) / (many - few) if many > few and slow > quick else 0.0
        slope = min(slope, slow / many)  # a step of no tokens takes no less than nothing
        lines[workers] = Line(slow - slope * many, slope)
    numbers = " and ".join(str(workers) for workers in sorted(lines))
    source = f"measured on the target's cluster by {numbers} worker{'s' * (numbers != '1')}"
    overhead, per_flop = (trials.overhead, trials.per_flop) if trials else (float("nan"), float("nan"))
    return StepTime(overhead, per_flop, source, lines)


def of_trials(trials: pl.DataFrame) -> StepTime | None:
    """Least squares over finished trials of one worker (rows of `trials()`); None where they do not tell.

    seconds = start + overhead · steps + per_flop · FLOPs, none below zero, by relative residuals. A trunk with branches
    is its longest run and the tails of the others, whose seconds are told branch by branch; a command trains each
    branch whole. Trunks of studies that do not say how long tails are do not count.
    """
    columns = ("seconds", "steps", "flops")
    longest = pl.col("steps") == pl.col("steps").max().over("trial")
    whole = longest | (pl.col("trainer") == EXTERNAL).fill_null(False)
    trained = pl.when(whole).then(1.0).otherwise(pl.col("decay_fraction"))
    rows = (
        trials.filter(pl.col("status") == "finished", pl.col("workers").fill_null(1) == 1)
        .drop_nulls(columns)
        .with_columns(trial=pl.coalesce("trial", "run"))
        .with_columns(trained=trained)
        .group_by("trial")
        .agg(
            pl.col("seconds").sum(),
            (pl.col("steps") * pl.col("trained")).sum(),
            (pl.col("flops") * pl.col("trained")).sum(),
            told=pl.col("trained").is_not_null().all(),
        )
        .filter(pl.col("seconds") > 0, "told")
        .sort("trial")
    )
    if rows.height < TRIALS:
        return None
    seconds, steps, flops = (rows[name].cast(pl.Float64).to_numpy() for name in columns)
    design = np.column_stack([np.ones(seconds.size), steps, flops]) / seconds[:, None]
    scale = np.abs(design).max(axis=0)
    found, _ = nnls(design / scale, np.ones(seconds.size))
    _, overhead, per_flop = found / scale
    if not per_flop > 0:
        return None
    words = f"by the times of the study's trials of one worker; {APART}"
    return StepTime(float(overhead), float(per_flop), words)


def estimated(run: Run) -> StepTime:
    """The run's steps by the plan's estimate: timed on its threads here at two batches, the least and its own.

    ConfigError for a run that a command trains.
    """
    from froude.train.speed.timing import measure, step_flops, threads_of

    if run.trainer.command:
        raise ConfigError(
            "the time of a step is told by trials of one process, but the study has too few, and a command's steps "
            "can't be timed here; leave --prefer out, or prefer loss"
        )
    least = run.slots * run.model.context
    sizes = [least, max(run.batch, 2 * least)]
    alike = [
        run.pinned().replace(
            {"batch": size, "tokens": size, "schedule.warmup_tokens": 0, "schedule.ramp": ()}
        )
        for size in sizes
    ]
    speed = measure(alike)
    (few, quick), (many, slow) = (
        (step_flops(each), speed.seconds(step_flops(each))) for each in (alike[0], alike[-1])
    )
    per_flop = (slow - quick) / (many - few) if many > few and slow > quick else slow / many
    threads = threads_of(run)
    about = "a thread" if threads == 1 else f"{threads} threads"
    fixed = max(slow - per_flop * many, 0.0)
    words = f"estimated as by a plan: {about} of this machine, timed{speed.instead}; {APART}"
    return StepTime(fixed / threads, per_flop / threads, words)
