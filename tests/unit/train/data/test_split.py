from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from froude.train.data.split import BLOCK, block_hash, divide, held_out


def _text(blocks: int, rest: int = 0, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(blocks * BLOCK + rest)


def test_the_hash_is_pinned() -> None:
    """Another hash would move windows between training and validation in every study made before."""
    assert [block_hash(i, b"In the beginning") for i in (0, 1)] == [
        14710022009891261291,
        12222570755532962695,
    ]
    assert np.flatnonzero(held_out(_text(400))).tolist() == [
        0,
        38,
        92,
        128,
        147,
        151,
        164,
        178,
        215,
        217,
        223,
        249,
        282,
        296,
        328,
        331,
        346,
        358,
        370,
        374,
        384,
        390,
    ]


@given(blocks=st.integers(0, 60), rest=st.integers(0, BLOCK - 1), seed=st.integers(0, 1000))
def test_the_streams_are_the_blocks_in_order(blocks: int, rest: int, seed: int) -> None:
    data = _text(blocks, rest, seed)
    mask = held_out(data)
    train, validation = divide(data)
    pieces = [data[i * BLOCK : (i + 1) * BLOCK] for i in range(blocks)]
    assert validation.tobytes() == b"".join(p for p, held in zip(pieces, mask, strict=True) if held)
    assert (
        train.tobytes()
        == b"".join(p for p, held in zip(pieces, mask, strict=True) if not held) + data[blocks * BLOCK :]
    )
    assert not train.flags.writeable
    assert not validation.flags.writeable


@given(blocks=st.integers(1, 60), seed=st.integers(0, 1000))
def test_some_block_is_always_held_out_and_the_rest_of_a_text_never(blocks: int, seed: int) -> None:
    mask = held_out(_text(blocks, 100, seed))
    assert len(mask) == blocks
    assert mask.any()


@settings(max_examples=30)
@given(blocks=st.integers(60, 90), more=st.integers(1, 20), seed=st.integers(0, 1000))
def test_appending_text_moves_no_block(blocks: int, more: int, seed: int) -> None:
    data = _text(blocks + more, seed=seed)
    before, after = held_out(data[: blocks * BLOCK]), held_out(data)[:blocks]
    if after.any():  # else the only held-out block of the short text was its fallback
        assert (before == after).all()


def test_the_share_held_out_is_five_per_cent() -> None:
    share = held_out(_text(10_000)).mean()
    assert abs(share - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 10_000)


def test_equal_blocks_are_divided_too() -> None:
    """A periodic text must not fall to one side as a whole: the block's index is hashed with it."""
    mask = held_out(bytes(4000 * BLOCK))
    assert 0.03 < mask.mean() < 0.07
