"""What an elastic run went through, from its commit log and the times of its steps."""

from __future__ import annotations

import io
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq

from froude.config import Run
from froude.runlog import LogReader, parts_of
from froude.store import Location


@dataclass(frozen=True)
class ElasticResult:
    """A run's attempts, seen from its end.

    `world_sizes` are those of the attempts that made a step which was kept, in order; `restarts` counts the attempts after
    the first. `recovery_seconds`: from the last step of any kind before a restart to the first one after it, for the
    restarts that one driver went through by itself. `loss` is the final validation loss in nats per token, None while
    the run is not finished.
    """

    run: str
    finished: bool
    step: int
    world_sizes: list[int]
    restarts: int
    recovery_seconds: list[float]
    loss: float | None


def history(run: Run, location: Location) -> ElasticResult:
    """Read it from `location` (`<study>/runs/<run>`)."""
    log = LogReader(location)
    records = log.records()
    kept = log.lineage()
    attempts = [record for record in records if record.kind == "attempt"]

    def rows(kind: str) -> pa.Table:
        tables = [
            pq.read_table(io.BytesIO((location / part.path).read())) for part in parts_of(kept, kind)
        ]
        return pa.concat_tables(tables) if tables else None

    first: dict[int, datetime] = {}
    last: dict[int, datetime] = {}
    steps, evals = rows("steps"), rows("evals")
    if steps is not None:
        for attempt, time in zip(steps["attempt"].to_pylist(), steps["time"].to_pylist(), strict=True):
            first[attempt] = min(time, first.get(attempt, time))
            last[attempt] = max(time, last.get(attempt, time))
    recovery = []
    for before, after in zip(attempts, attempts[1:], strict=False):
        if after.attempt not in first or before.meta.get("run_id") != after.meta.get("run_id"):
            continue
        known = [last[number].timestamp() for number in last if number < after.attempt]
        # A beat is newer than the newest step that was kept, unless nobody could leave one.
        alive = max([float(after.meta.get("alive", 0)), *known])
        if alive:
            recovery.append(first[after.attempt].timestamp() - alive)
    losses = (
        [loss for step, loss in zip(evals["step"].to_pylist(), evals["loss"].to_pylist(), strict=True) if step == run.steps]
        if evals is not None
        else []
    )
    head = records[-1] if records else None
    return ElasticResult(
        run=run.name,
        finished=head is not None and head.kind == "finished",
        step=kept[-1].step if kept else 0,
        world_sizes=[record.world for record in attempts if record.attempt in first],
        restarts=max(len(attempts) - 1, 0),
        recovery_seconds=recovery,
        loss=losses[-1] if losses else None,
    )
