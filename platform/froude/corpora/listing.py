"""Which files a path names: a file, all of a folder, those of a pattern; local or on S3, in order of their names."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from froude import durable, s3
from froude.config import ConfigError
from froude.corpora.blocks import REQUESTS
from froude.corpora.files import File, opened
from froude.store import Location, reported

#: Endings of what stands beside a shard under its name, by the shard's ending.
COMPANIONS = {".bin": ".idx", ".npy": ".csv.gz"}


class Listed(NamedTuple):
    """A file as a listing has it; `stamp` is when it was written, ns."""

    url: str
    size: int
    stamp: int

    def open(self) -> File:
        """The file, of which nothing is read yet."""
        return opened(*self)


class Found(NamedTuple):
    """The files that a path names, sorted by name, and the folder that it names or lies in."""

    files: tuple[Listed, ...]
    folder: str


def find(path: str, key: str) -> Found:
    """The files at a path, a folder (with those below it), or a pattern of `glob`.

    ConfigError, which names the setting `key`, if there are none or the store can't be read.
    """
    if not path:
        raise ConfigError(
            f"`{key}` must name token shards: a file, a folder, a pattern or an s3:// URL, but is empty; set it"
        )
    pattern = glob.has_magic(path) and not os.path.exists(path)
    try:
        where = Location.parse(_plain(path) if pattern else path)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"`{key}` must be a path or an s3:// URL, but got {path!r}: {error}") from None
    with reported(where, f"`{key}` must be readable on every worker's host"):
        found, folder = (_matching(path), where) if pattern else at(where)
    if not found:
        what = "matches no file" if pattern else "has no file"
        raise ConfigError(f"`{key}` must name at least one file, but {path!r} {what}; correct the path")
    return Found(tuple(sorted(set(found))), folder.url)


def with_companions(files: Sequence[File], folder: str = "") -> Mapping[str, File]:
    """Files by URL, with those beside them that say more of them and that a pattern leaves out.

    Of a `folder` (its URL) all files are given: what is not among them is not there.
    """
    names = {file.url: file for file in files}
    wanted = {
        file.url.removesuffix(ending) + other
        for file in files
        for ending, other in COMPANIONS.items()
        if file.url.endswith(ending) and not (folder and file.url.startswith(f"{folder}/"))
    }
    locations = [Location(url) for url in sorted(wanted - set(names))]
    if locations:
        with reported(locations[0], "what stands beside a shard must be readable"):
            names |= {listed.url: listed.open() for listed in _infos(locations)}
    return names


def companion(file: File, names: Mapping[str, File]) -> File | None:
    """The file beside a shard that says more of it, if there is one."""
    found = (file.url.removesuffix(e) + other for e, other in COMPANIONS.items() if file.url.endswith(e))
    return names.get(next(found, ""))


def _plain(pattern: str) -> str:
    """The folder that a pattern begins with."""
    first = min(pattern.index(mark) for mark in "*?[" if mark in pattern)
    return pattern[: pattern.rfind("/", 0, first) + 1].rstrip("/") or (
        "/" if pattern.startswith("/") else "."
    )


def _matching(pattern: str) -> list[Listed]:
    if "://" in pattern:
        bucket = pattern.partition("://")[2].partition("/")[0]
        filesystem = Location.parse(f"s3://{bucket}").fsspec()[0]
        with s3.os_errors():
            return _infos([Location(f"s3://{name}") for name in filesystem.glob(pattern.partition("://")[2])])
    return _infos([Location.parse(name) for name in glob.glob(pattern, recursive=True)])


def at(where: Location) -> tuple[list[Listed], Location]:
    """A file and the folder that it lies in, or the files of a folder (with those below it), and this; by name."""
    from pyarrow import fs

    filesystem, path = where.arrow()
    with s3.arrow_errors():
        info = filesystem.get_file_info(path)
        if info.is_file:
            return list(_listed([info], where)), where.parent
        selector = fs.FileSelector(path, allow_not_found=True, recursive=True)
        return sorted(_listed(filesystem.get_file_info(selector), where)), where


def _infos(found: Sequence[Location]) -> list[Listed]:
    if not found:
        return []
    filesystem = found[0].arrow()[0]
    with s3.arrow_errors(), ThreadPoolExecutor(1 if found[0].is_local else REQUESTS) as pool:
        infos = pool.map(filesystem.get_file_info, [location.arrow()[1] for location in found])
        return list(_listed(infos, found[0]))


def _listed(infos: Iterable[Any], where: Location) -> Iterable[Listed]:
    prefix = "" if where.is_local else "s3://"
    return (
        Listed(prefix + info.path, info.size, info.mtime_ns or 0)
        for info in infos
        if info.is_file and not info.path.endswith(durable.TEMPORARY)
    )
