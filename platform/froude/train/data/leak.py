"""Whether what a model is validated on is also in what it is trained on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from froude.config import Run
from froude.train import api
from froude.train.api import Source
from froude.train.data.documents import told_apart
from froude.train.data.order import mix, validation_windows

Hashes = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

#: Tokens of a split that are searched, in pieces; of a larger one, pieces spread evenly over it.
SEARCHED, PIECE = 1 << 22, 1 << 18
_BASE = 0x9E3779B97F4A7C15  # odd, so it has an inverse modulo 2^64
_known: dict[str, float] = {}


@dataclass
class Sought:
    """Different hashes, rising, that are looked for in a text; the weight of each, and how many pieces had it."""

    hashes: Hashes
    weights: npt.NDArray[Any]

    def __post_init__(self) -> None:
        self._seen = np.zeros(self.hashes.size, dtype=np.int64)

    def see(self, hashes: Hashes) -> None:
        """One more piece, with these hashes."""
        if self.hashes.size:
            places = np.minimum(np.searchsorted(self.hashes, hashes), self.hashes.size - 1)
            self._seen[np.unique(places[self.hashes[places] == hashes])] += 1

    def share(self, searched: float) -> float:
        """Share of the weights that were seen, scaled up from the share of the text that was searched.

        What is in several pieces is all over the text, as a licence may be: it is itself, no sample of others.
        """
        if not self.hashes.size:
            return 0.0
        once, more = (self.weights[some].sum() for some in (self._seen == 1, self._seen > 1))
        return float(min(1.0, (once / searched + more) / self.weights.sum()))


def leaked(run: Run) -> float:
    """Share (0 to 1) of what the run is validated on that is also in its training split; of several sets the largest.

    Of a set's windows, those whose inputs occur there at any offset; where both tell documents apart, also of its
    whole documents, in tokens, those equal to one there, and the larger share of the two. Consecutive windows of a
    source count as consecutive text. Of a split of more than SEARCHED tokens a part is searched, and the share scaled.
    """
    key = json.dumps([run.to_dict()["data"], run.model.context, run.model.vocab, run.eval_windows])
    if key not in _known:
        train, held = (api.build_source(run, split) for split in ("train", "validation"))
        sets = [held, *api.validation_sets(run, held).values()]
        windows = [of_windows(validation_windows(each, run.eval_windows)[:, :-1]) for each in sets]
        documents = [of_documents(each, run.model.context) for each in sets]
        _known[key] = max(shares(train, run.model.context, windows, documents))
    return _known[key]


def of_windows(held: Ints) -> Sought:
    """The rows of `held` [n, context]; equal ones count once."""
    wanted = np.unique(np.concatenate([_rolling(row, held.shape[1]) for row in held]))
    return Sought(wanted, np.ones(wanted.size))


def of_documents(held: Source, context: int) -> Sought:
    """The whole documents of a source, by their tokens; none where it does not tell them apart."""
    hashes, lengths = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for first, windows in _pieces(held, context) if told_apart(held) else ():
        found, tokens = _whole_documents(held, first, windows, _text(held.read(first, windows)))
        hashes.append(found)
        lengths.append(tokens)
    wanted, places, counts = np.unique(np.concatenate(hashes), return_index=True, return_counts=True)
    return Sought(wanted, np.concatenate(lengths)[places] * counts)


def shares(
    source: Source, context: int, windows: Sequence[Sought] = (), documents: Sequence[Sought] = ()
) -> list[float]:
    """Of all that is sought the share that a source has, estimated from what of it is searched, in one pass."""
    pieces = _pieces(source, context)
    told = told_apart(source) and any(each.hashes.size for each in documents)
    for first, count in pieces:
        text = _text(source.read(first, count))
        hashes = _rolling(text, context)
        for each in windows:
            each.see(hashes)
        if told:
            hashes, _ = _whole_documents(source, first, count, text)
            for each in documents:
                each.see(hashes)
    searched = min(1.0, sum(count for _, count in pieces) / source.length)
    return [each.share(searched) for each in (*windows, *documents)]


def _pieces(source: Source, context: int) -> list[tuple[int, int]]:
    """First window and number of windows of what is searched of a source; no window is in two pieces."""
    length = int(source.length)
    each = min(length, max(2, PIECE // context))
    most, needed = max(1, SEARCHED // (each * context)), -(-length // each)
    if needed <= most:
        return [(first, min(each, length - first)) for first in range(0, length, each)]
    return [(i * length // most, each) for i in range(most)]


def _text(rows: npt.NDArray[Any]) -> Ints:
    """Windows [n, context + 1] that follow one another as one row."""
    return np.append(rows[:, :-1].reshape(-1), rows[-1, -1]).astype(np.int64)


def _whole_documents(source: Source, first: int, windows: int, text: Ints) -> tuple[Hashes, Ints]:
    """Hashes of the documents that lie in a text from their first token to their last, and their tokens."""
    numbers = _text(source.documents(first, windows))  # type: ignore[attr-defined]
    edges = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    # Where a piece begins a document may go on that began before it.
    starts = edges if first else np.append(0, edges)
    lengths = starts[1:] - starts[:-1]
    sums = _sums(text)
    hashes = (sums[starts[1:]] - sums[starts[:-1]]) * _powers(text.size, inverse=True)[starts[:-1]]
    return hashes + mix(lengths.astype(np.uint64)), lengths


def _rolling(tokens: Ints, length: int) -> Hashes:
    """A 64-bit polynomial hash of every stretch of `length` tokens (Karp and Rabin 1987, by prefix sums)."""
    sums = _sums(tokens)
    return np.asarray((sums[length:] - sums[:-length]) * _powers(sums.size - length, inverse=True))


def _sums(tokens: Ints) -> Hashes:
    each = mix(tokens.astype(np.uint64)) * _powers(tokens.size)
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(each)])


def _powers(count: int, *, inverse: bool = False) -> Hashes:
    base = pow(_BASE, -1, 1 << 64) if inverse else _BASE
    return np.concatenate([np.ones(1, np.uint64), np.cumprod(np.full(count - 1, base, dtype=np.uint64))])
