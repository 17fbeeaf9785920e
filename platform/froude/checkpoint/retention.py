"""Which checkpoints a run keeps; what it gives up is named in the log first, and deleted then."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from queue import Empty, SimpleQueue
from threading import Thread

from froude.runlog import Record, expired, lineage
from froude.store import Location

#: A checkpoint's file: step, generation and number of the record that was to name it.
OURS = re.compile(r"data/\d{12}/[^/]+\.\d{8}/.+", re.DOTALL)
_DELETING = 16  # files at a time
UNFINISHED = timedelta(days=1)  # longer than any save; an attempt that is fenced may still be writing


@dataclass(frozen=True)
class Keep:
    """Keep the newest `last` checkpoints (0: all of them) and, for good, every `every`-th one (0: none).

    And a few further back, so that there always is one from `reach` steps ago (0: no need), if there ever was.
    """

    last: int = 0
    every: int = 0
    reach: int = 0

    def expiring(self, records: Sequence[Record], damaged: Collection[int] = ()) -> list[int]:
        """The numbers of those that are given up once one more is committed after `records`.

        `damaged` are numbers of some that could not be read, and do not count among the newest: a disk may recover.
        """
        if not self.last:
            return []
        gone = expired(records)
        saved = [record for record in records if record.kind != "attempt"]
        kept = {record.seq for i, record in enumerate(saved, 1) if self.every and i % self.every == 0}
        living = [record.seq for record in saved if record.seq not in gone]
        if self.last > 1:
            whole = [seq for seq in living if seq not in damaged]
            kept |= {*living[-(self.last - 1) :], *whole[-(self.last - 1) :]}
        if self.reach:
            kept |= self._far([record for record in lineage(records) if record.seq not in gone])
        return [seq for seq in living if seq not in kept]

    def _far(self, line: Sequence[Record]) -> set[int]:
        """Of the checkpoints of one line those a quarter of a reach apart, from the newest that lies a reach back."""
        apart: list[Record] = []
        for record in line:
            if not apart or record.step - apart[-1].step >= self.reach / 4:
                apart.append(record)
        back = [record for record in apart if record.step <= line[-1].step - self.reach]
        return {record.seq for record in apart if not back or record.step >= back[-1].step}


def delete(run: Location, records: Iterable[Record]) -> None:
    """Delete the data of these checkpoints; their ledger and metrics stay, and what is another run's by a link."""
    parts = [part for record in records for part in record.parts if part.kind in ("data", "manifest")]
    _delete(run / part.path for part in parts if is_itself(run, part.path))


def discard(run: Location, paths: Iterable[str], folder: str) -> None:
    """Delete what no record will name, and a folder's files: the next attempt's need room.

    A bucket has room, and is swept by that one.
    """
    if run.is_local:
        _delete([*(run / path for path in paths), *(run / folder).walk()])


def _delete(places: Iterable[Location]) -> None:
    """Several at a time; not every store has S3's request for many. What stays is swept by later attempts."""
    waiting = SimpleQueue[Location]()
    for place in places:
        waiting.put(place)

    def work() -> None:
        with contextlib.suppress(Empty):
            while True:
                place = waiting.get_nowait()
                with contextlib.suppress(OSError):
                    place.delete()

    # Not a pool's: its threads would keep the process alive while a store hangs.
    threads = [Thread(target=work, daemon=True) for _ in range(min(_DELETING, waiting.qsize()))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def is_itself(place: Location, path: str) -> bool:
    """Whether no link leads from the place to this file; a linked one is another run's, or was committed elsewhere."""
    return not place.is_local or (place / path).path.resolve() == place.path.resolve() / path


def sweep(run: Location, found: Sequence[Location], records: Sequence[Record]) -> None:
    """Delete what no record keeps: data of expired checkpoints, and of attempts that ended before they committed it.

    `found` are the files that lay in `data/` before the present attempt was committed, `records` the log since then:
    whoever wrote what is found is fenced, so what it did not commit can never be. A later attempt's are not in it.
    """
    gone = expired(records)
    kept = {
        part.path
        for record in records
        if record.seq not in gone
        for part in record.parts
        if part.kind in ("data", "manifest")
    }
    paths = {place: place.url[len(run.url) + 1 :] for place in found}
    ours = {place: path for place, path in paths.items() if path not in kept and OURS.fullmatch(path)}
    _delete(place for place, path in ours.items() if is_itself(run, path))
    with contextlib.suppress(OSError):  # some may write to a bucket without the right to list its uploads
        run.discard_unfinished(datetime.now(UTC) - UNFINISHED)
