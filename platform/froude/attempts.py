"""What the elastic run went through: its attempts, their world sizes, and the seconds that each restart cost."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import polars as pl

from froude.runlog import LogReader, Record, lineage

if TYPE_CHECKING:
    from froude.study import Study


@dataclass(frozen=True)
class Attempt:
    """One life of the worker group, from a start to the next.

    `start` is when it committed to the log, `first` and `last` when its first and newest kept steps ended, None where
    none was kept; seconds since the run's first record, without the pauses before another driver took the run up
    (`resumed`). `recovery` is from the last sign of the attempt before it to its first step, None where there is none,
    where it was resumed, or where hosts' clocks have it end before it begins. `step` and `tokens` are those that it
    went on from.
    """

    number: int
    world: int
    start: float
    first: float | None
    last: float | None
    step: int
    tokens: int
    recovery: float | None
    resumed: bool

    @property
    def end(self) -> float:
        return self.start if self.last is None else self.last


@dataclass(frozen=True)
class Elastic:
    """All attempts of one run, oldest first; `step` and `tokens` are those of its newest checkpoint.

    `loss` is the validation loss at the run's last step, in nats per token; None before it is finished. `set_losses`
    are those of the other validation sets that its source has, by name.
    """

    run: str
    attempts: tuple[Attempt, ...]
    finished: bool
    step: int
    tokens: int
    loss: float | None = None
    set_losses: Mapping[str, float] = field(default_factory=dict)

    @property
    def world_sizes(self) -> list[int]:
        """Sizes of the attempts that made at least one step, in order."""
        return [attempt.world for attempt in self.attempts if attempt.first is not None]

    @property
    def restarts(self) -> int:
        return max(len(self.attempts) - 1, 0)

    @property
    def recovery_seconds(self) -> list[float]:
        return [attempt.recovery for attempt in self.attempts if attempt.recovery is not None]

    @property
    def seconds(self) -> float:
        """From the run's first record to its last step."""
        return max((attempt.end for attempt in self.attempts), default=0.0)

    @property
    def goodput(self) -> float | None:
        """Proportion of the time between the first and the last step that went into steps that were kept.

        None where there is no such time, or hosts' clocks have an attempt begin before the one before it ends.
        """
        spans = [(a.first, a.last) for a in self.attempts if a.first is not None and a.last is not None]
        if not spans or spans[-1][1] <= spans[0][0]:
            return None
        if any(first < last for (_, last), (first, _) in itertools.pairwise(spans)):
            return None
        return sum(last - first for first, last in spans) / (spans[-1][1] - spans[0][0])


def history(study: Study, run: str) -> Elastic | None:
    """The history of the study's run of this name; None if it has not begun, ConfigError if its log is broken."""
    records = LogReader(study.location / "runs" / run).records()
    if not records:
        return None
    found = trace(run, records, study.committed(run, "steps", lineage(records)).collect())
    if found is None or not found.finished:
        return found
    evals = study.committed(run, "evals", lineage(records)).filter(pl.col("step") == found.step)
    losses = dict(evals.select("split", "loss").collect().iter_rows())
    return replace(found, loss=losses.pop("validation", None), set_losses=losses)


def trace(run: str, records: Sequence[Record], steps: pl.DataFrame) -> Elastic | None:
    """The history according to these commit records and kept steps (attempt, time).

    A step that a failed attempt made after its last commit is in no frame. The time of the last one is known from the
    next attempt's record, where its driver wrote it (`alive`, seconds since 1970), and is otherwise that of the last
    kept step.
    """
    if not records:
        return None
    spans = {
        row["attempt"]: (row["first"].timestamp(), row["last"].timestamp())
        for row in steps.group_by("attempt")
        .agg(first=pl.col("time").min(), last=pl.col("time").max())
        .iter_rows(named=True)
    }
    zero = records[0].time.timestamp()
    attempts: list[Attempt] = []
    driver: object = None
    alive: float | None = None  # the last sign of life so far
    for record in (record for record in records if record.kind == "attempt"):
        opened = record.time.timestamp()
        resumed = bool(attempts) and record.meta.get("run_id") != driver
        driver = record.meta.get("run_id")
        if attempts:
            alive = max(float(record.meta.get("alive") or 0), alive or 0) or None
        if resumed and alive is not None:
            zero += max(opened - alive, 0.0)
        first, last = spans.get(record.attempt, (None, None))
        pause = None if first is None or alive is None or resumed else first - alive
        attempts.append(
            Attempt(
                number=record.attempt,
                world=record.world,
                start=opened - zero,
                first=None if first is None else first - zero,
                last=None if last is None else last - zero,
                step=record.step,
                tokens=record.tokens,
                recovery=pause if pause is not None and pause >= 0 else None,
                resumed=resumed,
            )
        )
        alive = last if last is not None else alive
    kept = lineage(records)
    step, tokens = (kept[-1].step, kept[-1].tokens) if kept else (0, 0)
    return Elastic(run, tuple(attempts), records[-1].kind == "finished", step, tokens)
