"""`froude data stats`: what is in a corpus: documents, tokens, bytes, lengths, the vocabulary's use, duplicates."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from froude.config import ConfigError
from froude.corpora import tokenizer as tokenizers
from froude.corpora.corpus import Options, open_corpus
from froude.corpora.formats.shard import Shard, Tokens
from froude.corpora.tokenizer import Tokenizer

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
#: Tokens read at once.
BLOCK = 1 << 22


@dataclass(frozen=True)
class Stats:
    """Of one split; `nbytes` is None where nothing says how much text the tokens are, `lengths` in tokens by QUANTILES.

    `used` of `vocab` token ids occur; `duplicates` are documents of which an equal one came before. Where the format
    has no boundaries, `documents` and `duplicates` are None, and `lengths` empty.
    """

    documents: int | None
    tokens: int
    nbytes: int | None
    lengths: tuple[int, ...]
    used: int
    vocab: int
    duplicates: int | None

    @property
    def bytes_per_token(self) -> float | None:
        return self.nbytes / self.tokens if self.nbytes and self.tokens else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "documents": self.documents,
            "tokens": self.tokens,
            "bytes": self.nbytes,
            "bytes_per_token": self.bytes_per_token,
            "lengths": {f"{q:g}": length for q, length in zip(QUANTILES, self.lengths, strict=False)},
            "vocabulary_used": self.used,
            "vocabulary": self.vocab,
            "duplicates": self.duplicates,
        }

    def lines(self) -> list[str]:
        """The same for people."""
        text = "not known: name the tokenizer with --tokenizer"
        if self.bytes_per_token is not None:
            text = f"{self.nbytes:,} bytes, {self.bytes_per_token:.3f} a token"
        documents, lengths = "not known: the format has no boundaries", "not known"
        if self.documents is not None:
            documents = f"{self.documents:,}, {self.duplicates:,} of them repeat an earlier one"
            quantiles = zip(QUANTILES, self.lengths, strict=True)
            lengths = f"{', '.join(f'{length:,} ({100 * q:g}%)' for q, length in quantiles)} tokens"
        return [
            f"documents   {documents}",
            f"tokens      {self.tokens:,}",
            f"text        {text}",
            f"lengths     {lengths}",
            f"vocabulary  {self.used:,} of {self.vocab:,} tokens occur ({100 * self.used / max(1, self.vocab):.1f}%)",
        ]


def stats(
    place: str,
    tokenizer: str = "",
    options: Options = Options(),  # noqa: B008  it is frozen
    *,
    progress: Callable[[float, str], None] = lambda share, what: None,
) -> dict[str, Stats]:
    """Statistics of the shards at a path, by split if a data.json names splits, else of "all".

    `tokenizer` tells what is not in data.json: the vocabulary, and bytes of text, which without boundaries are counted
    for BLOCK tokens at a time. ConfigError for shards that can't be read, hold ids beyond the vocabulary, or were made
    with another tokenizer.
    """
    corpus = open_corpus(place, options, "DIR|SHARD")
    named = tokenizers.load(tokenizer) if tokenizer else None
    vocab = max((known.tokenizer.get("vocab", 0) for known in corpus.records), default=0)
    if named:
        vocab = named.size
        for known in corpus.records:
            known.check_tokenizer(tokenizer, named.sha256)
    whole = "train" if any(known.splits for known in corpus.records) else "all"
    groups = {name: group for name, group in ((whole, corpus.training), ("validation", corpus.held)) if group}
    total, done = max(1, sum(shard.tokens for group in groups.values() for shard in group)), 0

    def read(tokens: int) -> None:
        nonlocal done
        done += tokens
        progress(done / total, f"{done:,} of {total:,} tokens")

    return {name: _counted(group, vocab, named, corpus.nbytes(name), read) for name, group in groups.items()}


def _counted(
    shards: Sequence[Shard],
    vocab: int,
    tokenizer: Tokenizer | None,
    known: int | None,
    read: Callable[[int], None],
) -> Stats:
    """Statistics of shards, whose bytes of text may be `known`."""
    documented = all(shard.documented for shard in shards)
    seen, hashes, lengths, nbytes = np.zeros(vocab, bool), set(), [np.zeros(0, np.int64)], 0
    for shard in shards:
        for tokens, bounds in _blocks(shard):
            seen = np.pad(seen, (0, max(0, _largest(tokens, vocab, shard.name) + 1 - len(seen))))
            seen[tokens] = True
            lengths.append(np.diff(bounds))
            for first, stop in pairwise(bounds.tolist()):
                if documented:
                    content = np.ascontiguousarray(tokens[first:stop], "<u4")
                    hashes.add(hashlib.blake2b(content.data, digest_size=16).digest())
                if tokenizer is not None and known is None:
                    nbytes += len(tokenizer.text(tokens[first:stop]).encode())
            read(len(tokens))
    each = np.concatenate(lengths)
    quantiles = np.quantile(each, QUANTILES, method="inverted_cdf") if len(each) else [0] * len(QUANTILES)
    return Stats(
        documents=len(each) if documented else None,
        tokens=int(each.sum()),
        nbytes=known if known is not None else nbytes if tokenizer else None,
        lengths=tuple(int(length) for length in quantiles) if documented else (),
        used=int(seen.sum()),
        vocab=len(seen),
        duplicates=len(each) - len(hashes) if documented else None,
    )


def _blocks(shard: Shard) -> Iterator[tuple[Tokens, npt.NDArray[np.int64]]]:
    """Some whole documents, and where each begins and the last ends; BLOCK tokens where no boundaries are known."""
    bounds = np.append(np.arange(0, shard.tokens, BLOCK), shard.tokens)
    if shard.documented:
        bounds = shard.starts()
    at = 0
    while at < len(bounds) - 1:
        stop = max(at + 1, int(np.searchsorted(bounds, bounds[at] + BLOCK, side="right")) - 1)
        first, n = int(bounds[at]), int(bounds[stop] - bounds[at])
        yield shard.read(first, n) if n else np.zeros(0, np.int64), bounds[at : stop + 1] - first
        at = stop


def _largest(tokens: Tokens, vocab: int, name: str) -> int:
    """The largest id, -1 if there is none; ConfigError for one beyond the vocabulary, if it is known."""
    if not len(tokens):
        return -1
    low, high, most = int(tokens.min()), int(tokens.max()), vocab or 1 << 31
    if low < 0 or high >= most:
        raise ConfigError(
            f"token ids must be from 0 to {most - 1}, but {name} holds {low if low < 0 else high}; name the tokenizer "
            "that made it, its `--dtype`, or restore it"
        )
    return high
