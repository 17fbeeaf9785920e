"""What to do while a study's store does not answer: what is computed waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from froude.config import ConfigError

OUTAGE_SECONDS = 300.0
PAUSES_SECONDS = (1.0, 2.0, 4.0, 8.0)  # between attempts; the last one from then on

#: An answer, so that asking again helps nobody; keys that a server refuses are among them (`s3.Refused`).
ANSWERS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
T = TypeVar("T")


def outage_in(error: Exception) -> OSError | None:
    """What a store raised that did not answer, or failed, in the ConfigError that `store.reported` puts around it, too.

    None for anything else.
    """
    cause = error.__cause__ if isinstance(error, ConfigError) else error
    return cause if isinstance(cause, OSError) and not isinstance(cause, ANSWERS) else None


def through_outage(task: Callable[[], T], tick: Callable[[], None] = lambda: None) -> T:
    """What the task returns, which is tried again for OUTAGE_SECONDS where a store does not answer, or fails.

    It must be one that can be done twice. `tick` is called after each pause, and may raise to end it.
    """
    until, attempt = time.monotonic() + OUTAGE_SECONDS, 0
    while True:
        try:
            return task()
        except (OSError, ConfigError) as error:
            if outage_in(error) is None or time.monotonic() > until:
                raise
        time.sleep(PAUSES_SECONDS[min(attempt, len(PAUSES_SECONDS) - 1)])
        attempt += 1
        tick()
