"""Token shards of other tools as a source: Megatron, dolma, llm.c, nanoGPT, Parquet and Arrow, local or on S3."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from froude.config import ConfigError
from froude.corpora import tokenizer as tokenizers
from froude.corpora.corpus import Corpus, Options, open_corpus
from froude.train.data import windows
from froude.train.data.split import Split

if TYPE_CHECKING:
    from froude.config import Run, Scalar

Documents = Callable[[int, int], npt.NDArray[np.int64]]
Expect = Callable[[Sequence[int]], None]
DEFAULTS: dict[str, Scalar] = {
    "format": "auto",
    "dtype": "uint16",
    "column": "",
    "validation": "",
    "held_out": 0.01,
    "tokenizer": "",
    "tokenizer_sha256": "",
}


class CorpusWindows:
    """Windows of a split of shards: window i begins at token i * context of its stream.

    `documents(first, n)`, where the format has boundaries, else None: for each token of these windows the number, in
    all shards, of the document that it belongs to, int64 [n, context + 1]. `bytes_per_token` of the validation split
    where a `data.json` beside the shards counts it, else None. `expect(numbers)`, on S3: windows that are read soon.
    """

    sha256: str

    def __init__(self, run: Run, split: Split, corpus: Corpus) -> None:
        self._context, self._vocab, self._path = run.model.context, run.model.vocab, run.data.path
        self._stream = corpus.stream(split, self._context)
        tokens = self._stream.tokens
        if tokens <= self._context:
            raise ConfigError(
                f"the {split} split of {self._path!r} must hold at least one window of context + 1 = "
                f"{self._context + 1} tokens, but holds {tokens}; use a larger corpus or a shorter `model.context`"
            )
        self.length = (tokens - 1) // self._context
        self.documents: Documents | None = self._documents if self._stream.documented else None
        self.expect: Expect | None = self._expect if self._stream.remote else None
        self.bytes_per_token = corpus.bytes_per_token

    def read(self, first: int, n: int) -> npt.NDArray[Any]:
        """Windows first … first + n - 1 as whole numbers [n, context + 1] of the shards' own type.

        ValueError outside the source; ConfigError for an id that the model does not know.
        """
        context = self._context
        tokens = self._stream.read(*self._span(first, n))
        if n and (tokens.max() >= self._vocab or (tokens.dtype.kind == "i" and tokens.min() < 0)):
            raise self._unknown(first * context, tokens)
        if n == 1:
            return tokens[None]
        return self._cut(tokens, n)

    def _expect(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._stream.expect(number * self._context, self._context + 1)

    def _documents(self, first: int, n: int) -> npt.NDArray[np.int64]:
        return self._cut(self._stream.document_of(*self._span(first, n)), n)

    def _span(self, first: int, n: int) -> tuple[int, int]:
        """First token and number of tokens of windows that follow one another."""
        if not 0 <= first <= first + n <= self.length:
            raise ValueError(f"windows must lie in [0, {self.length}), but got first={first}, n={n}")
        return first * self._context, n * self._context + 1

    def _cut(self, tokens: npt.NDArray[Any], n: int) -> npt.NDArray[Any]:
        step = tokens.strides[0]
        shape, strides = (n, self._context + 1), (self._context * step, step)
        return np.lib.stride_tricks.as_strided(tokens, shape, strides, writeable=False)

    def _unknown(self, first: int, tokens: npt.NDArray[Any]) -> ConfigError:
        odd = int(((tokens >= self._vocab) | (tokens < 0)).argmax())
        number, place, _ = next(self._stream.places(first + odd, 1))
        name = self._stream.shards[number].name
        return ConfigError(
            f"token ids must be from 0 to {self._vocab - 1}, below `model.vocab`, but {name} "
            f"holds {tokens[odd]} at token {place}; raise `model.vocab`, or correct `data.path` or `data.options.dtype`"
        )


class Shards(CorpusWindows):
    """Token ids at `data.path`, read where they lie: a file, a folder, a pattern, or an s3:// URL of one of these.

    Files in the order of their names are one stream.

    `data.options`: `format` ("auto": by names and magic numbers), `dtype` of files that don't say it ("uint16";
    "uint32", "int32"), `column` of Parquet and Arrow (`input_ids`, or the only one of lists of whole numbers),
    `validation` (shards that are held out: a path, absolute or relative to `data.path`; "": documents are held out by
    a hash, unless a `data.json` beside the shards names those of the split "validation"), `held_out` (their share,
    0.01), `tokenizer` (the tokenizer.json that made them: its hash is part of `sha256`, and must be that of
    `data.json`, if there is one).
    """

    def __init__(self, run: Run, split: Split) -> None:
        windows.check_split(split)
        chosen = windows.options(run, DEFAULTS, "Shards")
        named, planned = (chosen.pop(key) for key in ("tokenizer", "tokenizer_sha256"))
        corpus = open_corpus(run.data.path, Options(**chosen))
        super().__init__(run, split, corpus)
        self.sha256 = _identity(corpus, named, planned)
        windows.check_sha256(run, self.sha256, repr(run.data.path))


def _identity(corpus: Corpus, named: str, planned: str) -> str:
    """The corpus's SHA-256, with that of the tokenizer where one is named; ConfigError for one that did not make it."""
    if not named:
        if planned:
            raise ConfigError(
                "`data.options.tokenizer_sha256` is of `data.options.tokenizer`, which is empty; name the tokenizer, "
                "or leave out its hash"
            )
        return corpus.sha256
    tokenizer = tokenizers.sha256(named, planned)
    for known in corpus.records:
        known.check_tokenizer(named, tokenizer)
    return hashlib.sha256(json.dumps([corpus.sha256, tokenizer]).encode()).hexdigest()
