"""A user's UTF-8 text file as bytes."""

from __future__ import annotations

import codecs
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from froude.config import ConfigError
from froude.train.data import windows
from froude.train.data.split import Split, divide

if TYPE_CHECKING:
    from froude.config import Run

#: Bytes decoded at once when a file is checked, so that the check needs little memory besides the file's own.
PIECE = 1 << 24


def load(path: str) -> bytes:
    """The file's bytes; ConfigError when it is not named, unreadable, empty or not UTF-8."""
    if not path:
        raise ConfigError(
            "`data.path` must name a UTF-8 text file for TextFile, but is empty; set `data.path`, "
            'or train on the embedded corpus with `data.source` = "froude.train.data.kjv:KingJames"'
        )
    try:
        file = Path(path).expanduser()
        if file.exists() and not (file.is_file() or file.is_dir()):  # such as /dev/zero, which never ends
            raise ValueError("it is a device or a pipe")
        data = file.read_bytes()
    except (OSError, ValueError, RuntimeError) as error:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(
            f"`data.path` must be a readable file on every worker's host, but {path!r}: {cause}; "
            "correct the path or the permissions"
        ) from None
    if not data:
        raise ConfigError(f"`data.path` must not be empty, but {path!r} has 0 bytes; name a file with text")
    _check_utf8(data, path)
    return data


def _check_utf8(data: bytes, path: str) -> None:
    start = 0
    while start < len(data):
        piece = memoryview(data)[start : start + PIECE]
        try:
            _, used = codecs.utf_8_decode(piece, "strict", start + len(piece) == len(data))
        except UnicodeDecodeError as error:
            at = start + error.start
            raise ConfigError(
                f"`data.path` must be UTF-8 text, but {path!r} has byte 0x{data[at]:02x} at offset {at} "
                f"({error.reason}); convert it, e.g. iconv -f latin1 -t utf-8"
            ) from None
        start += used


class TextFile(windows.Windows):
    """The UTF-8 file at `data.path` as bytes (vocabulary 256); `data.sha256`, when set, must be the file's.

    No options; ConfigError for a file that cannot be used, one too short for its split and the context,
    and a `model.vocab` below 256.
    """

    bytes_per_token = 1.0

    def __init__(self, run: Run, split: Split) -> None:
        windows.check_split(split)
        windows.options(run, {}, "TextFile")
        windows.check_vocab(run, 256, "bytes")
        path = run.data.path
        data = load(path)
        sha256 = hashlib.sha256(data).hexdigest()
        windows.check_sha256(run, sha256, repr(path))
        stream = getattr(divide(data), split)
        super().__init__(windows.cut(stream, run.model.context, split=split, corpus=repr(path)), sha256)
