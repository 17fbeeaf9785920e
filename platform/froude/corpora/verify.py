"""`froude data verify`: every byte of every shard, held against the hashes that were taken when it was made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from froude.config import ConfigError
from froude.corpora import record
from froude.corpora.prepare.inputs import file_sha256
from froude.corpora.record import Corpus
from froude.store import Location, reported

#: What files of tokens are called.
SHARDS = (".bin", ".idx", ".npy", ".csv.gz", ".parquet", ".arrow")


@dataclass(frozen=True)
class Seen:
    """A shard, and what is wrong with it; "" if nothing is."""

    name: str
    wrong: str


def verify(place: str, progress: Callable[[float, str], None] = lambda share, what: None) -> Iterator[Seen]:
    """Each shard of a folder (or the one named), and whether it is what data.json says; ConfigError without one."""
    location = Location.parse(place)
    single = location.name.endswith(SHARDS)
    folder = location.parent if single else location
    known = record.read(folder)
    if known is None:
        raise ConfigError(
            f"shards are verified against {record.FILE}, but {folder} has none; `froude data verify {folder} --write` "
            "makes one of the shards as they are now"
        )
    wanted = {row["name"]: row for row in known.shards if not single or row["name"] == location.name}
    if single and not wanted:
        raise ConfigError(
            f"{folder / record.FILE} must list the shard, but has no {location.name}; name the folder"
        )
    total, done = max(1, sum(row["size"] for row in wanted.values())), 0
    for name, row in wanted.items():
        size = (folder / name).size()
        wrong = "is not there" if size is None else ""
        if size is not None and size != row["size"]:
            wrong = f"has {size:,} bytes instead of {row['size']:,}"
        elif size is not None and (now := file_sha256(folder / name)) != row["sha256"]:
            wrong = f"has SHA-256 {now[:12]}… instead of {row['sha256'][:12]}…"
        done += row["size"]
        progress(done / total, f"{done / 2**20:.1f} of {total / 2**20:.1f} MiB")
        yield Seen(name, wrong)
    if not single:
        if known.tokenizer:
            yield Seen(record.TOKENIZER, _copy(folder, known.tokenizer["sha256"]))
        for name in _shards(folder):
            if name not in wanted:
                yield Seen(name, f"is not in {record.FILE}")


def _copy(folder: Location, sha256: str) -> str:
    """What is wrong with the folder's copy of its tokenizer."""
    copy = folder / record.TOKENIZER
    now = file_sha256(copy) if copy.exists() else ""
    if now == sha256:
        return ""
    return f"has SHA-256 {now[:12]}… instead of {sha256[:12]}…" if now else "is not there"


def write(place: str, progress: Callable[[float, str], None] = lambda share, what: None) -> Corpus:
    """Make the data.json of a folder of somebody else's shards; ConfigError if it has one."""
    folder = Location.parse(place)
    if record.read(folder) is not None:
        raise ConfigError(
            f"--write is for shards without {record.FILE}, but {folder} has one; verify without --write, or remove it"
        )
    names = _shards(folder)
    if not names:
        raise ConfigError(
            f"a corpus must have shards ({', '.join(SHARDS)}), but {folder} has none; name another folder"
        )
    sizes = {name: (folder / name).size() or 0 for name in names}
    rows, done, total = [], 0, max(1, sum(sizes.values()))
    for name, size in sizes.items():
        rows.append({"name": name, "size": size, "sha256": file_sha256(folder / name)})
        done += size
        progress(done / total, f"{done / 2**20:.1f} of {total / 2**20:.1f} MiB")
    return record.write(folder, {"shards": rows})


def _shards(folder: Location) -> list[str]:
    """Names of the shards below a folder, relative to it."""
    with reported(folder, "shards must be readable"):
        found = [each.url.removeprefix(folder.url.rstrip("/") + "/") for each in folder.walk()]
    return [name for name in found if name.endswith(SHARDS)]
