"""The order of a mixture: its shares at every prefix, its phases, its seeks, and each window once an epoch."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from fractions import Fraction
from itertools import accumulate
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from froude.config import Run
from froude.train.data import mixture
from froude.train.data.mixture import PERIOD, Deal, Mixture, Stretch, apportioned
from froude.train.data.order import mix, validation_windows

SEEDS = st.integers(0, 2**31 - 1)
WINDOWS = 10**6


def normed(weights: list[float]) -> tuple[Fraction, ...]:
    exact = [Fraction(weight) for weight in weights]
    return tuple(weight / sum(exact) for weight in exact)


WEIGHTS = st.floats(0.005, 1) | st.just(0.0)
TABLES = st.integers(2, 6).flatmap(
    lambda parts: st.lists(
        st.lists(WEIGHTS, min_size=parts, max_size=parts).filter(any).map(normed), min_size=1, max_size=3
    )
)


@st.composite
def dealt(draw: st.DrawFn, most: int = WINDOWS) -> list[Stretch]:
    tables = draw(TABLES)
    firsts = sorted(draw(st.lists(st.integers(1, most), min_size=len(tables) - 1, max_size=len(tables) - 1)))
    return [Stretch(first, shares) for first, shares in zip([0, *firsts], tables, strict=True)]


@pytest.mark.slow
@settings(max_examples=12)
@given(phases=dealt(), seed=SEEDS)
@example(phases=[Stretch(0, normed([0.98999, 0.01001]))], seed=0)
@example(phases=[Stretch(0, normed([0.7, 0.2, 0.1])), Stretch(800_000, normed([0, 0.5, 0.5]))], seed=0)
def test_at_every_prefix_the_shares_are_within_a_thousandth(phases: list[Stretch], seed: int) -> None:
    """Of each phase, at each of its hundredths and at its first windows; the counts are those of the next test."""
    deal, number = Deal(seed, phases), len(phases[0].shares)
    for phase, end in zip(phases, [*(each.first for each in phases[1:]), WINDOWS], strict=True):
        length, start = end - phase.first, deal.taken(phase.first)
        prefixes = [n for n in {*range(20), *(length * i // 100 for i in range(1, 101))} if 0 < n <= length]
        for n in prefixes:
            off = np.abs(deal.taken(phase.first + n) - start - [float(share * n) for share in phase.shares])
            assert off.max() <= number + 3  # windows, wherever one stops
            if n >= WINDOWS / 100:
                assert off.max() / n < 1e-3
        if length == WINDOWS:
            large = [part for part, share in enumerate(phase.shares) if share >= 0.01]
            assert all(off[part] / (phase.shares[part] * length) < 1e-3 for part in large)


@settings(max_examples=15)
@given(phases=dealt(2 * PERIOD), seed=SEEDS, prefix=st.integers(0, 3 * PERIOD - 1))
def test_counts_by_formula_are_those_of_the_samples(phases: list[Stretch], seed: int, prefix: int) -> None:
    deal, number = Deal(seed, phases), len(phases[0].shares)
    parts, turns = deal.at(np.arange(3 * PERIOD))
    assert deal.taken(prefix).tolist() == np.bincount(parts[:prefix], minlength=number).tolist()
    for part in range(number):  # the k-th of a part is its k-th, over all phases
        assert np.array_equal(turns[parts == part], np.arange((parts == part).sum()))
    alone = deal.at(np.array([prefix]))
    assert [int(each[0]) for each in alone] == [parts[prefix], turns[prefix]]


def brute_force(seed: int, place: int, period: int, counts: list[int]) -> list[int]:
    """A period as its description has it: everyone's j-th of n at (j + u) / n, sorted."""
    found = []
    for part, n in enumerate(counts):
        text = f"{seed},{place},{period},{part}"
        start = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
        for j in range(n):
            word = int(mix(np.array([(start + j) % 2**64], dtype=np.uint64))[0]) >> 32
            found.append(((j + word / 2**32) / n, part, j))
    return [part for _, part, _ in sorted(found)]


def test_the_order_is_that_of_a_brute_force_dealing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixture, "PERIOD", 64)
    phases = [Stretch(0, normed([5, 3, 1])), Stretch(150, normed([1, 0, 2]))]
    expected: list[int] = []
    for place, (phase, length) in enumerate(zip(phases, (150, 300), strict=True)):
        dealt: list[int] = []
        for period in range(-(-length // 64)):
            now, then = (apportioned(phase.shares, 64 * count) for count in (period, period + 1))
            dealt += brute_force(9, place, period, [b - a for a, b in zip(now, then, strict=True)])
        expected += dealt[:length]
    deal = Deal(9, phases)
    parts, turns = deal.at(np.arange(450))
    assert parts.tolist() == expected
    seen: Counter[int] = Counter()
    for part, turn in zip(parts.tolist(), turns.tolist(), strict=True):
        assert turn == seen[part]
        seen[part] += 1
    assert [deal.taken(n).tolist() for n in range(450)] == [
        [each.count(part) for part in range(3)] for each in accumulate([[]] + [[p] for p in expected[:-1]])
    ]


def test_a_seek_deals_one_period_wherever_it_goes() -> None:
    phases = [Stretch(0, normed([0.7, 0.3])), Stretch(10**11 + 7, normed([0.1, 0.9]))]
    deal = Deal(4, phases)
    for sample in (10**8, 10**11 + 6, 10**12, 10**15):
        mixture._dealt.cache_clear()
        parts, turns = deal.at(np.arange(sample, sample + 1000))
        assert mixture._dealt.cache_info().misses <= 2
        taken = deal.taken(sample)
        for part in (0, 1):
            mine = turns[parts == part]
            assert np.array_equal(mine, np.arange(taken[part], taken[part] + mine.size))
        assert taken.sum() == sample
    late = deal.taken(10**12) - deal.taken(10**11 + 7)
    assert late[0] / late.sum() == pytest.approx(0.1, abs=1e-10)


@given(
    weights=st.lists(st.integers(0, 1000), min_size=1, max_size=8).filter(any), total=st.integers(0, 10**6)
)
def test_whole_shares_keep_their_quota_and_their_sum(weights: list[int], total: int) -> None:
    shares = normed([float(weight) for weight in weights])
    counts = apportioned(shares, total)
    assert sum(counts) == total
    assert all(
        int(share * total) <= n <= -int(-share * total // 1) for share, n in zip(shares, counts, strict=True)
    )


def test_the_order_is_pinned() -> None:
    """Another would change every run that resumes from a checkpoint made before."""
    phases = [Stretch(0, normed([0.5, 0.3, 0.2])), Stretch(20, normed([0, 0, 1]))]
    parts, turns = Deal(1, phases).at(np.arange(24))
    assert parts.tolist() == [0, 1, 1, 0, 0, 2, 0, 1, 0, 2, 1, 0, 0, 0, 2, 1, 0, 1, 2, 0, 2, 2, 2, 2]
    assert turns.tolist() == [0, 0, 1, 1, 2, 0, 3, 2, 4, 1, 3, 5, 6, 7, 2, 4, 8, 5, 3, 9, 4, 5, 6, 7]


def test_an_evaluation_fetches_ahead_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The windows of the validation split are some of the parts', in an order of its own."""
    asked: list[tuple[str, int]] = []
    read: list[tuple[str, int]] = []

    class Afar:
        length, sha256 = 1000, "a" * 64

        def __init__(self, run: Run, split: str) -> None:
            self.name, self.context = str(run.data.options["name"]), run.model.context

        def read(self, first: int, n: int) -> np.ndarray[Any, Any]:
            read.extend((self.name, number) for number in range(first, first + n))
            return np.zeros((n, self.context + 1), np.uint8)

        def expect(self, numbers: list[int]) -> None:
            asked.extend((self.name, number) for number in numbers)

    module = ModuleType("afar")
    module.Afar = Afar  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "afar", module)
    parts = [{"name": name, "source": "afar:Afar", "options": {"name": name}, "weight": 1} for name in "ab"]
    source = Mixture(Run(tokens=768, eval_windows=8, data={"parts": parts}), "validation")
    validation_windows(source, 8)
    assert sorted(asked) == sorted(read)
    assert len({name for name, _ in asked}) == 2
