"""Which tokenizer a new project's texts go through: the one named, the model's own, or one trained on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from froude.config import ConfigError
from froude.corpora import record
from froude.corpora import tokenizer as tokenizers
from froude.corpora.prepare.inputs import Input
from froude.corpora.prepare.texts import all_documents
from froude.store import Location

VOCAB = 1024  # of one that is trained: small, as all that a new project tries
SETTINGS = "tokenizer_config.json"

#: Told a share (0 to 1) and what is done of it.
Progress = Callable[[float, str], None]


def quiet(share: float, what: str) -> None:
    """Says nothing."""


@dataclass(frozen=True)
class Words:
    """A tokenizer's size and place; where that is in the project, the files that it is made of, by name.

    `eod` is what ends a document, "" where the tokenizer has one of the well-known ends.
    """

    vocab: int
    place: str
    files: dict[str, bytes] = field(default_factory=dict)
    eod: str = ""


def of_texts(
    found: list[Input], column: str, model: Path | None, vocab: int, progress: Progress = quiet
) -> Words:
    """The tokenizer that lies in the folder of a model's config.json, else a new one of `vocab` tokens (0: VOCAB)."""
    own = model / record.TOKENIZER if model else None
    if own is not None and own.is_file():
        files = {own.name: own.read_bytes()}
        if (settings := own.with_name(SETTINGS)).is_file():
            files[SETTINGS] = settings.read_bytes()
    else:
        files = {record.TOKENIZER: tokenizers.trained(all_documents(found, column, progress), vocab or VOCAB)}
    words = tokenizers.Tokenizer(files[record.TOKENIZER], str(own or record.TOKENIZER))
    return Words(words.size, record.TOKENIZER, files, _end(words, files.get(SETTINGS, b"{}")))


def named(place: str) -> Words:
    """The tokenizer.json of `--tokenizer`, which stays where it is."""
    found = tokenizers.load(place)
    settings = Location.parse(place).parent / SETTINGS
    end = _end(found, settings.read() if settings.exists() else b"{}")
    return Words(found.size, Location.parse(place).url, eod=end)


def _end(tokenizer: tokenizers.Tokenizer, settings: bytes) -> str:
    """Its `eos_token` by transformers' settings beside it, if it has no well-known end; ConfigError without one."""
    try:
        tokenizer.end(None)
    except ConfigError:
        pass
    else:
        return ""
    try:
        said = json.loads(settings).get("eos_token")
        end = said["content"] if isinstance(said, dict) else said
    except (ValueError, AttributeError, KeyError):
        end = None
    if not isinstance(end, str) or not end:
        raise ConfigError(
            f"a tokenizer must have a token that ends documents, but {tokenizer.name} has none of "
            f"{', '.join(tokenizers.ENDS[:4])} and the like, and no {SETTINGS} beside it names its `eos_token`; name "
            "it there, or give another with --tokenizer"
        )
    tokenizer.end(end)  # ConfigError where it has no such token
    return end
