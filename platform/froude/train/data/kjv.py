"""The King James Bible as bytes, embedded in the package; origin and licence in PROVENANCE.md."""

from __future__ import annotations

import functools
import hashlib
import lzma
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from froude.config import ConfigError
from froude.train.data import windows
from froude.train.data.split import Split, Streams, divide

if TYPE_CHECKING:
    from froude.config import Run

NAME = "the King James Bible"
SHA256 = "b5c4940bcfeee072c0935b5200d0f9d88a00a0199cb0961d16133458fcdfae5d"


def load(file: Traversable) -> bytes:
    """The text, 4,137,850 bytes; ConfigError when the file is missing, damaged or not the pinned text."""
    try:
        text = lzma.decompress(file.read_bytes())
    except (OSError, lzma.LZMAError) as error:
        raise ConfigError(
            f"the embedded corpus must be a whole xz file, but reading {file} gave: {error}; reinstall froude"
        ) from None
    found = hashlib.sha256(text).hexdigest()
    if found != SHA256:
        raise ConfigError(
            f"the embedded corpus must have SHA-256 {SHA256}, but {file} unpacks to {found}; reinstall froude"
        )
    return text


@functools.cache
def streams() -> Streams:
    """Both splits, unpacked once a process: a worker that runs trial after trial needs them each time."""
    return divide(load(files("froude.train.data") / "kjv.txt.xz"))


class KingJames(windows.Windows):
    """The King James Bible, one verse a line, as bytes (vocabulary 256): 3.9 MB to train, 0.2 MB held out.

    No options; ConfigError when `model.vocab`, `data.path`, `data.sha256` or `data.options` do not fit.
    """

    bytes_per_token = 1.0

    def __init__(self, run: Run, split: Split) -> None:
        windows.check_split(split)
        windows.options(run, {}, "KingJames")
        windows.check_no_path(run, "KingJames")
        windows.check_vocab(run, 256, "bytes")
        windows.check_sha256(run, SHA256, NAME)
        stream = getattr(streams(), split)
        super().__init__(windows.cut(stream, run.model.context, split=split, corpus=NAME), SHA256)
