"""Local files that are whole and durable once they have their name, and folders that know of them."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

TEMPORARY = ".tmp"
#: What file systems without hard links answer to one.
NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)


@contextlib.contextmanager
def temporary(path: Path, data: bytes | None = None) -> Iterator[Path]:
    """A hidden file next to the given one, which holds the data; its folder is made, and it is gone on leaving."""
    folder = path.parent
    missing = [folder, *folder.parents]
    missing = missing[: next(i for i, parent in enumerate(missing) if parent.is_dir())]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_folder(made.parent)
    hidden = folder / f".{path.name[:100]}.{uuid.uuid4().hex}{TEMPORARY}"
    try:
        if data is not None:
            with open(hidden, "wb") as sink:
                sink.write(data)
                sink.flush()
                os.fsync(sink.fileno())
        yield hidden
    finally:
        hidden.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
