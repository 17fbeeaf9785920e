"""Which checkpoints a run keeps; what it gives up is named in the log first, and deleted then."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from froude.runlog import Record, expired
from froude.store import Location


@dataclass(frozen=True)
class Keep:
    """Keep the newest `last` checkpoints (0: all of them) and, for good, every `every`-th one (0: none)."""

    last: int = 0
    every: int = 0

    def expiring(self, records: Sequence[Record]) -> list[int]:
        """The numbers of those that are given up once one more is committed after `records`."""
        if not self.last:
            return []
        gone = expired(records)
        saved = [record for record in records if record.kind != "attempt"]
        kept = {record.seq for i, record in enumerate(saved, 1) if self.every and i % self.every == 0}
        living = [record.seq for record in saved if record.seq not in gone]
        newest = living[-(self.last - 1) :] if self.last > 1 else []
        return [seq for seq in living if seq not in newest and seq not in kept]


def delete(run: Location, records: Sequence[Record], numbers: Sequence[int]) -> None:
    """Delete the data of these checkpoints; their ledger and metrics stay."""
    for record in records:
        if record.seq in numbers:
            for part in record.parts:
                if part.kind in ("data", "manifest"):
                    with contextlib.suppress(OSError):  # what stays is swept when the next attempt begins
                        (run / part.path).delete()


def sweep(run: Location, records: Sequence[Record]) -> None:
    """Delete what no record keeps: data of expired checkpoints, and of attempts that ended before they committed it.

    `records` end with that of the present attempt: all earlier ones are fenced, so what they wrote and did not commit
    can never be.
    """
    gone, kept = expired(records), set()
    for record in records:
        if record.seq not in gone:
            kept |= {
                part.path.rpartition("/")[0] for part in record.parts if part.kind in ("data", "manifest")
            }
    latest = records[-1].generation
    for place in (run / "data").walk():
        folder = place.url[len(run.url) + 1 :].rpartition("/")[0]
        if folder not in kept and not folder.rpartition("/")[2].startswith(latest):
            with contextlib.suppress(OSError):
                place.delete()
