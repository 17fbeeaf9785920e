"""Files of texts: which there are, where they lie, and their hashes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from froude.config import ConfigError
from froude.corpora import listing
from froude.corpora.content import file_sha256
from froude.corpora.listing import Listed
from froude.store import Location, reported

PLAIN, LINES, PARQUET = (".txt", ".text", ".md"), (".jsonl", ".ndjson", ".json"), (".parquet",)
#: Endings of compressed files, by what Arrow calls the codec.
CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
KNOWN = "plain text (.txt, .md), JSON lines (.jsonl, .ndjson, .json) and .parquet; .gz, .zst and .bz2 of the first two"


@dataclass(frozen=True)
class Input:
    """A file of texts: where it is, its name in data.json, bytes, and when it was written (ns)."""

    url: str
    name: str
    size: int
    stamp: int

    @property
    def codec(self) -> str | None:
        return CODECS.get(os.path.splitext(self.url)[1])

    @property
    def kind(self) -> tuple[str, ...]:
        """PLAIN, LINES or PARQUET."""
        stem = os.path.splitext(self.url)[0] if self.codec else self.url
        return next(kind for kind in (PLAIN, LINES, PARQUET) if stem.endswith(kind))


def known(name: str) -> bool:
    """Whether documents can be read from a file of that name."""
    stem, ending = os.path.splitext(name)
    return stem.endswith((*PLAIN, *LINES)) if ending in CODECS else name.endswith((*PLAIN, *LINES, *PARQUET))


def is_plain(name: str) -> bool:
    """Whether a file of that name is plain text, one document."""
    stem, ending = os.path.splitext(name)
    return (stem if ending in CODECS else name).endswith(PLAIN)


def inputs(places: Sequence[str]) -> list[Input]:
    """The files that are named, and in folders those of `_of_folder`, sorted; ConfigError where there are none."""
    found: dict[str, Input] = {}
    for place in places:
        location = Location.parse(place)
        with reported(location, "texts must be files or folders that can be read"):
            inside, folder = listing.at(location)
        if not inside:
            raise ConfigError(
                f"texts must be files or folders with texts, but {place} is empty or not there; check its name"
            )
        if folder != location and not known(location.name):
            raise ConfigError(f"texts must be {KNOWN}, but got {place}; rename or convert it")
        chosen = inside if folder != location else _of_folder(inside)
        if not chosen:
            raise ConfigError(f"texts must be {KNOWN}, but {place} holds none; name files or another folder")
        for each in chosen:
            if each.url in found:
                raise ConfigError(f"each text must be named once, but {each.url} is named twice; drop one")
            name = location.name + each.url.removeprefix(location.url)
            found[each.url] = Input(each.url, name, each.size, each.stamp)
    return list(found.values())


def _of_folder(files: Sequence[Listed]) -> list[Listed]:
    """JSON lines and Parquet of a folder's files, plain text only where there are none: beside them it is about them.

    A .json is for who names it: in a folder it may be anything, such as a tokenizer.
    """
    found = [each for each in files if known(each.url) and not each.url.endswith(".json")]
    plain = [each for each in found if is_plain(each.url)]
    return plain if len(plain) == len(found) else [each for each in found if each not in plain]


def sha256(input: Input) -> str:
    """SHA-256 of the file as it lies there."""
    return file_sha256(Location(input.url))
