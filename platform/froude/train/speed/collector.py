"""Python's garbage collector between steps only: in the middle of one it stops a worker, and with it all others."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Steps between collections: torchtitan's (2410.06511) and more often than nanochat's 5000. What a step leaves in
#: cycles stays until then; what was there before is frozen, so that a collection takes a fraction of a millisecond.
EVERY = 50


@contextmanager
def between_steps(every: int = EVERY) -> Iterator[Callable[[], None]]:
    """Inside the collector is off; what is handed out is to be called after each step, and collects now and then."""
    if not gc.isenabled():  # whoever has turned it off knows why
        yield lambda: None
        return
    gc.freeze()
    gc.disable()
    left = every

    def passed() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            gc.collect()
            left = every

    try:
        yield passed
    finally:
        gc.enable()
        gc.unfreeze()


def collect_all() -> None:
    """Collect what was frozen, too: a trainer lies in reference cycles, and another is to take its place."""
    gc.unfreeze()
    gc.collect()
