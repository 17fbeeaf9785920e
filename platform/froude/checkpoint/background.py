"""Work in the background of the training: a copy of the state that stays as it was, and a thread that writes it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch


class Staging:
    """A copy of a state in host memory; its buffers are used again, since fresh memory costs more than the copy."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def copy(self, state: dict[str, Any]) -> dict[str, torch.Tensor]:
        """The tensors' present values, sharded as they are; valid until the next call.

        Those of a GPU go to pinned memory, all at once: one copy after another, each by way of a buffer of the
        driver's, takes several times as long.
        """
        for name, tensor in state.items():
            buffer = self._buffers.get(name)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                buffer = self._buffers[name] = _like(tensor)
            _local(buffer).copy_(_local(tensor), non_blocking=True)
        if any(tensor.is_cuda for tensor in state.values()):
            torch.cuda.synchronize()
        return {name: self._buffers[name] for name in state}


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in host memory, sharded as this one; for a GPU's pinned."""
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class Background:
    """One call in a thread that never keeps its process alive."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="froude-save", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  DCP's is one too; raised by `result`, where somebody waits
            self._error = error

    def result(self) -> None:
        """Wait for the end; raises what the call raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
