"""Whether what a model is validated on is also in what it is trained on."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt

from froude.config import Run
from froude.train import api
from froude.train.api import Source
from froude.train.data.order import mix, validation_windows

Hashes = npt.NDArray[np.uint64]

#: Tokens of the training split that are searched, in pieces; of a larger one, pieces spread evenly over it.
SEARCHED, PIECE = 1 << 22, 1 << 18
_BASE = 0x9E3779B97F4A7C15  # odd, so it has an inverse modulo 2^64
_known: dict[str, float] = {}


def leaked(run: Run) -> float:
    """Share (0 to 1) of the run's validation windows whose inputs occur, at any offset, in its training split.

    Consecutive windows of a source count as consecutive text. Of a split of more than SEARCHED tokens a part is
    searched, and the share scaled up.
    """
    key = json.dumps([run.to_dict()["data"], run.model.context, run.model.vocab, run.eval_windows])
    if key not in _known:
        held = validation_windows(api.build_source(run, "validation"), run.eval_windows)
        _known[key] = share(api.build_source(run, "train"), held[:, :-1])
    return _known[key]


def share(source: Source, held: npt.NDArray[np.int64]) -> float:
    """Share of the rows of `held` [n, context] that occur in the windows of `source`, estimated from those searched."""
    context = held.shape[1]
    wanted = np.unique(np.concatenate([_rolling(row, context) for row in held]))
    each = min(source.length, max(2, PIECE // context))
    pieces = min(max(1, SEARCHED // (each * context)), -(-source.length // each))
    found: npt.NDArray[np.bool_] = np.zeros(wanted.size, dtype=bool)
    for i in range(pieces):
        first = min(i * source.length // pieces, source.length - each)
        text = source.read(first, each)[:, :-1].astype(np.int64).reshape(-1)
        hashes = _rolling(text, context)
        places = np.minimum(np.searchsorted(wanted, hashes), wanted.size - 1)
        found[places[wanted[places] == hashes]] = True
    searched = min(1.0, pieces * each / source.length)
    return float(min(1.0, int(found.sum()) / found.size / searched))


def _rolling(tokens: npt.NDArray[np.int64], length: int) -> Hashes:
    """A 64-bit polynomial hash of every stretch of `length` tokens (Karp and Rabin 1987, by prefix sums)."""
    powers = _powers(tokens.size)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mix(tokens.astype(np.uint64)) * powers)])
    return np.asarray((sums[length:] - sums[:-length]) * _powers(sums.size - length, inverse=True))


def _powers(count: int, *, inverse: bool = False) -> Hashes:
    base = pow(_BASE, -1, 1 << 64) if inverse else _BASE
    return np.concatenate(
        [np.ones(1, np.uint64), np.cumprod(np.full(count - 1, base, dtype=np.uint64))]
    )
