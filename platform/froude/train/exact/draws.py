"""Random numbers that depend on nothing but what they are for."""

from __future__ import annotations

import hashlib

import torch


def generator(*key: object) -> torch.Generator:
    """A generator on the CPU for this key alone, such as (seed, name), so that neither order nor rank matters."""
    digest = hashlib.blake2b(":".join(map(str, key)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
