"""One hash for the content of many files: whole where they are small, by sizes and samples where they are terabytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

#: Up to this many bytes in all are hashed whole; of more, BLOCKS blocks per file, first and last among them.
WHOLE, BLOCK, BLOCKS = 1 << 32, 1 << 20, 64


def content_sha256(files: Iterable[str | os.PathLike[str]], *, whole: int = WHOLE) -> str:
    """SHA-256 (64 hex digits) of local files in this order, wherever they lie and whatever they are called.

    Of more than `whole` bytes in all it is that of a manifest: each file's size, and the hash of BLOCKS blocks spread
    evenly over it. That detects another corpus, another version or a truncated file, but not an edit between the
    samples. OSError for a file that can't be read.
    """
    paths = [os.fspath(file) for file in files]
    sizes = [os.path.getsize(path) for path in paths]
    sampled = sum(sizes) > whole
    total = hashlib.sha256(b"sampled" if sampled else b"whole")
    for path, size in zip(paths, sizes, strict=True):
        with open(path, "rb") as file:
            if sampled and size > BLOCKS * BLOCK:
                part = hashlib.sha256()
                for i in range(BLOCKS):
                    file.seek(i * (size - BLOCK) // (BLOCKS - 1))
                    part.update(file.read(BLOCK))
            else:
                part = hashlib.file_digest(file, "sha256")
        total.update(size.to_bytes(8, "little") + part.digest())
    return total.hexdigest()
