"""The most bytes that tensors have held at once in this process, seen from below: a mode that every operation passes.

torch.profiler counts the same on one thread; what gloo's threads free it does not see.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Inside, follows the storage of each tensor that an operation is given or gives, until it is freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak: int = 0
        self._known: int = 0
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in tree_leaves((args, kwargs, found)):
            if isinstance(each, torch.Tensor):
                self._see(each)
        if self._known > self.peak:
            self._sweep()
            self.peak = max(self.peak, self._known)
        return found

    def _see(self, tensor: torch.Tensor) -> None:
        tensor = getattr(
            tensor, "_local_tensor", tensor
        )  # of a DTensor this worker's part is what takes memory
        if tensor.device.type == "meta":
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        before = self._storages.get(key)
        if before is None or before[0].expired():
            self._storages[key] = StorageWeakRef(storage), 0
        reference, counted = self._storages[key]
        if counted != storage.nbytes():  # FSDP2 frees weights by resizing their storage
            self._storages[key] = reference, storage.nbytes()
            self._known += storage.nbytes() - (before[1] if before else 0)
        elif before is not None and before[0] is not reference:
            self._known -= before[1]

    def _sweep(self) -> None:
        """Forget what has been freed since, and count the rest anew: a storage may have been resized out of sight."""
        self._storages = {key: held for key, held in self._storages.items() if not held[0].expired()}
        self._known = 0
        for key, (reference, _) in self._storages.items():
            storage: Any = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            size = storage.nbytes() if storage is not None else 0
            self._storages[key] = reference, size
            self._known += size
