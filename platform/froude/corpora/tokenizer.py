"""A `tokenizer.json` of Hugging Face's library `tokenizers`: text to token ids, the same wherever it runs."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from froude.config import ConfigError
from froude.material.moved import lies_at
from froude.store import Location, reported

#: What well-known tokenizers call the token that ends a document, the first that one has is taken.
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<｜end▁of▁sentence｜>")
#: A byte-level vocabulary has a token for each byte, and one that ends a document.
SMALLEST = 257


class Tokenizer:
    """One file's tokenizer. `sha256` is the file's, `size` one more than the largest token id."""

    def __init__(self, content: bytes, name: str) -> None:
        self.content, self.name = content, name
        self.sha256 = hashlib.sha256(content).hexdigest()
        self._tokenizer = _parsed(content, name)
        # Settings of a file that was saved for batches of a model: they would cut or fill up documents in silence.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # A document that spells a special token, such as the end of a document, means its letters.
        self._tokenizer.encode_special_tokens = True
        self.size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if not self.size:
            raise ConfigError(
                f"a tokenizer must have a vocabulary, but that of {name} is empty; name another"
            )

    def ids(self, texts: Sequence[str], dtype: npt.DTypeLike) -> list[npt.NDArray[Any]]:
        """Token ids of each text, without any that the file's post-processor would add around it."""
        encode = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)
        return [np.array(each.ids, dtype=dtype) for each in encode(list(texts), add_special_tokens=False)]

    def text(self, ids: Iterable[int]) -> str:
        """What the ids stand for, without special tokens."""
        return str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True))

    def end(self, wanted: str | None) -> tuple[str, int] | None:
        """The token that ends a document, and its id: the one wanted, else the first of ENDS; None if "" is wanted."""
        if wanted == "":
            return None
        found = [
            (token, i)
            for token in (ENDS if wanted is None else (wanted,))
            if (i := self._tokenizer.token_to_id(token)) is not None
        ]
        if found:
            return found[0]
        if wanted is None:
            raise ConfigError(
                f"documents must end with a token, but {self.name} has none of {', '.join(ENDS[:4])} and the like; "
                'name its own as eod (--eod TOKEN; --eod "" joins documents without one)'
            )
        raise ConfigError(
            f"eod must be a token of the tokenizer, but {self.name} has no {wanted!r}; name one of its tokens"
        )


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise ConfigError(
            "tokenizers need the library `tokenizers`, which is not installed; "
            "pip install -e '.[data]' in froude's checkout"
        ) from None
    return tokenizers


def _parsed(content: bytes, name: str) -> Any:
    library = _library()
    what = "a tokenizer must be a tokenizer.json of Hugging Face's `tokenizers`"
    remedy = "save one with `tokenizer.save(FILE)`, or `froude data train-tokenizer`"
    try:
        table = json.loads(content)
    except ValueError as error:
        raise ConfigError(f"{what}, but {name} is no JSON ({error}); {remedy}") from None
    model = table.get("model") if isinstance(table, dict) else None
    if not isinstance(model, dict):
        raise ConfigError(f"{what}, but {name} has no `model`; {remedy}")
    if model.get("dropout"):
        raise ConfigError(
            f"a tokenizer must give the same tokens each time, but {name} drops merges at random (model.dropout = "
            f"{model['dropout']}); set it to null"
        )
    try:
        return library.Tokenizer.from_str(content.decode())
    except Exception as error:  # noqa: BLE001  the library raises nothing narrower
        raise ConfigError(f"{what}, but {name}: {error}; {remedy}") from None


@functools.lru_cache(maxsize=4)
def _loaded(content: bytes, name: str) -> Tokenizer:
    return Tokenizer(content, name)


def load(place: str | Location) -> Tokenizer:
    """The tokenizer of a local or s3:// file; ConfigError if it is none."""
    return _loaded(_content(place), Location.parse(place).name)


def _content(place: str | Location) -> bytes:
    location = Location.parse(place)
    with reported(location, "a tokenizer must be a file that can be read"):
        return location.read()


def sha256(place: str, planned: str) -> str:
    """That of a run's tokenizer, for which the library is not needed; ConfigError as `check_planned`."""
    found = hashlib.sha256(_content(lies_at(place, planned))).hexdigest()
    check_planned(place, found, planned)
    return found


def check_planned(place: str, found: str, planned: str) -> None:
    """ConfigError unless the SHA-256 of a run's tokenizer is the one that was planned, if any was."""
    if planned and planned != found:
        raise ConfigError(
            f"`data.options.tokenizer` must be the one that the run was planned with, SHA-256 {planned[:12]}…, but "
            f"{place} has {found[:12]}…; restore it, or plan a run with the new one"
        )


def trained(texts: Iterable[str], vocab: int) -> bytes:
    """A byte-level BPE tokenizer (as GPT-2's) of at most `vocab` tokens, as a tokenizer.json.

    The same for the same text. Token 0 is <|endoftext|>, then come the 256 bytes: any text has tokens.
    """
    library = _library()
    if vocab < SMALLEST:
        raise ConfigError(
            f"--vocab must be at least {SMALLEST}, a token for each byte and one that ends a document, but got {vocab}"
        )
    levels = library.pre_tokenizers.ByteLevel
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = levels(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[ENDS[0]],
        initial_alphabet=sorted(levels.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str(pretty=True)).encode()
