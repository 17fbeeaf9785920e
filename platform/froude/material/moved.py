"""Files that a run names and that lie elsewhere by now: a cluster unpacks a job into another folder each time."""

from __future__ import annotations

import hashlib
import os
import sys


def lies_at(path: str, sha256: str) -> str:
    """The path; where nothing is there, that of the file of its name where this process works, if it has this hash."""
    if not sha256 or "://" in path or os.path.exists(path):
        return path
    for folder in dict.fromkeys([os.getcwd(), *sys.path[:1]]):
        near = os.path.join(folder or ".", os.path.basename(path))
        if os.path.isfile(near):
            with open(near, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() == sha256:
                    return os.path.abspath(near)
    return path
