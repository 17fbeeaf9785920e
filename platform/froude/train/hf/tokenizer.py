"""The tokenizer of a run's data: the one that `data.options` names, or the one that lies beside its shards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from froude.config import ConfigError, Run
from froude.corpora import corpus as corpora
from froude.corpora import record
from froude.corpora import tokenizer as tokenizers
from froude.material.moved import lies_at
from froude.mixtures import Corpus
from froude.store import Location, reported

SHARDS = "froude.train.data.shards:Shards"
TEXT_TOKENS = "froude.train.data.text_tokens:TextTokens"


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer.json, the tokenizer_config.json beside it, and the token that ended documents; empty if unknown."""

    content: bytes
    settings: bytes
    end: str = ""

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def write(self, folder: Path, context: int) -> None:
        """Both files, as transformers looks for them."""
        said = json.loads(self.settings) if self.settings else {"tokenizer_class": "PreTrainedTokenizerFast"}
        said.setdefault("model_max_length", context)
        if self.end and not said.get("eos_token"):
            said["eos_token"] = self.end
        (folder / record.TOKENIZER).write_bytes(self.content)
        (folder / "tokenizer_config.json").write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")


def tokenizer_of(run: Run) -> tuple[Tokenizer | None, str]:
    """The one that all of the run's data have, as far as they have any, and what a card says of it.

    ConfigError for one that is not the one that the data were made with.
    """
    data: dict[str, Corpus] = {part.name: part for part in run.data.parts} or {"": run.data}
    found = {name: {(each.sha256, each.end): each for each in _tokenizers(one)} for name, one in data.items()}
    every = {each.sha256: each for own in found.values() for each in own.values()}
    if not every:
        return None, "none was found, in `data.options` or beside the run's shards"
    if len(every) > 1:
        each = [f"{name} {sha256[:12]}".strip() for name, own in found.items() for sha256, _ in own]
        return None, f"none, as the run's data have different ones (SHA-256 {', '.join(each)})"
    ((sha256, one),) = every.items()
    if len({each.end for own in found.values() for each in own.values()}) > 1:
        one = replace(one, end="")
    unknown = [name for name, own in found.items() if not own]
    return one, f"sha256 {sha256}" + (f"; that of {', '.join(unknown)} is not known" if unknown else "")


def _tokenizers(data: Corpus) -> Iterator[Tokenizer]:
    given = data.options.get("tokenizer")
    if isinstance(given, str) and given:
        planned = str(data.options.get("tokenizer_sha256", ""))
        place = Location.parse(lies_at(given, planned))
        if place.is_local and place.path.is_dir():
            place /= record.TOKENIZER
        if (found := _read(place, planned)) is None:
            raise ConfigError(
                f"the run's tokenizer must be a tokenizer.json, but there is none at {place}; restore it"
            )
        if data.source == TEXT_TOKENS:
            ended = tokenizers.load(place).end(str(data.options.get("eod", "")) or None)
            found = replace(found, end=ended[0] if ended else "")
        elif data.source == SHARDS and (shards := _shards(data)):
            ends = {_end(known.tokenizer) for known in shards.records}
            found = replace(found, end=ends.pop() if len(ends) == 1 else "")
        yield found
    elif data.source == SHARDS and (shards := _shards(data)):
        made = {known.folder.url: known.tokenizer for known in shards.records}
        for folder in dict.fromkeys([*made, *(Location(file.url).parent.url for file in shards.files)]):
            known = made.get(folder, {})
            if (found := _read(Location(folder) / record.TOKENIZER, known.get("sha256", ""))) is not None:
                yield replace(found, end=_end(known))


def _shards(data: Corpus) -> corpora.Corpus | None:
    """The token shards of a run, None where they are not here."""
    options: dict[str, Any] = {k: v for k, v in data.options.items() if not k.startswith("tokenizer")}
    try:
        return corpora.open_corpus(data.path, corpora.Options(**options))
    except ConfigError:
        return None


def _end(known: Mapping[str, Any]) -> str:
    """The token that ended documents, by what `data.json` says of their tokenizer."""
    return str((known.get("eod") or {}).get("token", ""))


def _read(place: Location, sha256: str) -> Tokenizer | None:
    """The tokenizer there, if any; ConfigError for one of another hash, where one is given."""
    settings = place.parent / "tokenizer_config.json"
    with reported(place, "the run's tokenizer must be a file that can be read"):
        if not place.exists():
            return None
        found = Tokenizer(place.read(), settings.read() if settings.exists() else b"")
    if sha256 and found.sha256 != sha256:
        raise ConfigError(
            f"a tokenizer must be the one that the run's data were made with, SHA-256 {sha256[:12]}…, but {place} has "
            f"{found.sha256[:12]}…; restore it"
        )
    return found
