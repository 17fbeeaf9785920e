"""One of several processes that compete for the next number of a log.

A line with a run's directory makes it read the log's head and answer `ready`; the next line makes it commit after that
head, and answer with its record's digest, or with an empty line if it was fenced.
"""

from __future__ import annotations

import sys
import uuid
from datetime import UTC, datetime

from froude.checkpoint.commit import CommitLog, Fenced
from froude.runlog import NO_BASE, Record
from froude.store import Location


def commit_after_head(place: Location, number: int) -> str:
    log = CommitLog(place)
    record = Record(
        run="large",
        seq=0,
        parent=None,
        base=NO_BASE,
        attempt=1,
        generation=uuid.uuid4().hex,
        kind="checkpoint",
        step=number,
        tokens=number,
        time=datetime.now(UTC),
        world=1,
        recipe="recipe",
    )
    head = log.head()
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        return log.append(head, record).digest
    except Fenced:
        return ""


for number, line in enumerate(sys.stdin):
    print(commit_after_head(Location.parse(line.strip()), number), flush=True)
