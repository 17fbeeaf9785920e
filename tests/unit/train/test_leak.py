"""Validation data in the training data are found, wherever they lie there."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from numpy.typing import NDArray

from froude.config import Run
from froude.train.data import leak
from froude.train.data.leak import leaked, share


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


def test_the_embedded_corpus_holds_its_validation_data_out() -> None:
    """But for verses that come twice."""
    assert leaked(Run(name="x", batch=768, slots=12, tokens=7680)) == pytest.approx(9 / 768)
