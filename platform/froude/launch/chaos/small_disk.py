"""A small file system of its own for a folder, which can be filled to the last byte (Linux, root)."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

BALLAST = ".ballast"
PIECE = 1 << 20


class SmallDisk:
    """A tmpfs of `size` bytes mounted at `folder` for as long as the `with` statement lasts.

    What was written there is moved to the disk underneath at the end.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size

    def __enter__(self) -> SmallDisk:
        self.folder.mkdir(parents=True)
        options = f"size={self.size},mode=0700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "froude-chaos", str(self.folder)], check=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.free()
        copy = self.folder.with_name(f".{self.folder.name}.copy")
        shutil.copytree(self.folder, copy, symlinks=True)
        subprocess.run(["umount", str(self.folder)], check=True)
        self.folder.rmdir()
        copy.rename(self.folder)

    @property
    def ballast(self) -> Path:
        # Next to the runs' directories, where only a study's listing looks.
        return self.folder / BALLAST

    def fill(self) -> None:
        """Leave no byte free."""
        with self.ballast.open("ab", buffering=0) as file:
            for piece in (PIECE, 4096, 1):
                try:
                    while True:
                        file.write(bytes(piece))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        """Give the ballast's bytes back."""
        self.ballast.unlink(missing_ok=True)

    def full(self) -> bool:
        return os.statvfs(self.folder).f_bavail == 0
