"""Formats of token shards. A new one is a file here and a line in FORMATS."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from froude.config import ConfigError
from froude.corpora.files import File, in_turn
from froude.corpora.formats import arrow, dolma, flat, llmc, megatron, parquet
from froude.corpora.formats.shard import Shard
from froude.section import listing

DTYPES = ("uint16", "uint32", "int32")
AUTO = "auto"
HEAD = 8  # bytes, at least as many as any magic has


@dataclass(frozen=True)
class Format:
    """How a format is opened, by the type of ids or the column, and how its files are known.

    `suffix` is that of the files with tokens; `magic` is what these begin with, where that tells formats apart;
    `beside` gives the name of a file without which it is another format. Names that begin with `passed` are others'.
    """

    open: Callable[[File, str, Mapping[str, File]], Shard]
    suffix: str
    setting: str = ""
    passed: str = ""
    magic: tuple[bytes, ...] = ()
    beside: Callable[[str], str] | None = None

    def named(self, file: File) -> bool:
        """Whether a file has the name of a shard."""
        name = file.url.rpartition("/")[2]
        return name.endswith(self.suffix) and not (self.passed and name.startswith(self.passed))

    def is_of(self, file: File, names: Mapping[str, File]) -> bool:
        """Whether a file is a shard of this format."""
        if not self.named(file):
            return False
        if self.beside and self.beside(file.url) not in names:
            return False
        return not self.magic or any(_begins(file, magic) for magic in self.magic)


#: In the order in which they are tried: of those with one suffix the most particular comes first.
FORMATS: dict[str, Format] = {
    "megatron": Format(megatron.shard, ".bin", beside=megatron.index_name),
    "llm.c": Format(llmc.shard, ".bin", magic=llmc.MAGICS),
    "uint": Format(flat.headerless, ".bin", "dtype"),
    "dolma": Format(dolma.shard, ".npy", "dtype"),
    "parquet": Format(parquet.shard, ".parquet", "column"),
    "arrow": Format(arrow.shard, ".arrow", "column", passed="cache-"),  # what `datasets` keeps of shuffles,
}


def _begins(file: File, magic: bytes) -> bool:
    return file.size >= len(magic) and file.read(0, len(magic)).tobytes() == magic


def _needs_head(file: File, names: Mapping[str, File]) -> bool:
    """Whether only what a file begins with tells its format."""
    for kind in FORMATS.values():
        if kind.named(file) and (kind.magic or (kind.beside and kind.beside(file.url) in names)):
            return bool(kind.magic)
    return False


def format_of(file: File, names: Mapping[str, File]) -> str | None:
    """The format of a file, by its name and what it begins with; None if it holds no tokens."""
    return next((name for name, kind in FORMATS.items() if kind.is_of(file, names)), None)


def recognised(
    path: str, files: Sequence[File], names: Mapping[str, File], wanted: str
) -> tuple[str, list[File]]:
    """The one format of these files, and those of them that are shards; ConfigError unless there is exactly one.

    `names` are these files and others that lie beside them.
    """
    if wanted != AUTO:
        if wanted not in FORMATS:
            raise ConfigError(
                f"`data.options.format` must be {AUTO} or {listing(list(FORMATS))}, but got {wanted!r}; correct it"
            )
        kind = FORMATS[wanted]
        shards = [file for file in files if kind.named(file)] or (files if len(files) == 1 else [])
        lonely = [file for file in shards if kind.beside and kind.beside(file.url) not in names]
        if not shards or lonely:
            lack = (
                f"{lonely[0].url} has no {kind.beside(lonely[0].url)}"
                if lonely and kind.beside
                else "there is none"
            )
            raise ConfigError(
                f"shards of format {wanted} must end in {kind.suffix}, but {lack} at {path!r}; correct it"
            )
        return wanted, list(shards)
    found: dict[str, list[File]] = {}
    heads = in_turn((file, 0, min(HEAD, file.size)) for file in files if _needs_head(file, names))
    for file in files:
        if _needs_head(file, names):
            next(heads)  # the cache has it now
        if file.url.endswith(".idx") and file.url.removesuffix(".idx") + ".bin" not in names:
            raise ConfigError(
                f"an .idx must have its .bin beside it, but {file.url} has none; restore or name it"
            )
        if name := format_of(file, names):
            found.setdefault(name, []).append(file)
    for file in found.get("uint", []):
        if file.url.endswith(megatron.NAMES):
            raise ConfigError(
                f"a .bin with a name of Megatron's must have its .idx beside it, but {file.url} has none; restore it, "
                "or set `data.options.format` to uint"
            )
    if not found:
        raise ConfigError(
            f"a path must have token shards ({', '.join(sorted({k.suffix for k in FORMATS.values()}))}), but "
            f"{path!r} has only {files[0].url} and the like; correct it, or set `data.options.format`"
        )
    if len(found) > 1:
        examples = ", ".join(f"{name} ({shards[0].url})" for name, shards in found.items())
        raise ConfigError(
            f"shards of one source must have one format, but {path!r} has {examples}; set `data.options.format`, or "
            "name those of one by a pattern"
        )
    return next(iter(found.items()))
