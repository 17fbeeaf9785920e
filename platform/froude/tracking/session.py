"""What a study has committed, sent to one tracker: the large run as it goes on, or the trials of a sweep.

A session may be opened at any time, also after the run: it asks the tracker what it has, and sends the rest.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from froude import schemas
from froude.config import Run
from froude.promote.recipe import Recipe
from froude.runlog import LogReader, Record, lineage, parts_of
from froude.section import without_secrets
from froude.store import Location
from froude.sweep import trial_store
from froude.sweep.trial_store import Stored
from froude.tracking.permanent import Permanent
from froude.tracking.points import points
from froude.tracking.tracker import Point, Subject, Tracker
from froude.train.stability import spikes

CHUNK = 500  # points at a time
TARGET = "target"  # the stage of the large run
#: What is known of the run's end: of a forecast and of what came.
Row = dict[str, Any]


def nothing() -> None:
    """For who does not ask for signs of life."""


class RunSession:
    """The large run of a study: each step once it can't be taken back. `facts` are columns of a trial's row."""

    def __init__(
        self,
        study: Location,
        run: Run,
        tracker: Tracker,
        *,
        recipe: Recipe | None = None,
        facts: Mapping[str, Any] | None = None,
        alive: Callable[[], None] = nothing,
    ) -> None:
        self.place, self.tracker, self.alive = study / "runs" / run.name, tracker, alive
        self.log = LogReader(self.place)
        self.permanent = Permanent(spikes.reach(run))
        self.about = Subject("", run.name, study.name, TARGET, settings(run), {"froude.study": study.url})
        self.summary: Row = said(facts or {})
        if recipe is not None:
            forecast = recipe.forecast
            self.about = replace(self.about, tags={**self.about.tags, "froude.recipe": recipe.sha256})
            self.summary |= {
                f"forecast/{name}": getattr(forecast, name) for name in ("loss", "low", "high", "certified")
            }
        self.events: list[Row] = []
        self.key, self.last, self.open = "", 0, False

    def send(self, final: bool = False) -> None:
        """Send what stays and was not sent; with `final` also leave the tracker's run."""
        records = self.log.records()
        if not records:
            return
        new = self.permanent.take(records)
        self.events += self._rows("events", new)
        self._turn_to(self._key(records))
        status = self._status()
        if self.open:
            for found in self._left(status):
                for chunk in chunked(found):
                    self.tracker.send(chunk)
                    self.last = chunk[-1].step
                    self.alive()
            if status or final:
                self.tracker.close(status, self._summary(status))
                self.open = False

    def _key(self, records: list[Record]) -> str:
        revision = f"-{self.permanent.revision + 1}" if self.permanent.revision else ""
        return records[0].digest[:16] + revision

    def _turn_to(self, key: str) -> None:
        """Have this run of the tracker's open, unless it has been closed for good."""
        if key == self.key:
            return
        if self.open:
            self.tracker.close("superseded", {})
        self.key, self.open = key, key not in self.tracker.ended(self.about.study)
        if self.open:
            self.last = self.tracker.open(replace(self.about, key=key))

    def _status(self) -> str:
        """How the run has ended, "" if it has not, or can go on."""
        line = self.permanent.line
        if line and line[-1].kind == "finished":
            return "finished"
        newest = self._rows("events", line[-1:])
        return "diverged" if any(event["action"] == "stop" for event in newest) else ""

    def _left(self, status: str) -> Iterator[list[Point]]:
        """What was not sent, a record's rows at a time: it has those since the record before it."""
        line = self.permanent.line
        end = line[-1].step if status == "diverged" else self.permanent.upto
        for record in line:
            if self.last < record.step <= end:
                yield self._points([record], record.step)
        if status == "diverged":  # the step that was not made, and why
            yield self._points([], math.inf)

    def _points(self, records: list[Record], upto: float) -> list[Point]:
        frames = [self._rows(kind, records) for kind in ("steps", "evals", "downstream")]
        steps, evals, downstream, events = (
            [row for row in rows if self.last < row["step"] <= upto] for rows in (*frames, self.events)
        )
        return points(steps, evals, downstream, events)

    def _summary(self, status: str) -> Row:
        """With the losses at the run's end under the names that they have in a table of runs."""
        line = self.permanent.line[-1:] if status == "finished" else []
        at_end = {
            row["split"]: row["loss"] for row in self._rows("evals", line) if row["step"] == line[0].step
        }
        named = {name: "loss" if name == "validation" else f"loss_{name}" for name in at_end}
        return {**self.summary, **{named[name]: value for name, value in at_end.items()}}

    def _rows(self, kind: str, records: Iterable[Record]) -> list[Row]:
        return [row for part in parts_of(records, kind) for row in rows_of(self.place / part.path)]


class SweepSession:
    """The trials of a sweep, each a run of the tracker's, grouped by study and stage, once they are in the study."""

    def __init__(self, study: Location, tracker: Tracker, *, alive: Callable[[], None] = nothing) -> None:
        self.study, self.tracker, self.alive = study, tracker, alive
        self.sent: set[str] = set()  # keys
        self.names: set[str] = set()
        self.asked = False

    def send(self, final: bool = False) -> None:
        """Send the trials that came; with `final` also those that replaced another under its name."""
        if not self.asked:
            self.sent |= set(self.tracker.ended(self.study.name))
            self.asked = True
        found = {name.removesuffix(".parquet") for name in (self.study / "trials").children()}
        for name in sorted(found if final else found - self.names):
            self._trial(trial_store.read(self.study, name))
            self.names.add(name)

    def _trial(self, stored: Stored) -> None:
        runs = {run.name: run for run in stored.trial.runs}
        for row in stored.rows.to_pylist():
            key = hashlib.sha256(json.dumps(row, sort_keys=True, default=str).encode()).hexdigest()[:16]
            if key in self.sent:
                continue
            run = runs[row["run"]]
            tags = {"froude.study": self.study.url, "froude.trial": stored.trial.name}
            about = Subject(key, run.name, self.study.name, row["stage"] or "", settings(run), tags)
            last = self.tracker.open(about)
            for chunk in chunked([each for each in self._points(stored, run) if each.step > last]):
                self.tracker.send(chunk)
                self.alive()
            self.tracker.close(row["status"], said(row))
            self.sent.add(key)
            self.alive()

    def _points(self, stored: Stored, run: Run) -> list[Point]:
        place = self.study / "runs" / run.name
        kept = lineage(LogReader(place).records()) if stored.trial.workers > 1 else []
        frames = []
        for kind in ("steps", "evals"):
            own = self.study / kind / f"{stored.trial.name}.parquet"
            files = [own] if own.exists() else [place / part.path for part in parts_of(kept, kind)]
            frames.append([row for file in files for row in rows_of(file) if row["run"] == run.name])
        return points(*frames)


def settings(run: Run) -> dict[str, Any]:
    """What a tracker is told of a run's settings: no URL's password, a command's environment by name only."""
    found: dict[str, Any] = _masked(run.to_dict())
    if environment := found.get("trainer", {}).get("environment"):
        found["trainer"] = {**found["trainer"], "environment": dict.fromkeys(environment, "***")}
    return found


def _masked(value: Any) -> Any:
    """A value without the secrets of any text in it."""
    if isinstance(value, Mapping):
        return {name: _masked(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(each) for each in value]
    return without_secrets(value) if isinstance(value, str) else value


def rows_of(file: Location) -> list[Row]:
    """A stored table's rows."""
    found: list[Row] = schemas.table_of(file.read()).to_pylist()
    return found


def chunked(found: list[Point]) -> Iterable[list[Point]]:
    """A few at a time."""
    return (found[i : i + CHUNK] for i in range(0, len(found), CHUNK))


def said(row: Mapping[str, Any]) -> Row:
    """What a trial's row has, as words and numbers; so `froude fit --from` reads it back."""
    return {
        name: value if isinstance(value, int | float) else without_secrets(str(value))
        for name, value in row.items()
        if value is not None
    }
