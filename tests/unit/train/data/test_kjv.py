from __future__ import annotations

import hashlib
import lzma
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from froude.config import ConfigError, Run
from froude.train.api import Source, build_source
from froude.train.data import kjv

FILE = files("froude.train.data") / "kjv.txt.xz"
MakeRun = Callable[..., Run]


def test_the_text_is_the_pinned_one() -> None:
    text = kjv.load(FILE)
    assert len(text) == 4_137_850
    assert hashlib.sha256(text).hexdigest() == kjv.SHA256
    assert kjv.SHA256.startswith("b5c4940b")
    assert kjv.SHA256.endswith("fcdfae5d")
    assert text.startswith(
        b"In the beginning God created the heaven and the earth.\nAnd the earth was without form"
    )
    assert text.count(b"\n") == 31_102
    assert text.isascii()


def test_the_provenance_names_the_text() -> None:
    provenance = (files("froude.train.data") / "PROVENANCE.md").read_text()
    assert kjv.SHA256 in provenance
    assert "public domain" in provenance


def test_the_split_is_pinned() -> None:
    train, validation = kjv.streams()
    assert (len(train), len(validation)) == (3_949_434, 188_416)
    assert hashlib.sha256(validation.tobytes()).hexdigest()[:16] == "417f14326d6f920f"
    assert len(train) + len(validation) == 4_137_850


@pytest.mark.parametrize("context", [1, 64, 100, 2048])
def test_windows_are_the_stream_cut_at_multiples_of_the_context(make_run: MakeRun, context: int) -> None:
    source = kjv.KingJames(make_run({"model.context": context}), "train")
    stream = kjv.streams().train
    assert source.length == (len(stream) - 1) // context
    for i in (0, 1, source.length - 1):
        assert source.read(i, 1).tolist() == [stream[i * context : (i + 1) * context + 1].tolist()]
    assert source.read(3, 4).shape == (4, context + 1)
    assert source.read(source.length, 0).shape == (0, context + 1)


def test_it_comes_through_the_door_of_every_source(make_run: MakeRun) -> None:
    source = build_source(make_run({"data.sha256": kjv.SHA256}), "validation")
    assert isinstance(source, Source)
    assert source.length >= 768
    assert source.sha256 == kjv.SHA256


@pytest.mark.parametrize("first, n", [(-1, 1), (0, -1), (61_709, 1), (0, 61_710)])
def test_reading_outside_the_source_is_an_error(make_run: MakeRun, first: int, n: int) -> None:
    source = kjv.KingJames(make_run(), "train")
    assert source.length == 61_709
    with pytest.raises(ValueError, match=rf"first={first}, n={n}"):
        source.read(first, n)


def _flip(packed: bytes) -> bytes:
    middle = len(packed) // 2
    return packed[:middle] + bytes([packed[middle] ^ 1]) + packed[middle + 1 :]


@pytest.mark.parametrize(
    "damage",
    [_flip, lambda packed: packed[:-100], lambda packed: b"", lambda packed: lzma.compress(b"another text")],
    ids=["bit flipped", "cut short", "emptied", "another text"],
)
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "kjv.txt.xz"
    path.write_bytes(damage(FILE.read_bytes()))
    with pytest.raises(ConfigError, match="reinstall froude") as caught:
        kjv.load(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reinstall froude"):
        kjv.load(tmp_path / "absent.xz")


@pytest.mark.parametrize(
    "changes, match",
    [
        ({"model.vocab": 255}, r"`model.vocab` must be at least 256 for bytes, but got 255"),
        ({"data.sha256": "0" * 64}, r"`data.sha256` must be the SHA-256 of the King James Bible"),
        ({"data.path": "my.txt"}, r"`data.path` must be empty .*TextFile"),
        ({"data.options": {"length": 3}}, r"unknown key `data.options.length` of KingJames; known: none"),
        ({"model.context": 200_000}, r"the validation split .* 200001 bytes, but holds 188416"),
    ],
)
def test_a_run_that_does_not_fit_is_an_error(
    make_run: MakeRun, changes: dict[str, object], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        kjv.KingJames(make_run(changes), "validation")


def test_there_are_two_splits(make_run: MakeRun) -> None:
    with pytest.raises(ConfigError, match="'test'"):
        kjv.KingJames(make_run(), "test")  # type: ignore[arg-type]
