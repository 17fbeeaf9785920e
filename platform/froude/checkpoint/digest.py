"""One hash of a run's parameters, the same however their checkpoint is sharded."""

from __future__ import annotations

import hashlib

import torch

from froude.checkpoint.manifest import Manifest
from froude.checkpoint.parts import read_part
from froude.checkpoint.run_store import load_state
from froude.runlog import Record
from froude.store import Location


def parameters_digest(run: Location, record: Record) -> str:
    """SHA-256 over name, dtype, shape and bytes of every parameter that `record` commits, in order of names.

    `run` is the run's directory. Corrupt if a part is missing or damaged.
    """
    (part,) = (part for part in record.parts if part.kind == "manifest")
    tensors = Manifest.from_bytes(read_part(run, part)).tensors
    state = {name: torch.zeros(shape, dtype=dtype) for name, (dtype, shape) in tensors.items()}
    load_state(run, record.parts, state)
    digest = hashlib.sha256()
    for name in sorted(name for name in state if name.startswith("model.")):
        tensor = state[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
