"""`froude data verify`: every byte of every shard, held against the hashes that were taken when it was made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from froude.config import ConfigError
from froude.corpora import listing, record
from froude.corpora.content import file_sha256
from froude.corpora.listing import Listed
from froude.corpora.record import Record
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
    here = _files(folder)
    wanted = {row["name"]: row for row in known.shards if not single or row["name"] == location.name}
    if single and not wanted:
        raise ConfigError(
            f"{folder / record.FILE} must list the shard, but has no {location.name}; name the folder"
        )
    total, done = max(1, sum(row["size"] for row in wanted.values())), 0
    for name, row in wanted.items():
        wrong, file = "", here.get(name)
        if file is not None and file.size != row["size"]:
            wrong = f"has {file.size:,} bytes instead of {row['size']:,}"
        yield Seen(name, wrong or _changed(file, row["sha256"]))
        done += row["size"]
        progress(done / total, f"{done / 2**20:.1f} of {total / 2**20:.1f} MiB")
    if not single:
        if known.tokenizer:
            yield Seen(record.TOKENIZER, _changed(here.get(record.TOKENIZER), known.tokenizer["sha256"]))
        for name in here:
            if name.endswith(SHARDS) and name not in wanted:
                yield Seen(name, f"is not in {record.FILE}")


def _changed(file: Listed | None, sha256: str) -> str:
    """What is wrong with a file that should have this hash."""
    if file is None:
        return "is not there"
    now = file_sha256(Location(file.url))
    return "" if now == sha256 else f"has SHA-256 {now[:12]}… instead of {sha256[:12]}…"


def write(place: str, progress: Callable[[float, str], None] = lambda share, what: None) -> Record:
    """Make the data.json of a folder of somebody else's shards; ConfigError if it has one."""
    folder = Location.parse(place)
    if record.read(folder) is not None:
        raise ConfigError(
            f"--write is for shards without {record.FILE}, but {folder} has one; verify without --write, or remove it"
        )
    here = _files(folder)
    record.check_finished(folder, [file.url for file in here.values()])
    shards = {name: file for name, file in here.items() if name.endswith(SHARDS)}
    if not shards:
        raise ConfigError(
            f"a corpus must have shards ({', '.join(SHARDS)}), but {folder} has none; name another folder"
        )
    rows, done, total = [], 0, max(1, sum(file.size for file in shards.values()))
    for name, file in shards.items():
        rows.append({"name": name, "size": file.size, "sha256": file_sha256(Location(file.url))})
        done += file.size
        progress(done / total, f"{done / 2**20:.1f} of {total / 2**20:.1f} MiB")
    return record.write(folder, {"shards": rows})


def _files(folder: Location) -> dict[str, Listed]:
    """All files below a folder, by their names relative to it."""
    with reported(folder, "shards must be readable"):
        found, _ = listing.at(folder)
    return {file.url.removeprefix(folder.url.rstrip("/") + "/"): file for file in found}
