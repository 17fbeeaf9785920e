"""A large run that another trainer trains: its metrics, as they grow, into the study's log, against the sealed band."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from froude import schemas
from froude.checkpoint.commit import CommitLog, Fenced, Finished
from froude.checkpoint.parts import create_part
from froude.config import Run
from froude.external.metrics import TOLERANCE, Metrics, decoded, lines, ready
from froude.external.rows import processes, step_row
from froude.material.commands import EXTERNAL
from froude.promote.monitor import Monitor
from froude.promote.recipe import Recipe
from froude.runlog import NO_BASE, Part, Record, lineage
from froude.section import ConfigError
from froude.store import Location
from froude.study import Study
from froude.train.rows import eval_row
from froude.train.size import is_sized, size_of

COMMIT_SECONDS = 30.0  # between two records, of those that are watched live
START = 64  # bytes by which a file is known again
REST = 9.0  # times as long as it took to read all of a folder passes before it is read again
Seen = tuple[int, int, int]  # inode, size, and time of change


@dataclass(frozen=True)
class Now:
    """Where the run is; `new` are alarms, `loss` is the newest training loss, `final` the last validation loss.

    `band` is where the mean training loss is to lie here, None where the forecast has no band, or not yet.
    """

    step: int
    steps: int
    loss: float | None
    band: tuple[float, float] | None
    new: tuple[str, ...]
    final: float | None
    diverged: str

    def words(self) -> str:
        """The same for people."""
        if self.loss is None:
            return f"step {self.step} of {self.steps}, no training loss yet"
        lies = f", band {self.band[0]:.3f} to {self.band[1]:.3f}" if self.band is not None else ""
        return f"step {self.step} of {self.steps}, loss {self.loss:.3f}{lies}"


class Tail:
    """Metrics that grow, in a file or a tracker's folder: what they tell, read again only where they have changed.

    `series` are the trainer's names by ours; without it those of the run's trainer.
    """

    def __init__(self, file: Path, run: Run, params: int, series: Mapping[str, str] | None = None) -> None:
        self.file, self.run, self.params, self.series = file, run, params, series or {}
        self.metrics = self._none()
        self._seen: tuple[Seen, ...] = ()
        self._rest = 0.0  # when to read a folder again
        self._offset, self._line = 0, 1  # of what was not taken in yet
        self._inode, self._start = 0, b""  # of the file that the offset is in
        self._taken = hashlib.sha256()  # of what lies before it

    def read(self) -> Metrics:
        """Everything so far; ConfigError for a line that breaks a rule. A missing file has told nothing yet."""
        if (began := time.monotonic()) < self._rest:
            return self.metrics
        folder = self.file.is_dir()
        seen = tuple(_seen(sorted(self.file.rglob("*")) if folder else [self.file]))
        if not seen or seen == self._seen:
            return self.metrics
        try:
            if folder or self.file.suffix == ".parquet":
                self._again()
                self._rest = time.monotonic() + REST * (time.monotonic() - began)
            else:
                self._grown()
        except FileNotFoundError:  # moved away while it was read
            return self.metrics
        self._seen = seen
        return self.metrics

    def _again(self) -> None:
        metrics = self._none()
        for number, line in lines(self.file, metrics.series):
            self._take(metrics, line, number)
        self.metrics = metrics

    def _none(self) -> Metrics:
        return Metrics(self.run, str(self.file), self.series)

    def _grown(self) -> None:
        """Take in what is new and whole; a file that does not begin with what was taken in is a new one.

        While the inode stays, its first bytes and its size are looked at; some writers replace the file each time.
        """
        with self.file.open("rb") as file:
            now, start = os.fstat(file.fileno()), file.read(START)
            known = now.st_size >= self._offset and start.startswith(self._start)
            if known and now.st_ino != self._inode:
                file.seek(0)
                known = hashlib.sha256(file.read(self._offset)).digest() == self._taken.digest()
            if not known:
                self.metrics = self._none()
                self.metrics.went_back = self._offset > 0
                self._offset, self._line, self._taken = 0, 1, hashlib.sha256()
            file.seek(self._offset)
            content = ready(file.read())
        for number, line in enumerate(content.split(b"\n"), self._line):
            for row in decoded(line, f"line {number} of {self.file}", self.metrics.series):
                self._take(self.metrics, row, number)
        self._taken.update(content)
        self._offset += len(content)
        self._line += content.count(b"\n")
        self._inode, self._start = now.st_ino, start[: self._offset]

    def _take(self, metrics: Metrics, line: Mapping[str, Any], number: int) -> None:
        """Add a line; ConfigError where it tells of a model of another size, so of a run that is not this one."""
        metrics.add(line, number)
        said, told = self.params, metrics.size.get("params", 0.0)
        if said and told and abs(told - said) > TOLERANCE * said:
            raise ConfigError(
                f"a run that is followed must have the parameters of its forecast, {said:,}, but line {number} of "
                f"{self.file} tells {told:,.0f}; name the metrics of {self.run.name}, which target.json describes"
            )


class Follower:
    """Follows the recipe's run by its metrics, and commits what they tell to the run's log in the study."""

    def __init__(
        self, study: Location, recipe: Recipe, file: Path, series: Mapping[str, str] | None = None
    ) -> None:
        self.study, self.recipe, self.run = study, recipe, recipe.run
        self.place = study / "runs" / recipe.run.name
        self.log = CommitLog(self.place)
        head = self.log.head_under(recipe.sha256)
        if not recipe.trainer or (head is not None and head.meta.get("trainer") != EXTERNAL):
            raise ConfigError(
                f"a run that is followed must have a recipe for another trainer, but that of {self.run.name} is for "
                "froude; `froude promote --for external` writes one"
            )
        self.tail = Tail(file, self.run, _params(self.run), series)
        self.finished = head is not None and head.kind == "finished"
        self._head: Record | None = None  # the last record of this follower's attempt, while it is known
        self._steps, self._evals = self._committed(lineage(self.log.records()))
        self._monitor, self._fed, self._told = Monitor(recipe.forecast, self.run), 0, set[str]()
        self._saved = -math.inf
        self._id = uuid.uuid4().hex  # whoever follows the same run later takes it over

    def poll(self, *, save: bool = False) -> Now:
        """Read what is new, hold it against the band, and commit it now and then, at the end, or if `save` says so."""
        metrics = self.tail.read()
        new = tuple(self._alarms(metrics))
        diverged = metrics.why_diverged
        over = metrics.final is not None and not diverged
        if not self.finished and (save or over or time.monotonic() - self._saved > COMMIT_SECONDS):
            self._commit(metrics, over=over)
        row = metrics.steps.get(metrics.step, {})
        band, forecast = None, self.recipe.forecast
        if row and forecast.band and row["tokens"] >= forecast.band[0].tokens:
            at = forecast.at(row["tokens"])
            band = (at.low, at.high)
        step = max([metrics.step, *(number for number, _ in metrics.evals)])
        final = self._evals.get((self.run.steps, "validation")) if self.finished else metrics.final
        loss = row.get("loss")
        return Now(step, self.run.steps, loss, band, new, final, diverged)

    def save(self) -> None:
        """Commit what was read so far."""
        self._commit(self.tail.metrics, over=False)

    def _alarms(self, metrics: Metrics) -> Iterator[str]:
        """The alarms that were not told before; after the run went back its monitor begins anew."""
        if metrics.went_back or metrics.step < self._fed:
            metrics.went_back = False
            self._monitor, self._fed = Monitor(self.recipe.forecast, self.run), 0
        for step in sorted(step for step in metrics.steps if step > self._fed):
            row = metrics.steps[step]
            for alarm in self._monitor.step(row["tokens"], row["loss"], row.get("lr")):
                if (line := alarm.line()) not in self._told:
                    self._told.add(line)
                    yield line
            self._fed = step

    def _committed(self, line: list[Record]) -> tuple[dict[int, float], dict[tuple[int, str], float]]:
        """Losses by step, and by step and validation set, that these records name."""
        study = Study(self.study)
        steps = study.committed(self.run.name, "steps", line).collect()
        evals = study.committed(self.run.name, "evals", line).collect()
        return (
            dict(steps.select("step", "loss").iter_rows()),
            {(step, split): loss for step, split, loss in evals.select("step", "split", "loss").iter_rows()},
        )

    def _commit(self, metrics: Metrics, *, over: bool) -> None:
        """A record of what is new; ConfigError where somebody else has begun to follow the run."""
        self._saved = time.monotonic()
        try:
            self._extend(metrics, over=over)
        except (Fenced, Finished):
            raise ConfigError(
                f"a run must be followed by one `froude follow` at a time, but another has taken over {self.run.name}; "
                "leave it to that one, or start this one again to take over"
            ) from None

    def _extend(self, metrics: Metrics, *, over: bool) -> None:
        """A record on top of the newest one that still holds; none where nothing is new."""
        line = lineage(self.log.records())
        if self._head is None:  # another follower may have written more since
            self._steps, self._evals = self._committed(line)
        back = min(
            (step for step, row in metrics.steps.items() if not _same(self._steps.get(step), row["loss"])),
            default=self.run.steps + 1,
        )
        changed = back <= max(self._steps, default=0)
        if changed:
            line = [record for record in line if record.step < back]
            self._steps, self._evals = self._committed(line)
        first = max(self._steps, default=0)
        steps = [metrics.steps[step] for step in sorted(metrics.steps) if step > first]
        evals = {key: loss for key, loss in metrics.evals.items() if not _same(self._evals.get(key), loss)}
        if self._head is None or changed:
            if not (steps or evals or over) and self.log.head() is not None:
                return
            about = {"trainer": EXTERNAL, "run_id": self._id}
            self._head = self.log.open_attempt(self.run.name, self.recipe.sha256, processes(self.run), about)
        if steps or evals or over:
            step = self.run.steps if over else max([first, *(row["step"] for row in steps)])
            self._append(line, step, steps, evals, "finished" if over else "checkpoint")
            self._steps |= {row["step"]: row["loss"] for row in steps}
            self._evals |= evals
            self.finished = over

    def _append(
        self,
        line: list[Record],
        step: int,
        steps: list[dict[str, Any]],
        evals: dict[tuple[int, str], float],
        kind: str,
    ) -> None:
        # Where this fails, nobody knows what became of the record: the log says so, to an attempt opened anew.
        head, self._head = self._head, None
        assert head is not None
        seq = head.seq + 1
        rows = {
            "steps": [step_row(self.run, head.attempt, row) for row in steps],
            "evals": [
                eval_row(self.run, head.attempt, at, loss, split)
                for (at, split), loss in sorted(evals.items())
            ],
        }
        parts: list[Part] = []
        for name, found in rows.items():
            if found:
                path = f"parts/{name}-{head.generation}.{seq:08d}-{step:012d}-r0.parquet"
                content = schemas.to_bytes(schemas.table(schemas.SCHEMAS[name], found))
                parts.append(create_part(self.place, name, path, content))
        record = replace(
            head,
            kind=kind,
            step=step,
            tokens=self.run.phases.tokens_at(step),
            base=line[-1].seq if line else NO_BASE,
            # Its state is the other trainer's affair, so there is none to be verified or loaded.
            meta={**head.meta, "expired": [seq]},
            parts=tuple(parts),
        )
        self._head = self.log.append(head, record)


def write_target(study: Location, run: Run) -> None:
    """Write the run of a recipe as target.json and target.toml, for its trainer to read."""
    (study / "target.json").replace(json.dumps(run.to_dict(), indent=1).encode() + b"\n")
    (study / "target.toml").replace(run.to_toml().encode())


def _params(run: Run) -> int:
    """Of the forecast's model, as its trainer or the package's own model says; 0 where only foreign code knows."""
    ours = run.model.factory.startswith("froude.")
    return size_of(run).params if is_sized(run) and (run.trainer.params or ours) else 0


def _seen(files: Iterable[Path]) -> Iterator[Seen]:
    for file in files:
        try:
            status = os.stat(file)
        except FileNotFoundError:
            continue
        yield status.st_ino, status.st_size, status.st_mtime_ns


def _same(one: float | None, other: float) -> bool:
    return one is not None and (one == other or (one != one and other != other))
