"""What to do while a study's store does not answer: what is computed waits for it."""

from __future__ import annotations

import errno
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
    """The error as an OSError where a store did not answer, or failed; None for anything else.

    `store.reported` puts a ConfigError around what a store raises; its text stays.
    """
    cause = error.__cause__ if isinstance(error, ConfigError) else error
    if not isinstance(cause, OSError) or isinstance(cause, ANSWERS):
        return None
    return OSError(cause.errno or errno.EIO, str(error))


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
