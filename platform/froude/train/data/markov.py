"""A synthetic source whose entropy is known: an oracle for the floor of the loss."""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from froude.config import ConfigError, Scalar
from froude.train.data import windows
from froude.train.data.split import Split

if TYPE_CHECKING:
    from froude.config import Run

DEFAULTS: dict[str, Scalar] = {
    "vocab": 64,
    "order": 2,
    "length": 1 << 20,
    "concentration": 0.164,
    "seed": 0,
}
#: Validation tokens per training token: the same 5% as of a text.
HELD_OUT = 0.05
#: Share of the uniform distribution in every row: makes the chain ergodic: one stationary distribution.
UNIFORM = 0.01
#: Probabilities are whole multiples of 1 / SCALE, so that drawing and entropy use exactly the same chain.
SCALE = 1 << 32
MAX_TABLE = 1 << 22
STREAMS = {"table": 0, "train": 1, "validation": 2}


class Chain(NamedTuple):
    """An order-k chain over V tokens; a state is its last k tokens, the oldest the most significant digit.

    `edges` [V**k, V] uint64: cumulative probabilities times SCALE; `stationary` [V**k];
    `entropies` [k]: nats per token given the last 1 … k tokens, in the stationary distribution.
    """

    edges: npt.NDArray[np.uint64]
    stationary: npt.NDArray[np.float64]
    entropies: npt.NDArray[np.float64]


def _philox(seed: int, stream: str) -> np.random.Philox:
    return np.random.Philox(key=np.array([seed, STREAMS[stream]], dtype=np.uint64))


def _stationary(probabilities: npt.NDArray[np.float64], vocab: int) -> npt.NDArray[np.float64]:
    """Power iteration to 1e-13 in L1; UNIFORM bounds the number of rounds."""
    states = len(probabilities)
    now = np.full(states, 1 / states)
    for _ in range(100_000):
        joint = now[:, None] * probabilities
        new: npt.NDArray[np.float64] = joint.reshape(vocab, states // vocab, vocab).sum(0).reshape(-1)
        new /= new.sum()
        change = np.abs(new - now).sum()
        now = new
        if change < 1e-13:
            return now
    raise AssertionError(f"the stationary distribution did not converge: last change {change}")


@functools.lru_cache(maxsize=4)
def chain(vocab: int, order: int, concentration: float, seed: int) -> Chain:
    """The chain whose rows are drawn from a symmetric Dirichlet distribution."""
    rng = np.random.Generator(_philox(seed, "table"))
    weights = np.maximum(rng.standard_gamma(concentration, (vocab**order, vocab)), np.finfo(np.float64).tiny)
    rows = (1 - UNIFORM) * weights / weights.sum(1, keepdims=True) + UNIFORM / vocab
    edges = np.rint(np.cumsum(rows, 1) * SCALE).astype(np.uint64)
    edges[:, -1] = SCALE
    probabilities = np.diff(edges, axis=1, prepend=np.uint64(0)) / SCALE
    stationary = _stationary(probabilities, vocab)
    joint = stationary[:, None] * probabilities
    entropies = []
    for known in range(1, order + 1):
        pair = joint.reshape(vocab ** (order - known), vocab**known, vocab).sum(0)
        entropies.append(-(pair * np.log(pair / pair.sum(1, keepdims=True))).sum())
    return Chain(edges, stationary, np.array(entropies))


def draw(chain: Chain, bits: np.random.Philox, count: int, tokens: int) -> npt.NDArray[Any]:
    """`count` independent runs of the chain, each started in its stationary distribution, [count, tokens].

    All runs advance together, one token a round; it takes raw Philox words, whose values numpy guarantees.
    """
    states, vocab = chain.edges.shape
    order = len(chain.entropies)
    # One sorted array for all rows: row s spans [s * SCALE, (s + 1) * SCALE], so one search draws from any.
    base = (np.arange(states, dtype=np.uint64) * np.uint64(SCALE))[:, None]
    flat = (base + chain.edges).reshape(-1)
    first = np.rint(np.cumsum(chain.stationary) * SCALE).astype(np.uint64)
    first[-1] = SCALE
    out = np.empty((count, max(tokens, order)), dtype=np.uint8 if vocab <= 256 else np.int64)
    state = np.searchsorted(first, bits.random_raw(count) >> np.uint64(32), side="right")
    for place in range(order):
        out[:, place] = state // vocab ** (order - 1 - place) % vocab
    for place in range(order, tokens):
        at = (state.astype(np.uint64) << np.uint64(32)) + (bits.random_raw(count) >> np.uint64(32))
        token = np.searchsorted(flat, at, side="right") - state * vocab
        out[:, place] = token
        state = (state * vocab + token) % states
    return out[:, :tokens]


@functools.lru_cache(maxsize=4)
def _windows(
    vocab: int, order: int, concentration: float, seed: int, split: Split, count: int, tokens: int
) -> npt.NDArray[Any]:
    made = draw(chain(vocab, order, concentration, seed), _philox(seed, split), count, tokens)
    made.flags.writeable = False
    return made


class Markov(windows.Windows):
    """A random order-k Markov chain; every window is an independent run of it, begun stationary.

    `data.options`: `vocab` 64, `order` 2, `length` 2**20 (training tokens; a twentieth more are held out),
    `concentration` 0.164 (of each row's Dirichlet distribution; the lower, the more predictable), `seed` 0.
    `entropy`: nats per token given at least `order` tokens. `window_entropy`: the lowest expected loss, nats
    per token, over windows of this context, whose first targets have fewer tokens before them. Both exact.
    ConfigError for options out of range and a `model.vocab` below `vocab`.
    """

    def __init__(self, run: Run, split: Split) -> None:
        windows.check_split(split)
        windows.check_no_path(run, "Markov")
        chosen = windows.options(run, DEFAULTS, "Markov")
        _check(chosen)
        windows.check_vocab(run, chosen["vocab"], "Markov")
        context = run.model.context
        length = chosen.pop("length")
        if length * HELD_OUT < context:
            raise ConfigError(
                f"`data.options.length` of Markov must be at least {context / HELD_OUT:.0f} tokens for one "
                f"validation window of context {context}, but got {length}; raise it or lower `model.context`"
            )
        tables = chain(**chosen)
        sha256 = hashlib.sha256(
            tables.edges.astype("<u8").tobytes() + repr((chosen, length)).encode()
        ).hexdigest()
        windows.check_sha256(run, sha256, "the Markov source")
        count = int(length if split == "train" else length * HELD_OUT) // context
        super().__init__(_windows(**chosen, split=split, count=count, tokens=context + 1), sha256)
        self.entropy = float(tables.entropies[-1])
        known = np.minimum(np.arange(1, context + 1), len(tables.entropies))
        self.window_entropy = float(tables.entropies[known - 1].mean())


def _check(chosen: dict[str, Any]) -> None:
    rules = {
        "vocab": (2, 1 << 16),
        "order": (1, 8),
        "length": (1, 1 << 32),
        "concentration": (0.01, 1e6),
        "seed": (0, 2**63),
    }
    for key, (low, high) in rules.items():
        if not low <= chosen[key] <= high:
            raise ConfigError(
                f"`data.options.{key}` of Markov must be from {low} to {high}, but got {chosen[key]}; "
                f"the default is {DEFAULTS[key]}"
            )
    size = chosen["vocab"] ** (chosen["order"] + 1)
    if size > MAX_TABLE:
        raise ConfigError(
            f"vocab ** (order + 1) of Markov must not exceed {MAX_TABLE} table entries, but got "
            f"{chosen['vocab']} ** {chosen['order'] + 1} = {size}; lower one of these `data.options`"
        )
