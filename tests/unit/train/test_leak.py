"""Validation data in the training data are found, wherever they lie there."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from shard_writers import megatron

from froude.config import Run
from froude.train import api
from froude.train.api import Source
from froude.train.data import leak
from froude.train.data.leak import leaked, of_documents, of_windows, shares


class Text:
    """A source of random tokens, with some of the held-out windows put into it."""

    def __init__(self, held: NDArray[np.int64], copied: int, *, shift: int, windows: int = 2000) -> None:
        context = held.shape[1]
        stream = np.random.default_rng(1).integers(0, 256, windows * context + 1)
        places = np.arange(copied) * (windows // max(copied, 1)) * context + shift
        for row, place in zip(held, places, strict=False):
            stream[place : place + context] = row
        self.rows = np.lib.stride_tricks.sliding_window_view(stream, context + 1)[::context]
        self.length, self.sha256 = len(self.rows), hashlib.sha256(stream.tobytes()).hexdigest()

    def read(self, first: int, n: int) -> NDArray[np.int64]:
        return self.rows[first : first + n]


def share(source: Source, held: NDArray[np.int64]) -> float:
    (found,) = shares(source, held.shape[1], [of_windows(held)])
    return found


def share_of_documents(run: Run) -> float:
    train, held = (api.build_source(run, split) for split in ("train", "validation"))
    (found,) = shares(train, run.model.context, documents=[of_documents(held, run.model.context)])
    return found


HELD = np.random.default_rng(0).integers(0, 256, (100, 32))


@pytest.mark.parametrize("copied", [0, 1, 40, 100])
@pytest.mark.parametrize("shift", [0, 13])
def test_copies_are_counted_at_any_offset(copied: int, shift: int) -> None:
    assert share(Text(HELD, copied, shift=shift), HELD) == pytest.approx(copied / 100)


def test_of_a_long_text_a_part_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leak, "SEARCHED", 2000 * 8)
    monkeypatch.setattr(leak, "PIECE", 1000)
    assert share(Text(HELD, 100, shift=5), HELD) == pytest.approx(1, abs=0.45)
    assert share(Text(HELD, 0, shift=5), HELD) == 0


@pytest.mark.parametrize("windows", [2, 31, 33, 34, 100])
def test_a_text_that_is_searched_whole_is_searched_once(
    windows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leak, "PIECE", 1000)  # 31 windows
    pieces = leak._pieces(Text(HELD, 0, shift=0, windows=windows), HELD.shape[1])
    assert [each for first, n in pieces for each in range(first, first + n)] == list(range(windows))


def test_the_embedded_corpus_holds_its_validation_data_out() -> None:
    """But for verses that come twice."""
    assert leaked(Run(name="x", batch=768, slots=12, tokens=7680)) == pytest.approx(9 / 768)


CHANCE = np.random.default_rng(2)
FRESH = [CHANCE.integers(0, 1000, n).tolist() for n in range(3, 60)]


def named(place: Path, train: list[list[int]], held: list[list[int]]) -> Run:
    """A run on two shards, validated on another; most of their documents are shorter than its windows."""
    for name, documents in (("a", train[::2]), ("b", train[1::2]), ("held", held)):
        megatron(place / name, documents)
    data = {
        "path": str(place),
        "options": {"validation": "held.bin"},
        "source": "froude.train.data.shards:Shards",
    }
    return Run(tokens=64, batch=64, model={"context": 64, "vocab": 1000}, data=data)


@pytest.mark.parametrize("piece", [1 << 18, 200])
def test_documents_of_shards_held_out_by_name_are_counted_in_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    held = [CHANCE.integers(0, 1000, 40).tolist() for _ in range(40)]
    copied = [document for i in range(0, 40, 4) for document in (FRESH[i], held[i])]
    run = named(tmp_path, [*copied, *FRESH], [*held, [1], [2]])
    found = share_of_documents(run)
    assert found == pytest.approx(0.25, abs=0.02)
    train, validation = (api.build_source(run, split) for split in ("train", "validation"))
    assert (leaked(run), share(train, validation.read(0, validation.length)[:, :-1])) == (found, 0)
    # However the text is cut into pieces: only what lies in two of them is missed.
    monkeypatch.setattr(leak, "PIECE", piece)
    assert share_of_documents(run) == pytest.approx(0.25, abs=0.1)


def test_a_document_is_another_one_with_a_token_more(tmp_path: Path) -> None:
    held = [[0] * n for n in range(30, 60)]
    run = named(tmp_path, [*FRESH, *([0] * n for n in range(60, 90)), [5, *held[0]]], held)
    assert share_of_documents(run) == 0


def test_what_is_all_over_a_long_text_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    licence, held = FRESH[20], [FRESH[20], *FRESH[30:50]]
    train = [
        each for _ in range(200) for each in (licence, licence, *CHANCE.integers(0, 1000, (2, 99)).tolist())
    ]
    run = named(tmp_path, train, held)
    monkeypatch.setattr(leak, "PIECE", 1000)
    monkeypatch.setattr(leak, "SEARCHED", 5000)
    expected = len(licence) / sum(map(len, held))
    assert share_of_documents(run) == pytest.approx(expected, rel=0.2)


def test_the_largest_share_of_several_validation_sets_counts(tmp_path: Path) -> None:
    parts = []
    for name, held in (("clean", FRESH[:25]), ("copied", FRESH[28:50])):
        (place := tmp_path / name).mkdir()
        table = named(place, FRESH[25:], held).to_dict()["data"]
        parts.append({**table, "name": name, "weight": 1})
    run = Run(tokens=64, batch=64, model={"context": 64, "vocab": 1000}, data={"parts": parts})
    assert leaked(run) > 0.9
    clean = run.replace(data={"parts": parts[:1]})
    assert leaked(clean) == 0
