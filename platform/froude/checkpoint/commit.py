"""Extending the commit log of a run: exactly one writer wins each number, so the log has no forks."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from froude.config import ConfigError
from froude.runlog import NO_BASE, LogReader, Part, Record, record_name

__all__ = ["CommitLog", "Fenced", "Finished", "Part", "Record"]


class Fenced(RuntimeError):
    """Another attempt has extended the log: this one is a zombie, and must end without writing more."""


class Finished(RuntimeError):
    """The run is finished, so it opens no attempt."""


class CommitLog(LogReader):
    """The log below a run's directory, for its attempts; readers need LogReader only."""

    def append(self, after: Record | None, record: Record) -> Record:
        """Commit `record` after `after`, with its number, parent and time set; Fenced if that number is taken.

        All parts must be durable before. An OSError leaves open whether the record was written: an attempt that
        gets one ends, and the next finds out.
        """
        seq, parent = (after.seq + 1, after.digest) if after else (0, None)
        record = replace(record, seq=seq, parent=parent, time=datetime.now(UTC))
        content = record.to_bytes()
        target = self.location / "commits" / record_name(record.seq)
        if not target.create(content):
            raise Fenced(
                f"{target} was committed by another attempt; attempt {record.attempt} of {record.run!r} ends at step "
                f"{record.step}"
            )
        return replace(record, digest=hashlib.sha256(content).hexdigest())

    def open_attempt(
        self, run: str, recipe: str, world: int, meta: Mapping[str, Any] | None = None
    ) -> Record:
        """Commit the record of a new attempt, which fences all earlier ones.

        Finished if the run is; ConfigError if the log is of another recipe; Fenced if another attempt opened at the
        same time (OSError if one of the same driver's did), or if the driver that `meta` names (`run_id`) was
        superseded by another one: a driver that was suspended must not take the run back when its workers are
        restarted. A checkpoint that an earlier attempt still commits meanwhile is followed, not fought.
        """
        generation = uuid.uuid4().hex
        first: int | None = None
        while True:
            records = self.records()
            head = records[-1] if records else None
            if head and head.kind == "finished":
                raise Finished(f"{run!r} finished at step {head.step}; start another run under another name")
            if head and head.recipe != recipe:
                raise ConfigError(
                    f"a run must go on with the recipe that it began with, {head.recipe!r}, but got {recipe!r}; "
                    "restore the recipe or choose another run name"
                )
            drivers = [record.meta.get("run_id") for record in records if record.kind == "attempt"]
            driver = (meta or {}).get("run_id")
            if driver and driver in drivers and driver != drivers[-1]:
                raise Fenced(f"another driver has taken over {run!r}; this one ends")
            attempt = max((record.attempt for record in records), default=0) + 1
            if first is not None and attempt != first:
                told = f"attempt {attempt - 1} of {run!r} was opened at the same time"
                if driver and driver in drivers:
                    # One of the two hung, and only the driver knows which: it starts the group of the living one anew.
                    # Fenced would end the run, and to try on here might fence the living one.
                    raise OSError(f"{told} by another worker of the same driver")
                raise Fenced(f"{told}; this one ends")
            first = attempt
            saved = next((record for record in reversed(records) if record.kind != "attempt"), None)
            opened = Record(
                run=run,
                seq=0,
                parent=None,
                base=saved.seq if saved else NO_BASE,
                attempt=attempt,
                generation=generation,
                kind="attempt",
                step=saved.step if saved else 0,
                tokens=saved.tokens if saved else 0,
                time=datetime.now(UTC),
                world=world,
                recipe=recipe,
                meta=dict(meta or {}),
            )
            try:
                return self.append(head, opened)
            except Fenced:
                continue
