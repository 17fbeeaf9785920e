"""Token shards at a path, opened: their format, their streams of both splits, the hash of their content."""

from __future__ import annotations

import functools
import glob
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from froude.config import ConfigError
from froude.corpora import content, held_out, listing, record
from froude.corpora.blocks import REQUESTS
from froude.corpora.files import File
from froude.corpora.formats import DTYPES, FORMATS, recognised
from froude.corpora.formats.shard import Shard
from froude.corpora.listing import Found, Listed
from froude.corpora.record import Record
from froude.corpora.stream import Stream
from froude.section import listing as listing_of
from froude.store import Location


@dataclass(frozen=True)
class Options:
    """How shards are read; what `data.options` of a run says."""

    format: str = "auto"
    dtype: str = "uint16"
    column: str = ""
    validation: str = ""
    held_out: float = 0.01


@dataclass(frozen=True)
class Corpus:
    """Shards that train, and those that are held out by name, if any.

    `files` are theirs, with those beside them; `records` what data.json says of them.
    """

    path: str
    options: Options
    kind: str
    training: Sequence[Shard]
    held: Sequence[Shard]
    files: Sequence[File]
    records: Sequence[Record]
    _streams: dict[int, dict[str, Stream]] = field(default_factory=dict)

    def stream(self, split: str, context: int) -> Stream:
        """The tokens of a split; what is held out of shards without documents depends on the context."""
        if context not in self._streams:
            self._streams[context] = self._divided(context)
        return self._streams[context][split]

    def _divided(self, context: int) -> dict[str, Stream]:
        if self.held:
            return {"train": Stream(self.training), "validation": Stream(self.held)}
        found = held_out.divide(
            self.training, self.options.held_out, block=64 * context, least=context + 1, path=self.path
        )
        return {name: Stream(self.training, ranges) for name, ranges in found._asdict().items()}

    def nbytes(self, split: str) -> int | None:
        """Bytes of text (UTF-8) of the shards of a split; None unless data.json counts them, and just these."""
        tokens = sum(shard.tokens for shard in (self.held if split == "validation" else self.training))
        counts = [record.splits.get(split, {}) for record in self.records]
        known = tokens and tokens == sum(each.get("tokens", 0) for each in counts)
        return sum(each.get("bytes", 0) for each in counts) if known else None

    @property
    def bytes_per_token(self) -> float | None:
        """Bytes of text (UTF-8) over tokens of the shards that are held out; None where it is not known."""
        nbytes = self.nbytes("validation")
        return nbytes / sum(shard.tokens for shard in self.held) if nbytes else None

    @functools.cached_property
    def sha256(self) -> str:
        """Names the content and what is made of it, the same wherever it lies; ConfigError if data.json has another."""
        chosen = {"format": self.kind, "dtype": "", "column": ""}
        if setting := FORMATS[self.kind].setting:
            chosen[setting] = str(getattr(self.options, setting))
        split = len(self.training) if self.held else self.options.held_out
        known = {url: sha256 for record in self.records for url, sha256 in record.hashes.items()}
        text = json.dumps([chosen, split, content.sha256(self.files, known)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def open_corpus(path: str, options: Options, key: str = "data.path") -> Corpus:
    """The shards at a path, the same object as long as nothing there is written.

    ConfigError, which names the setting `key`, for what can't be read.
    """
    if options.dtype not in DTYPES:
        raise ConfigError(
            f"`data.options.dtype` must be {listing_of(DTYPES)}, but got {options.dtype!r}; correct it"
        )
    if not 0 < options.held_out < 1:
        raise ConfigError(
            f"`data.options.held_out` must be a share between 0 and 1, but got {options.held_out}; the default is 0.01"
        )
    found = listing.find(path, key)
    name = options.validation
    if name and "://" not in name and not os.path.isabs(os.path.expanduser(name)):
        name = f"{glob.escape(found.folder)}/{name}"
    held = listing.find(name, "data.options.validation").files if name else ()
    return _opened(path, options, found, held)


def _lies(url: str) -> str:
    """Where a file lies, whatever links its path goes through."""
    return url if "://" in url else os.path.realpath(url)


@functools.lru_cache(maxsize=256)  # parts of a mixture come in turn
def _opened(path: str, options: Options, found: Found, held: tuple[Listed, ...]) -> Corpus:
    held_urls = {_lies(listed.url) for listed in held}
    files = [listed.open() for listed in found.files if _lies(listed.url) not in held_urls]
    held_files = [listed.open() for listed in held]
    if not files:
        raise ConfigError(
            f"`data.options.validation` must leave shards to train on, but {options.validation!r} names all of "
            f"{path!r}; name fewer"
        )
    whole = Location.parse(path).url == found.folder
    names = listing.with_companions([*files, *held_files], found.folder if whole else "")
    record.check_finished(Location(found.folder), names if whole else None)
    if whole:  # all of a folder is meant: less of it, or more, would be another corpus, in silence
        _check_whole(Location(found.folder), names)
    kind, training = recognised(path, files, names, options.format)
    validation = recognised(options.validation, held_files, names, kind)[1] if held else []
    _check_once([*training, *validation])
    folders = dict.fromkeys(
        [found.folder, *(Location(file.url).parent.url for file in [*training, *validation])]
    )
    records = [known for folder in folders if (known := record.read(Location(folder))) is not None]
    if whole and (Location(found.folder) / record.FILE).url in names:
        _check_listed(training, records)
    splits = {url: split for known in records for url, split in known.split_of(names).items()}
    held_by_record = [file for file in training if splits.get(file.url) == "validation"]
    if not held:
        validation = held_by_record
    elif len(held_by_record) == len(training):
        raise ConfigError(
            f"`data.path` must have shards to train on, but data.json lists all of {path!r} as validation; name others"
        )
    # Whatever else is held out: nobody trains on these.
    training = [file for file in training if splits.get(file.url) != "validation"]
    both = [*training, *validation]
    beside = [other for file in both if (other := listing.companion(file, names)) is not None]
    return Corpus(
        path,
        options,
        kind,
        _shards(kind, training, options, names),
        _shards(kind, validation, options, names),
        [*both, *beside],
        records,
    )


def _check_once(shards: Sequence[File]) -> None:
    """ConfigError if two names are one file, whose tokens would be trained twice an epoch."""
    first: dict[str, str] = {}
    for file in shards:
        other = first.setdefault(_lies(file.url), file.url)
        if other != file.url:
            raise ConfigError(
                f"a shard must be there once, but {other} and {file.url} are one file; remove the link, or name the "
                "shards that you mean by a pattern"
            )


def _check_whole(folder: Location, names: Mapping[str, File]) -> None:
    known = record.read(folder)
    gone = (
        [each["name"] for each in known.shards if (folder / each["name"]).url not in names] if known else []
    )
    if gone:
        raise ConfigError(
            f"a corpus must have the files that its data.json lists, but {folder} has no {gone[0]}; restore it, or "
            "name those that you mean by a pattern"
        )


def _check_listed(shards: Sequence[File], records: Sequence[Record]) -> None:
    listed = {url for known in records for url in known.hashes}
    more = [file.url for file in shards if file.url not in listed]
    if more:
        raise ConfigError(
            f"a corpus must have only the shards that its data.json lists, but {more[0]} is not among them; move it "
            "elsewhere, or name those that you mean by a pattern"
        )


def _shards(kind: str, files: Sequence[File], options: Options, names: Mapping[str, File]) -> list[Shard]:
    """All shards, opened; several at a time on S3, where each takes requests that wait for one another."""
    known = FORMATS[kind]
    setting = str(getattr(options, known.setting)) if known.setting else ""

    def opened(file: File) -> Shard:
        return known.open(file, setting, names)

    if not any(file.url.startswith("s3://") for file in files):
        return [opened(file) for file in files]
    with ThreadPoolExecutor(REQUESTS) as pool:
        return list(pool.map(opened, files))
