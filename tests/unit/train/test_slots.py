"""The one tree in which all sums over slots are made."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from froude.train.exact.slots import Rounds, SlotTree, halved_sum, row_squares, subtrees

SLOTS = st.integers(1, 40)


def by_definition(leaves: list[torch.Tensor]) -> torch.Tensor:
    """The tree, level by level: neighbours are added, one without a neighbour goes up as it is."""
    while len(leaves) > 1:
        pairs = itertools.zip_longest(leaves[::2], leaves[1::2])
        leaves = [a if b is None else a + b for a, b in pairs]
    return leaves[0]


def values(slots: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(slots)
    return [torch.randn(64, generator=generator) * 10**i for i in torch.linspace(-3, 3, slots)]


@given(SLOTS, st.randoms(use_true_random=False))
def test_leaves_in_any_order_give_the_sum_that_the_tree_defines(slots, random):
    leaves, tree = values(slots), SlotTree(slots)
    for slot in random.sample(range(slots), slots):
        tree.add((0, slot), [leaves[slot]])
    assert torch.equal(tree.root()[0], by_definition(leaves))
    assert tree.nodes == {}


@given(SLOTS, st.integers(1, 12), st.sampled_from(["cyclic", "block"]))
def test_each_slot_is_one_ranks_and_each_rank_has_enough_rounds(slots, world, schedule):
    ranks = [Rounds(slots, rank, world, schedule) for rank in range(world)]
    assert sorted(slot for rounds in ranks for slot in rounds.mine) == list(range(slots))
    for rounds in ranks:
        assert len(rounds.mine) <= len(rounds)
        for number in range(len(rounds)):
            rounds.now = number
            seen = [rounds.slot(rank) for rank in range(world)]
            assert [slot for slot in seen if slot is not None] == sorted({s for s in seen if s is not None})
            assert rounds.slot(rounds.rank) in (None, *rounds.mine)


@given(SLOTS, st.integers(1, 12))
def test_sums_of_a_blocks_subtrees_are_those_of_its_leaves(slots, world):
    leaves, tree = values(slots), SlotTree(slots)
    for rank in range(world):
        part, mine = SlotTree(slots), Rounds(slots, rank, world, "block").mine
        for slot in mine:
            part.add((0, slot), [leaves[slot].clone()], owned=True)
        found = part.take()
        assert [node for node, _ in found] == subtrees(slots, mine)
        for node, value in found:
            tree.add(node, value)
    assert torch.equal(tree.root()[0], by_definition(leaves))


@given(SLOTS, st.integers(1, 12))
def test_rounds_added_within_the_buffer_that_brought_them_keep_no_buffer(slots, world):
    leaves, tree, rounds = values(slots), SlotTree(slots), Rounds(slots, 0, world)
    for number in range(len(rounds)):
        rounds.now = number
        present = [slot for rank in range(world) if (slot := rounds.slot(rank)) is not None]
        received = torch.cat([leaves[slot] for slot in present])
        for slot, part in zip(present, received.split(64), strict=True):
            tree.add((0, slot), [part], owned=True)
        tree.leave_buffers()
        kept = [tensor for value in tree.nodes.values() for tensor in value]
        assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in kept)
    assert torch.equal(tree.root()[0], by_definition(leaves))


def test_another_order_of_addition_gives_other_bits():
    """Otherwise the tests above could not fail."""
    leaves = values(12)
    assert not torch.equal(sum(leaves[1:], leaves[0]), by_definition(leaves))


def test_what_is_handed_in_is_left_alone_unless_it_is_given_away():
    first, second = torch.ones(3), torch.ones(3)
    tree = SlotTree(2)
    tree.add((0, 0), [first])
    tree.add((0, 1), [second])
    assert tree.root()[0].tolist() == [2, 2, 2]
    assert first.tolist() == second.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "shape", [(), (1,), (7,), (3, 0), (5, 1), (9, 16), (4, 17), (3, 1000), (300, 1031), (2, 3, 5)]
)
def test_a_rows_squares_do_not_depend_on_the_other_rows(shape):
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = row_squares(tensor)
    rows = tensor.reshape(shape[0] if shape else 1, math.prod(shape[1:]))
    assert found.tolist() == pytest.approx(rows.double().square().sum(1).tolist(), rel=1e-14)
    for start, stop in ((0, 1), (1, 4), (2, len(rows))):
        assert torch.equal(row_squares(rows[start:stop]), found[start:stop])


@given(st.integers(0, 300))
def test_a_halved_sum_is_a_sum(n):
    numbers = np.random.default_rng(n).normal(size=(3, n))
    assert halved_sum(torch.from_numpy(numbers.copy())).tolist() == pytest.approx(
        numbers.sum(1).tolist(), abs=1e-9
    )
