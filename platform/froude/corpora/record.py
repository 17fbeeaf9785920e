"""data.json: what a folder of shards holds, what it was made of, and the hash of each file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from froude.config import ConfigError
from froude.corpora.files import File
from froude.store import Location, reported

#: The copy of a corpus's tokenizer, which its folder has.
FILE, TOKENIZER, VERSION = "data.json", "tokenizer.json", 1
#: While `froude data prepare` works: the folder of pieces, and the file in it that has the hash of each text.
PIECES, INPUTS = "pieces", "inputs.json"


@dataclass(frozen=True)
class Record:
    """A folder's data.json. Written by `froude data prepare`, or of somebody else's shards by `froude data verify`."""

    folder: Location
    content: Mapping[str, Any]

    @property
    def shards(self) -> list[Mapping[str, Any]]:
        """A table for each file: name, size, sha256; split, tokens and documents where they are known."""
        return list(self.content["shards"])

    @property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of each file by its URL."""
        return {self._url(row): row["sha256"] for row in self.shards}

    @property
    def splits(self) -> Mapping[str, Mapping[str, Any]]:
        """documents, tokens, bytes and duplicates of each split; empty where a tokenizer did not make it here."""
        return dict(self.content.get("splits", {}))

    @property
    def tokenizer(self) -> Mapping[str, Any]:
        """name, sha256, vocab and eod of the tokenizer; empty where it is not known."""
        return dict(self.content.get("tokenizer", {}))

    def _url(self, row: Mapping[str, Any]) -> str:
        return f"{self.folder.url.rstrip('/')}/{row['name']}"

    def split_of(self, files: Mapping[str, File]) -> dict[str, str]:
        """The split of each file (by URL) that is listed with one; ConfigError for one of another size than listed."""
        found = {}
        for row in self.shards:
            file = files.get(self._url(row))
            if file is not None and file.size != row["size"]:
                raise ConfigError(
                    f"a shard must have the size that {self.folder / FILE} lists, {row['size']} bytes, but {file.url} "
                    f"has {file.size}; restore it, or prepare the data again"
                )
            if file is not None and "split" in row:
                found[file.url] = row["split"]
        return found

    def check_tokenizer(self, name: str, sha256: str) -> None:
        """ConfigError if the shards are known to be another tokenizer's than the one named."""
        made = self.tokenizer
        if made and made["sha256"] != sha256:
            raise ConfigError(
                f"shards must be read with the tokenizer that made them, {made['name']} (SHA-256 "
                f"{made['sha256'][:12]}…), but {name} has {sha256[:12]}…; the folder has a copy of its own"
            )

    def bytes_per_token(self, split: str) -> float | None:
        """Bytes of text (UTF-8) over tokens, those that end documents among them; None where it is not known."""
        counts = self.splits.get(split, {})
        return counts["bytes"] / counts["tokens"] if counts.get("tokens") and counts.get("bytes") else None


def read(folder: Location) -> Record | None:
    """A folder's data.json; None if it has none, ConfigError if it is none of ours."""
    place = folder / FILE
    with reported(place, "data.json must be readable"):
        if not place.exists():
            return None
        content = place.read()
    remedy = "restore it, or remove it and make it anew with `froude data verify --write`"
    try:
        table = json.loads(content)
        whole = table["version"] == VERSION and all(
            isinstance(each["name"], str)
            and isinstance(each["size"], int)
            and isinstance(each["sha256"], str)
            for each in table["shards"]
        )
        counts = [count for split in table.get("splits", {}).values() for count in split.values()]
        whole = whole and all(isinstance(count, int) and count >= 0 for count in counts)
        made = table.get("tokenizer", {"name": "", "sha256": "", "vocab": 0})
        whole = whole and isinstance(made["name"] + made["sha256"], str)
        whole = whole and isinstance(made["vocab"], int) and made["vocab"] >= 0
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise ConfigError(
            f"data.json must list shards by name, size and sha256 (version {VERSION}), but {place} does "
            f"not; {remedy}"
        )
    return Record(folder, table)


def check_finished(folder: Location, files: Iterable[str] | None = None) -> None:
    """ConfigError if `froude data prepare` has not ended in a folder; given the URLs of all its files, or below it."""
    ending = f"/{PIECES}/{INPUTS}"
    with reported(folder, "a corpus must be readable"):
        if files is not None:
            begun = [url.removesuffix(ending) for url in files if url.endswith(ending)]
        else:
            unfinished = (folder / PIECES / INPUTS).exists() and not (folder / FILE).exists()
            begun = [folder.url] if unfinished else []
    if begun:
        raise ConfigError(
            f"a corpus must be finished, but `froude data prepare` has not ended in {begun[0]}; give that command again"
        )


def write(folder: Location, content: Mapping[str, Any]) -> Record:
    """Write a folder's data.json, whole."""
    table = {"version": VERSION, **content}
    with reported(folder / FILE, "data.json must be writable"):
        (folder / FILE).replace(json.dumps(table, indent=1).encode() + b"\n")
    return Record(folder, table)
