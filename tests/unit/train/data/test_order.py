from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from froude.config import ConfigError
from froude.train.data import leak
from froude.train.data.order import CHUNK, Batches, permute, validation_windows

SEEDS = st.integers(0, 2**31 - 1)


class Numbered:
    """A source whose window i is filled with i."""

    sha256 = ""

    def __init__(self, length: int, context: int = 2) -> None:
        self.length, self.context = length, context

    def read(self, first: int, n: int) -> np.ndarray[Any, Any]:
        return np.repeat(np.arange(first, first + n), self.context + 1).reshape(n, -1)


def _samples(batches: Batches, steps: int) -> list[int]:
    return [
        int(row[0])
        for step in range(steps)
        for slot in range(batches.slots)
        for row in batches.slot(step, slot).tokens
    ]


@given(length=st.integers(1, 5000), seed=SEEDS, epoch=st.integers(0, 1000))
@example(length=1, seed=0, epoch=0)
@example(length=2, seed=0, epoch=0)
@example(length=5000, seed=0, epoch=0)
def test_permute_is_a_bijection(length: int, seed: int, epoch: int) -> None:
    images = permute(np.arange(length), length, (seed, epoch))
    assert images.dtype == np.int64
    assert np.array_equal(np.sort(images), np.arange(length))


@given(length=st.integers(1, 2**62), data=st.data(), seed=SEEDS)
def test_permute_is_elementwise(length: int, data: st.DataObject, seed: int) -> None:
    index = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=8, unique=True))
    images = permute(np.array(index), length, (seed, 0))
    assert len(set(images.tolist())) == len(index)
    assert images.min() >= 0
    assert images.max() < length
    assert images.tolist() == [int(permute(np.array([i]), length, (seed, 0))[0]) for i in index]


@settings(max_examples=30)
@given(length=st.integers(50, 5000), seed=st.integers(0, 2**31 - 2), epoch=st.integers(0, 1000))
def test_other_keys_give_other_permutations(length: int, seed: int, epoch: int) -> None:
    index = np.arange(length)
    one = permute(index, length, (seed, epoch))
    for other in ((seed + 1, epoch), (seed, epoch + 1), (epoch + 2**31, seed)):
        assert not np.array_equal(one, permute(index, length, other))


def test_permute_is_pinned() -> None:
    """Another order would change every run that resumes from a checkpoint made before."""
    assert permute(np.arange(10), 10, (0, 0)).tolist() == [7, 0, 6, 3, 4, 1, 2, 8, 5, 9]
    assert permute(np.arange(4), 61_709, (3, 1)).tolist() == [51633, 52657, 11279, 38327]


@pytest.mark.slow
def test_permute_reaches_every_permutation_about_equally() -> None:
    """Chi-squared over all permutations of a tiny domain, where a Feistel network is weakest: half the rounds fail."""
    length, trials = 7, 3000
    cells = math.factorial(length)
    found = Counter(tuple(permute(np.arange(length), length, (seed, 0)).tolist()) for seed in range(trials))
    expected = trials / cells
    chi = sum((n - expected) ** 2 / expected for n in found.values()) + (cells - len(found)) * expected
    assert chi < (cells - 1) + 3 * np.sqrt(2 * (cells - 1))


def test_permute_scatters_neighbours() -> None:
    length = 50_000
    images = permute(np.arange(length), length, (0, 0)).astype(float)
    for lag in (1, 2, 12):
        assert abs(np.corrcoef(images[:-lag], images[lag:])[0, 1]) < 5 / np.sqrt(length)
    assert abs(np.corrcoef(np.arange(length), images)[0, 1]) < 5 / np.sqrt(length)


def test_permute_keeps_the_shape_and_takes_nothing_outside() -> None:
    assert permute(np.arange(6).reshape(2, 3), 6, (0,)).shape == (2, 3)
    assert permute(np.arange(0), 6, (0,)).shape == (0,)
    for index in (-1, 6):
        with pytest.raises(ValueError, match=r"indices must lie in \[0, 6\)"):
            permute(np.array([index]), 6, (0,))


@settings(max_examples=30)
@given(length=st.integers(1, 400), slots=st.integers(1, 12), windows=st.integers(1, 5), seed=SEEDS)
def test_each_epoch_has_each_window_once(length: int, slots: int, windows: int, seed: int) -> None:
    batches = Batches(Numbered(length), seed, windows, slots)
    steps = -(-2 * length // (slots * windows))
    samples = _samples(batches, steps)
    for epoch in (0, 1):
        assert sorted(samples[epoch * length : (epoch + 1) * length]) == list(range(length))


@settings(max_examples=30)
@given(length=st.integers(1, 200), seed=SEEDS)
def test_the_batch_does_not_depend_on_its_division_into_slots(length: int, seed: int) -> None:
    divisions = [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]
    orders = {tuple(_samples(Batches(Numbered(length), seed, w, slots), 5)) for w, slots in divisions}
    assert len(orders) == 1


@settings(max_examples=30)
@given(length=st.integers(1, 200), seed=SEEDS, visits=st.permutations(list(range(24))))
def test_a_slot_depends_on_seed_step_and_slot_only(length: int, seed: int, visits: list[int]) -> None:
    """Any order of visits, by any number of readers, gives what one reader in order gets."""
    batches = Batches(Numbered(length), seed, 2, 4)
    in_order = [batches.slot(*divmod(i, 4)) for i in range(24)]
    for i in visits:
        slot = Batches(Numbered(length), seed, 2, 4).slot(*divmod(i, 4))
        assert np.array_equal(slot.tokens, in_order[i].tokens)
        assert slot.first_sample == in_order[i].first_sample == 2 * i


@pytest.mark.parametrize("length", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5])
def test_windows_follow_the_permutation_across_chunks_and_epochs(length: int) -> None:
    batches = Batches(Numbered(length), 5, 7, 3)
    samples = _samples(batches, -(-2 * length // 21))
    expected = [permute(np.arange(length), length, (5, epoch)).tolist() for epoch in (0, 1)]
    assert samples[: 2 * length] == expected[0] + expected[1]


def test_slots_are_int64_and_writeable_copies() -> None:
    slot = Batches(Numbered(9, context=4), 0, 3, 2).slot(1, 1)
    assert slot.tokens.dtype == np.int64
    assert slot.tokens.shape == (3, 5)
    assert slot.tokens.flags.writeable  # torch.from_numpy warns otherwise
    assert slot.first_sample == 9


def test_the_digest_is_of_little_endian_int64() -> None:
    tokens = np.arange(6).reshape(2, 3)
    digest = Batches.digest(tokens)
    assert digest == "3940f46318223a2f"
    assert Batches.digest(torch.from_numpy(tokens)) == digest
    assert Batches.digest(tokens.astype(">i8")) == digest
    assert Batches.digest(tokens.astype(np.uint8)) == digest
    assert Batches.digest(np.asfortranarray(tokens)) == digest
    assert Batches.digest(tokens[:, ::-1]) != digest


@settings(max_examples=30)
@given(length=st.integers(1, 3000), n=st.integers(1, 800))
def test_validation_windows_are_distinct_even_and_the_same(length: int, n: int) -> None:
    windows = validation_windows(Numbered(length), n)
    numbers = windows[:, 0]
    assert windows.dtype == np.int64
    assert windows.shape == (min(n, length), 3)
    gaps = np.diff(np.append(numbers, length + numbers[0]))
    assert gaps.min() >= 1
    assert gaps.max() - gaps.min() <= 1
    assert np.array_equal(windows, validation_windows(Numbered(length), n))


def test_an_empty_source_is_an_error() -> None:
    with pytest.raises(ConfigError, match="must hold at least one window, but Numbered has length 0"):
        Batches(Numbered(0), 0, 1, 1)


@pytest.mark.parametrize("windows, slots", [(0, 1), (1, 0)])
def test_batches_need_windows_and_slots(windows: int, slots: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Batches(Numbered(3), 0, windows, slots)


@pytest.mark.parametrize("step, slot", [(-1, 0), (0, -1), (0, 2)])
def test_a_slot_outside_the_batch_is_an_error(step: int, slot: int) -> None:
    with pytest.raises(ValueError, match=rf"but got {step} and {slot}"):
        Batches(Numbered(3), 0, 1, 2).slot(step, slot)


def test_a_malformed_foreign_source_is_an_error() -> None:
    class Flat(Numbered):
        def read(self, first: int, n: int) -> np.ndarray[Any, Any]:
            return super().read(first, n).reshape(-1)

    with pytest.raises(ConfigError, match=r"of Flat must return an array \[1, context \+ 1\]"):
        Batches(Flat(3), 0, 1, 1).slot(0, 0)


@pytest.mark.parametrize("integer", [np.int32, np.int64, np.uint64])
def test_a_length_may_be_an_integer_of_numpys(integer: type[np.integer[Any]]) -> None:
    """Neither is a number of a window: a product with it would overflow, its negative would wrap around."""
    plain, source = Numbered(100_000_000), Numbered(100_000_000)
    source.length = integer(100_000_000)  # type: ignore[assignment]
    assert Batches(source, 0, 2, 2).windows(3, 1) == Batches(plain, 0, 2, 2).windows(3, 1)
    assert (validation_windows(source, 768) == validation_windows(plain, 768)).all()
    assert leak._pieces(source, 1000) == leak._pieces(plain, 1000)
