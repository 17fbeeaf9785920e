from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from froude.config import ConfigError, Run
from froude.train.api import build_source
from froude.train.data import text
from froude.train.data.split import BLOCK, divide

TextRun = Callable[..., Run]
SOME = ("Ein kühnes Beginnen ist halbes Gewinnen. " * 500).encode()


def test_a_file_is_its_bytes(text_run: TextRun) -> None:
    run = text_run(SOME)
    for split in ("train", "validation"):
        source = build_source(run, split)
        stream = getattr(divide(SOME), split)
        assert source.length == (len(stream) - 1) // 16
        assert source.sha256 == hashlib.sha256(SOME).hexdigest()
        rows = source.read(0, source.length)
        assert np.array_equal(rows[:, :-1].reshape(-1), stream[: source.length * 16])
        assert np.array_equal(rows[:, 1:].reshape(-1), stream[1 : source.length * 16 + 1])


def test_the_pinned_hash_is_accepted(text_run: TextRun) -> None:
    run = text_run(SOME, {"data.sha256": hashlib.sha256(SOME).hexdigest()})
    assert text.TextFile(run, "train").sha256 == run.data.sha256


def test_utf8_is_checked_across_pieces(text_run: TextRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "PIECE", 4)  # so that characters of 2 to 4 bytes straddle the pieces
    good = "aé€😀b".encode() * 1000
    assert text.TextFile(text_run(good), "train").length > 0
    with pytest.raises(ConfigError, match=r"byte 0xe9 at offset 10003 .*iconv"):
        text.TextFile(text_run(good[:10_000].ljust(10_003) + b"\xe9 " + good), "train")


@pytest.mark.parametrize(
    "data, match",
    [
        (b"", r"must not be empty, but '.*text.txt' has 0 bytes"),
        ("café".encode("latin1") * 2000, r"must be UTF-8 text, but .* byte 0xe9 at offset 3"),
        (
            SOME[:-10] + "é".encode()[:1],
            r"must be UTF-8 text, but .* byte 0xc3 at offset \d+ \(unexpected end",
        ),
        (
            b"x" * 16,
            r"the train split of .* must hold at least one window of context \+ 1 = 17 bytes, but holds 16",
        ),
        (b"x" * BLOCK, r"the train split of .* but holds 0; use a longer text or a shorter"),
    ],
    ids=["empty", "latin-1", "cut in a character", "shorter than a window", "one block"],
)
def test_an_unusable_file_is_one_clear_error(text_run: TextRun, data: bytes, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        text.TextFile(text_run(data), "train")
    assert str(caught.value).count("\n") <= 1


def test_a_text_without_a_whole_block_has_no_validation_split(text_run: TextRun) -> None:
    run = text_run(b"x" * (BLOCK - 1))
    assert text.TextFile(run, "train").length == (BLOCK - 2) // 16
    with pytest.raises(ConfigError, match=r"the validation split of .* but holds 0"):
        text.TextFile(run, "validation")


@pytest.mark.parametrize(
    "changes, match",
    [
        ({"data.path": ""}, r"`data.path` must name a UTF-8 text file"),
        ({"data.path": "/nonexistent/corpus.txt"}, r"'/nonexistent/corpus.txt': No such file"),
        ({"data.path": "."}, ": Is a directory"),
        ({"data.path": "/dev/zero"}, "'/dev/zero': it is a device or a pipe"),
        ({"data.path": "a\0b"}, r"must be a readable file .*null"),
        (
            {"data.sha256": "f" * 64},
            r"`data.sha256` must be the SHA-256 of '.*text.txt', [0-9a-f]{64}, but got f{64}",
        ),
        ({"model.vocab": 128}, r"`model.vocab` must be at least 256 for bytes, but got 128"),
        ({"data.options": {"length": 9}}, r"unknown key `data.options.length` of TextFile"),
    ],
)
def test_a_run_that_does_not_fit_is_an_error(
    text_run: TextRun, changes: dict[str, object], match: str
) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        text.TextFile(text_run(SOME, changes), "train")
    assert str(caught.value).count("\n") <= 1


def test_a_file_without_permission_is_an_error(text_run: TextRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bytes:  # root may read any file, so the refusal is made here
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ConfigError, match=r"Permission denied; correct the path or the permissions"):
        text.TextFile(text_run(SOME), "train")
