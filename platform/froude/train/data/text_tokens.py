"""A user's text through a tokenizer: tokenised once by the code of `froude data prepare`, and read from a cache."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from froude.config import ConfigError, Scalar
from froude.corpora import corpus, listing, record
from froude.corpora import tokenizer as tokenizers
from froude.corpora.listing import Listed
from froude.corpora.prepare import inputs as texts
from froude.corpora.prepare.texts import begins_as_lines
from froude.corpora.prepare.whole import Options, prepare
from froude.corpora.record import Record
from froude.corpora.verify import verify
from froude.material.moved import lies_at
from froude.store import Location, reported
from froude.train.data import windows
from froude.train.data.shards import CorpusWindows
from froude.train.data.split import Split

if TYPE_CHECKING:
    from froude.config import Run

#: Of texts that are tokenised in passing: each host does it, and each reads all of them to know their hash.
MOST_BYTES = 1 << 30
DEFAULTS: dict[str, Scalar] = {
    "tokenizer": "",
    "tokenizer_sha256": "",
    "column": "text",
    "held_out": 0.01,
    "eod": "",
    "cache": "",
}


class TextTokens(CorpusWindows):
    """Plain text, JSON lines or Parquet at `data.path` (a file or folder), through `data.options.tokenizer`.

    Documents are joined, each ended by `eod` (empty: the tokenizer's well-known one), and cut into windows; `held_out`
    of them validate, chosen by their hash. Other options: the text's `column`, the folder `cache`. `sha256` is that of
    texts, tokenizer and options. ConfigError for files that can't be used, and for more than 1 GiB of text.
    """

    def __init__(self, run: Run, split: Split) -> None:
        windows.check_split(split)
        options = windows.options(run, DEFAULTS, "TextTokens")
        tokenizer = _tokenizer(options)
        windows.check_vocab(run, tokenizer.size, f"the tokenizer {tokenizer.name}")
        making = Options(
            options["tokenizer"],
            options["eod"] or None,
            options["column"],
            options["held_out"],
            shard_tokens=1 << 62,  # one pair a split
        )
        found = texts_at(run.data.path)
        self.sha256 = _identity(found, making, tokenizer.sha256)
        windows.check_sha256(run, self.sha256, f"{run.data.path!r} with {tokenizer.name}")
        made = _cached(run.data.path, making, _cache(options["cache"]) / self.sha256[:24])
        _check_documents(made)
        super().__init__(run, split, corpus.open_corpus(made.folder.url, corpus.Options()))


def _tokenizer(options: dict[str, Any]) -> tokenizers.Tokenizer:
    if not options["tokenizer"]:
        raise ConfigError(
            "`data.options.tokenizer` must name a tokenizer.json for TextTokens, but is empty; set it, or make one "
            "with `froude data train-tokenizer`"
        )
    place = lies_at(options["tokenizer"], options["tokenizer_sha256"])
    found = tokenizers.load(place)
    tokenizers.check_planned(place, found.sha256, options["tokenizer_sha256"])
    return found


def texts_at(path: str) -> list[texts.Input]:
    """The texts of a file or folder; ConfigError where there are none, or more than TextTokens takes."""
    if not path:
        raise ConfigError(
            "`data.path` must name a text, or a folder of texts, for TextTokens, but is empty; set it"
        )
    found = texts.inputs([path])
    size = sum(each.size for each in found)
    if size > MOST_BYTES:
        raise ConfigError(
            f"TextTokens is for at most {MOST_BYTES >> 20} MiB of text, but {path!r} has {size >> 20}; make "
            "shards of it once, with `froude data prepare`, and train on those"
        )
    return found


def _identity(found: list[texts.Input], making: Options, tokenizer: str) -> str:
    """SHA-256 of what the tokens are made of, wherever it lies."""
    hashes = [_told(each) for each in found]
    content = [hashes, tokenizer, making.end, making.column, making.held_out]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


@functools.lru_cache(maxsize=1024)
def _told(input: texts.Input) -> str:
    """A text's SHA-256, and what tells one read as one document from the same bytes under a name of JSON lines."""
    how = " as one document" if input.kind is texts.PLAIN and begins_as_lines(input) else ""
    return texts.sha256(input) + how


def _cache(wanted: str) -> Location:
    """The folder of caches: the option's, else XDG's."""
    if wanted:
        return Location.parse(wanted)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Location.parse(Path(base).expanduser() / "froude" / "tokens")


def _cached(path: str, making: Options, folder: Location) -> Record:
    """The tokens of the texts; made by the first process of a host that asks, and anew where they were changed."""
    if not folder.is_local:
        raise ConfigError(f"`data.options.cache` must be a local folder, but got {folder}; name one")
    if _misfit(folder):
        with (
            reported(folder, "`data.options.cache` must be a folder that can be written"),
            _alone(folder.path),
        ):
            if misfit := _misfit(folder):  # no other process has made it meanwhile
                if (folder / record.FILE).exists():
                    warnings.warn(f"the tokens in {folder} are made anew: {misfit}", stacklevel=2)
                    shutil.rmtree(folder.path)
                return prepare([path], folder, making)
    known = record.read(folder)
    assert known is not None
    return known


def _misfit(folder: Location) -> str:
    """Why a folder's files are not those that its data.json lists, byte for byte; "" if they are."""
    with reported(folder, "`data.options.cache` must be a folder that can be read"):
        files = tuple(listing.at(folder)[0])
    return _misfit_of(folder.url, files)


@functools.lru_cache(maxsize=256)
def _misfit_of(folder: str, files: tuple[Listed, ...]) -> str:
    try:
        return next((f"{seen.name} {seen.wrong}" for seen in verify(folder) if seen.wrong), "")
    except (
        ConfigError
    ) as error:  # there is no data.json, or it can't be read, or another process removes them
        return str(error)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """While it lasts, no other process of this host is in here for the folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f"{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _check_documents(made: Record) -> None:
    """ConfigError unless both splits have documents."""
    documents = {split: counts["documents"] for split, counts in made.splits.items()}
    for split, count in documents.items():
        if not count:
            raise ConfigError(
                f"the {split} split must have a document, but the texts have {sum(documents.values())} in all, of "
                f"which {made.content['held_out']:g} validate; a plain text file is one document: divide it, write "
                "JSON lines, or train on its bytes with froude.train.data.text:TextFile"
            )
