from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from froude.config import ConfigError, Run
from froude.train.api import build_source
from froude.train.data import markov

SOURCE = {"data.source": "froude.train.data.markov:Markov"}
MakeRun = Callable[..., Run]


def _run(make_run: MakeRun, context: int = 64, **options: object) -> Run:
    return make_run({**SOURCE, "data.options": options, "model.context": context})


def test_the_default_chain_is_pinned(make_run: MakeRun) -> None:
    source = markov.Markov(_run(make_run), "train")
    assert source.entropy == pytest.approx(2.777035839, abs=1e-6)
    assert source.entropy < source.window_entropy < np.log(64)
    assert source.length == 2**20 // 64
    assert markov.Markov(_run(make_run), "validation").length == 2**20 // 20 // 64


@pytest.mark.parametrize(
    "options", [{}, {"vocab": 5, "order": 3}, {"vocab": 300, "order": 1}, {"vocab": 2, "order": 6}]
)
def test_an_oracle_reaches_the_entropy(make_run: MakeRun, options: dict[str, int]) -> None:
    """The loss of the predictor that knows the chain, over half a million tokens, within five standard errors."""
    run = _run(make_run, length=2**19, **options).replace({"model.vocab": 300})
    source = markov.Markov(run, "train")
    chosen = {**markov.DEFAULTS, **options}
    vocab, order = int(chosen["vocab"]), int(chosen["order"])
    chain = markov.chain(vocab, order, float(chosen["concentration"]), int(chosen["seed"]))
    probabilities = np.diff(chain.edges, axis=1, prepend=np.uint64(0)) / markov.SCALE
    tokens = source.read(0, source.length).astype(np.int64)
    assert tokens.min() >= 0
    assert tokens.max() < vocab
    states = sum(tokens[:, i : tokens.shape[1] - order + i] * vocab ** (order - 1 - i) for i in range(order))
    losses = -np.log(probabilities[states, tokens[:, order:]])
    error = losses.mean(1).std() / np.sqrt(len(losses))
    assert abs(losses.mean() - source.entropy) < 5 * error
    assert error < 0.01

    # Windows start in the stationary distribution: the first tokens follow its marginal.
    marginal = chain.stationary.reshape(vocab, -1).sum(1)
    counts = np.bincount(tokens[:, 0], minlength=vocab)
    expected = marginal * len(tokens)
    assert ((counts - expected) ** 2 / expected).sum() < vocab + 6 * np.sqrt(2 * vocab)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_stationary_distribution_solves_the_linear_equations(order: int) -> None:
    """Against a dense solver, which shares no code with the power iteration."""
    vocab = 4
    chain = markov.chain(vocab, order, 0.2, 7)
    states = vocab**order
    rows = np.diff(chain.edges, axis=1, prepend=np.uint64(0)) / markov.SCALE
    moves = np.zeros((states, states))
    for state in range(states):
        for token in range(vocab):
            moves[state, (state * vocab + token) % states] += rows[state, token]
    system = np.vstack([moves.T - np.eye(states), np.ones(states)])
    solution = np.linalg.lstsq(system, np.eye(states + 1)[-1], rcond=None)[0]
    assert chain.stationary == pytest.approx(solution, abs=1e-11)
    assert chain.entropies[-1] == pytest.approx(-(solution[:, None] * rows * np.log(rows)).sum(), abs=1e-10)
    assert (np.diff(chain.entropies) <= 1e-12).all()  # knowing more of the past never costs


def test_window_entropy_counts_the_short_contexts(make_run: MakeRun) -> None:
    source = markov.Markov(_run(make_run, context=4, length=2**10), "train")
    one, two = markov.chain(64, 2, float(markov.DEFAULTS["concentration"]), 0).entropies
    assert source.window_entropy == pytest.approx((one + 3 * two) / 4)


def test_splits_and_seeds_are_independent_and_repeatable(make_run: MakeRun) -> None:
    run = _run(make_run, length=2**14)
    train, validation = (build_source(run, split) for split in ("train", "validation"))
    first = train.read(0, validation.length)
    assert (first == validation.read(0, validation.length)).mean() < 0.1
    assert train.sha256 == validation.sha256
    markov._windows.cache_clear()
    assert np.array_equal(build_source(run, "train").read(0, validation.length), first)

    other = markov.Markov(_run(make_run, length=2**14, seed=1), "train")
    assert other.sha256 != train.sha256
    assert other.entropy != markov.Markov(run, "train").entropy
    again = markov.Markov(_run(make_run, length=2**14, concentration=1), "train")
    assert again.sha256 == markov.Markov(_run(make_run, length=2**14, concentration=1.0), "train").sha256


@pytest.mark.parametrize(
    "options, match",
    [
        ({"vocabulary": 8}, r"unknown key `data.options.vocabulary` of Markov; did you mean `vocab`"),
        ({"order": 0}, r"`data.options.order` of Markov must be from 1 to 8, but got 0"),
        ({"vocab": 1}, r"`data.options.vocab` of Markov must be from 2"),
        ({"vocab": 8.0}, r"`data.options.vocab` of Markov must be of type int, but got 8.0"),
        ({"seed": True}, r"`data.options.seed` of Markov must be of type int, but got True"),
        ({"concentration": 0.0}, r"`data.options.concentration` of Markov must be from 0.01"),
        ({"order": 5}, r"must not exceed 4194304 table entries, but got 64 \*\* 6"),
        ({"length": 1000}, r"`data.options.length` of Markov must be at least 1280 tokens"),
        ({"vocab": 257, "order": 1}, r"`model.vocab` must be at least 257 for Markov, but got 256"),
    ],
)
def test_options_out_of_range_are_an_error(make_run: MakeRun, options: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        markov.Markov(_run(make_run, **options), "train")
    assert str(caught.value).count("\n") <= 1


@pytest.mark.parametrize(
    "changes, match",
    [({"data.path": "x.txt"}, "`data.path` must be empty"), ({"data.sha256": "0" * 64}, "SHA-256")],
)
def test_a_run_that_names_another_corpus_is_an_error(
    make_run: MakeRun, changes: dict[str, str], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        markov.Markov(make_run({**SOURCE, **changes}), "train")


def test_the_shortest_length_has_one_validation_window(make_run: MakeRun) -> None:
    assert markov.Markov(_run(make_run, length=1280), "validation").length == 1
