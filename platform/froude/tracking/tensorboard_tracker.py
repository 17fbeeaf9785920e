"""TensorBoard: one folder a run, one file of events for each command that trained it.

Its format holds numbers in single precision.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import text

from froude.promote.imported_runs.tensorboard_files import FILES, events
from froude.promote.imported_runs.wandb_files import flat
from froude.tracking.tracker import Point, Subject

ENDED = "froude-ended"  # an empty file beside those of a run that has ended


class TensorBoard:
    """Folders `STUDY/RUN-key` below a folder; a point is one record, so that it is there whole or not at all."""

    def __init__(self, place: str) -> None:
        self.place = Path(place)

    def ended(self, study: str) -> set[str]:
        return {file.read_text() for file in (self.place / study).glob(f"*/{ENDED}")}

    def open(self, subject: Subject) -> int:
        self.key = subject.key
        # Whole, for a revision is another run: its key differs in its end only.
        self.folder = self.place / subject.study / f"{subject.name}-{subject.key}"
        self.folder.mkdir(parents=True, exist_ok=True)
        before = sorted(self.folder.glob(FILES))
        sent = (event.step for file in before for event in events(file) if event.HasField("summary"))
        last = max(sent, default=0)
        number = len(before)
        self.writer = RecordWriter(str(self.folder / f"events.out.tfevents.{int(time.time())}.{number:04d}"))
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if before:  # of a record that was cut short TensorBoard shows nothing, and of one after it neither
            started = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=time.time(), step=last + 1, session_log=started))
        else:
            about = tomli_w.dumps({**flat({"run": subject.config}), **subject.tags})
            said = text("run", f"```\n{about}```")
            self._write(Event(wall_time=time.time(), summary=said))
        self.writer.flush()
        return int(last)

    def send(self, points: Sequence[Point]) -> None:
        for point in points:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
            if point.events:
                values += text("events", point.events).value
            self._write(
                Event(wall_time=point.time.timestamp(), step=point.step, summary=Summary(value=values))
            )
        self.writer.flush()

    def close(self, status: str, summary: Mapping[str, Any]) -> None:
        if status:
            said = tomli_w.dumps({**summary, "status": status})
            self._write(Event(wall_time=time.time(), summary=text("end", f"```\n{said}```")))
        self.writer.close()
        if status:
            (self.folder / ENDED).write_text(self.key)

    def _write(self, event: Event) -> None:
        self.writer.write(event.SerializeToString())
