"""`froude data stats`: what is in a corpus: documents, tokens, bytes, lengths, the vocabulary's use, duplicates."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from froude.config import ConfigError
from froude.corpora import pair, record
from froude.corpora import tokenizer as tokenizers
from froude.corpora.pair import Pair
from froude.corpora.tokenizer import Tokenizer
from froude.store import Location

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True)
class Stats:
    """Of one split; `nbytes` is None where nothing says how much text the tokens are, `lengths` in tokens by QUANTILES.

    `used` of `vocab` token ids occur; `duplicates` are documents of which an equal one came before.
    """

    documents: int
    tokens: int
    nbytes: int | None
    lengths: tuple[int, ...]
    used: int
    vocab: int
    duplicates: int

    @property
    def bytes_per_token(self) -> float | None:
        return self.nbytes / self.tokens if self.nbytes and self.tokens else None

    def to_dict(self) -> dict[str, Any]:
        quantiles = {f"{q:g}": length for q, length in zip(QUANTILES, self.lengths, strict=True)}
        return {
            "documents": self.documents,
            "tokens": self.tokens,
            "bytes": self.nbytes,
            "bytes_per_token": self.bytes_per_token,
            "lengths": quantiles,
            "vocabulary_used": self.used,
            "vocabulary": self.vocab,
            "duplicates": self.duplicates,
        }

    def lines(self) -> list[str]:
        """The same for people."""
        text = "not known: name the tokenizer with --tokenizer"
        if self.bytes_per_token is not None:
            text = f"{self.nbytes:,} bytes, {self.bytes_per_token:.3f} a token"
        quantiles = [f"{length:,} ({100 * q:g}%)" for q, length in zip(QUANTILES, self.lengths, strict=True)]
        return [
            f"documents   {self.documents:,}, {self.duplicates:,} of them repeat an earlier one",
            f"tokens      {self.tokens:,}",
            f"text        {text}",
            f"lengths     {', '.join(quantiles)} tokens",
            f"vocabulary  {self.used:,} of {self.vocab:,} tokens occur ({100 * self.used / max(1, self.vocab):.1f}%)",
        ]


def stats(
    place: str, tokenizer: str = "", *, progress: Callable[[float, str], None] = lambda share, what: None
) -> dict[str, Stats]:
    """Statistics of each split of a folder, or of one pair, by name; `tokenizer` tells what is not in data.json.

    ConfigError for shards that can't be read, hold ids beyond the vocabulary, or were made with another tokenizer.
    """
    location = Location.parse(place)
    pairs = pair.of_folder(location)
    known = record.read(pairs[0].location.parent)
    named = tokenizers.load(tokenizer) if tokenizer else None
    told = known.tokenizer if known else {}
    if known and named:
        known.check_tokenizer(tokenizer, named.sha256)
    vocab = named.size if named else int(told.get("vocab", 0))
    groups: dict[str, list[Pair]] = {}
    for each in pairs:
        groups.setdefault(_split(each.location.name), []).append(each)
    whole = len(pairs) > 1 or not location.name.endswith((".bin", ".idx"))
    total, done = sum(int(each.lengths.sum()) for each in pairs), 0
    found = {}
    for name, group in groups.items():
        counter = _Counter(vocab, None if known and whole and name in known.splits else named)
        for each in group:
            for tokens, lengths in each.documents():
                counter.add(tokens, lengths, each.location)
                done += len(tokens)
                progress(done / max(1, total), f"{done:,} of {total:,} tokens")
        counts = known.splits.get(name, {}) if known and whole else {}
        found[name] = counter.stats(np.concatenate([each.lengths for each in group]), counts.get("bytes"))
    return found


def _split(name: str) -> str:
    """train-00012.bin is of split train; a name without a number is a split of its own."""
    stem, _, number = name.removesuffix(".bin").rpartition("-")
    return stem if stem and number.isdigit() else name.removesuffix(".bin")


class _Counter:
    """What is counted of tokens as they pass."""

    def __init__(self, vocab: int, tokenizer: Tokenizer | None) -> None:
        self.vocab, self.tokenizer = vocab, tokenizer
        self.seen: npt.NDArray[np.bool_] = np.zeros(vocab, dtype=bool)
        self.hashes: list[bytes] = []
        self.nbytes = 0

    def add(self, tokens: npt.NDArray[Any], lengths: npt.NDArray[np.int64], place: Location) -> None:
        if len(tokens):
            low, high = int(tokens.min()), int(tokens.max())
            if low < 0 or (self.vocab and high >= self.vocab):
                raise ConfigError(
                    f"token ids must be from 0 to {(self.vocab or 1 << 31) - 1}, but {place} holds "
                    f"{low if low < 0 else high}; name the tokenizer that made it, or restore it"
                )
            if high >= len(self.seen):
                self.seen = np.concatenate([self.seen, np.zeros(high + 1 - len(self.seen), dtype=bool)])
            self.seen[np.unique(tokens)] = True
        for document in _cut(tokens, lengths):
            self.hashes.append(hashlib.blake2b(document.tobytes(), digest_size=16).digest())
            if self.tokenizer is not None:
                self.nbytes += len(self.tokenizer.text(document).encode())

    def stats(self, lengths: npt.NDArray[np.int64], nbytes: int | None) -> Stats:
        quantiles = (
            np.quantile(lengths, QUANTILES, method="inverted_cdf") if len(lengths) else [0] * len(QUANTILES)
        )
        return Stats(
            documents=len(lengths),
            tokens=int(lengths.sum()),
            nbytes=nbytes if nbytes is not None else self.nbytes if self.tokenizer else None,
            lengths=tuple(int(length) for length in quantiles),
            used=int(self.seen.sum()),
            vocab=self.vocab or len(self.seen),
            duplicates=len(self.hashes) - len(set(self.hashes)),
        )


def _cut(tokens: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[Any]]:
    ends = np.cumsum(lengths)
    for end, length in zip(ends, lengths, strict=True):
        yield tokens[end - length : end]
