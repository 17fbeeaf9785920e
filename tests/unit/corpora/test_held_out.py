"""What is held out: a division of the stream, the same for everybody, by documents where they are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from froude.config import ConfigError
from froude.corpora import held_out
from froude.corpora.formats.shard import Shard, Tokens
from froude.corpora.held_out import divide
from froude.corpora.stream import Stream


class Listed(Shard):
    """Documents of one group, in memory."""

    def __init__(self, documents: list[list[int]], *, documented: bool = True) -> None:
        self.lengths = [len(document) for document in documents]
        self.ids = np.array([token for document in documents for token in document], np.uint16)
        super().__init__("listed", [len(self.ids)], [len(documents)] if documented else None)

    def values(self, group: int, first: int, stop: int) -> Tokens:
        return self.ids[first:stop]

    def offsets(self, group: int) -> Any:
        return np.cumsum([0, *self.lengths])


DOCUMENTS = st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=30)


def tokens(shards: list[Listed], ranges: Any) -> list[int]:
    stream = Stream(shards, ranges)
    return stream.read(0, stream.tokens).tolist() if stream.tokens else []


@given(st.lists(DOCUMENTS, min_size=1, max_size=3), st.floats(0.01, 0.99), st.booleans(), st.integers(1, 8))
def test_each_token_is_on_one_side_and_in_its_order(
    corpus: list[list[list[int]]], share: float, documented: bool, least: int
) -> None:
    shards = [Listed(documents, documented=documented) for documents in corpus]
    total = sum(shard.tokens for shard in shards)
    made = divide(shards, share, block=8, least=least, path="here")
    spans = np.concatenate(made)
    spans = spans[np.argsort(spans[:, 0])]
    assert sum(stop - first for first, stop in spans.tolist()) == total
    assert (spans[1:, 0] == spans[:-1, 1]).all()
    everything = np.concatenate([shard.ids for shard in shards]).tolist()
    for side in made:
        assert tokens(shards, side) == [t for first, stop in side.tolist() for t in everything[first:stop]]
    known = total >= least if documented else total >= 8
    assert (len(tokens(shards, made.validation)) >= min(least, 8)) == known
    if documented:
        bounds = {0}
        for shard in shards:
            bounds |= {max(bounds) + int(offset) for offset in shard.offsets(0)}
        assert set(made.validation.reshape(-1).tolist()) <= bounds
    elif total % 8:
        assert made.train[-1, 1] == total  # a last block that is not whole trains


def test_the_documents_held_out_stay_as_the_corpus_grows() -> None:
    draw = np.random.default_rng(0)
    documents = [draw.integers(0, 999, 20).tolist() for _ in range(400)]

    def held(count: int) -> set[tuple[int, ...]]:
        shards = [Listed(documents[:count])]
        found = tokens(shards, divide(shards, 0.1, block=8, least=1, path="here").validation)
        return {tuple(found[i : i + 20]) for i in range(0, len(found), 20)}

    assert held(200) < held(400)
    assert 20 < len(held(400)) < 60


def test_too_many_tokens_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "MOST", 10)
    with pytest.raises(
        ConfigError, match=r"at most 10 tokens, .* 'here' has 11; name .*`data.options.validation`"
    ):
        divide([Listed([[1] * 11])], 0.1, block=8, least=1, path="here")
