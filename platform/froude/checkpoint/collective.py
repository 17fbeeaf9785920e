"""The few collectives of a run's store, with errors that reach every rank instead of leaving some waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa
import torch.distributed as dist

from froude.checkpoint.commit import Fenced, Finished
from froude.checkpoint.parts import Corrupt
from froude.config import ConfigError
from froude.runlog import BrokenLog

T = TypeVar("T")
_KNOWN: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (BrokenLog, ConfigError, Corrupt, Fenced, Finished, ValueError, TypeError)
}
#: What storage and its inputs can raise; other exceptions are bugs and end their rank.
EXPECTED = (OSError, ValueError, TypeError, Corrupt, Fenced, Finished, pa.ArrowException)


def rank_and_world() -> tuple[int, int]:
    """Of the default process group; (0, 1) without one."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _raise(error: Exception | None, name: str, text: str) -> None:
    if error is not None:
        raise error
    raise _KNOWN.get(name, OSError)(text)


def on_rank_0(work: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """The result of `work` on rank 0, on every rank; so is its error. `group` has all ranks (None: the default one)."""
    rank, world = rank_and_world()
    if world == 1:
        return work()
    outcome: list[Any] = [None]
    error: Exception | None = None
    if rank == 0:
        try:
            outcome = [("", work())]
        except EXPECTED as caught:
            error, outcome = caught, [(type(caught).__name__, str(caught))]
    dist.broadcast_object_list(outcome, src=0, group=group)
    name, value = outcome[0]
    if name:
        _raise(error, name, value)
    return value  # type: ignore[no-any-return]


def on_every_rank(work: Callable[[], T], group: dist.ProcessGroup | None = None) -> list[T]:
    """Results of `work` of all ranks, by rank; if it fails on any, every rank raises. `group` as above."""
    _, world = rank_and_world()
    if world == 1:
        return [work()]
    error: Exception | None = None
    try:
        mine: tuple[str, Any] = ("", work())
    except EXPECTED as caught:
        error, mine = caught, (type(caught).__name__, str(caught))
    outcomes: list[Any] = [None] * world
    dist.all_gather_object(outcomes, mine, group=group)
    for rank, (name, text) in enumerate(outcomes):
        if name:
            _raise(error, name, f"on rank {rank}: {text}")
    return [value for _, value in outcomes]
