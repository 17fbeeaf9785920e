"""The commit log of a run, as readers see it: one linear chain of records, each naming its parent and its parts."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from froude.config import ConfigError
from froude.schemas import table_of
from froude.store import Location

SCHEMA_VERSION = 2
KINDS = ("attempt", "checkpoint", "finished")
MOST_BYTES = 64 << 20  # of a record; one that names a thousand parts has 100 kB
NO_BASE = -1  # `base` of what started from initial weights
_NAME = re.compile(r"(\d{8})\.parquet")
_READERS = 16  # threads: records are small, so a read is one round trip

_PART = pa.struct([("kind", pa.string()), ("path", pa.string()), ("size", pa.int64()), ("hash", pa.string())])
RECORD = pa.schema(
    [
        ("run", pa.string()),
        ("seq", pa.int64()),
        ("parent", pa.string()),  # SHA-256 of the file of record seq - 1; null for the first
        # seq of the checkpoint that this state was trained on from; -1: initial weights
        ("base", pa.int64()),
        ("attempt", pa.int64()),
        ("generation", pa.string()),  # unique to the attempt
        ("kind", pa.string()),
        ("step", pa.int64()),
        ("tokens", pa.int64()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("world", pa.int64()),
        ("recipe", pa.string()),
        ("scalars", pa.string()),  # JSON: the state's scalars
        ("meta", pa.string()),  # JSON: what the attempt says of itself
        ("parts", pa.list_(_PART)),
    ],
)


class BrokenLog(ConfigError):
    """The log is no single chain: a record is missing, damaged, or has another parent."""


@dataclass(frozen=True)
class Part:
    """A file that a record names: `kind` (data, manifest, ledger, …), path below the run, bytes, XXH3-128."""

    kind: str
    path: str
    size: int
    hash: str

    def __post_init__(self) -> None:
        if [type(getattr(self, part.name)) for part in fields(self)] != [str, str, int, str]:
            raise ValueError(f"a part must have a kind, a path, a size and a hash, but a record names {self}")
        pieces = self.path.split("/")
        if not all(pieces) or ".." in pieces or "." in pieces or "\\" in self.path or "\0" in self.path:
            raise ValueError(f"a part must lie inside its run's directory, but a record names {self.path!r}")


@dataclass(frozen=True)
class Record:
    """One commit: `kind` attempt, checkpoint or finished; step and tokens of the state that it commits."""

    run: str
    seq: int
    parent: str | None
    base: int
    attempt: int
    generation: str
    kind: str
    step: int
    tokens: int
    time: datetime
    world: int
    recipe: str
    scalars: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    digest: str = field(default="", compare=False)  # SHA-256 of the file, set by the reader

    def to_bytes(self) -> bytes:
        """The record's file: Parquet, one row."""
        row = {name: getattr(self, name) for name in RECORD.names}
        row["scalars"], row["meta"] = json.dumps(self.scalars), json.dumps(self.meta)
        row["parts"] = [{part.name: getattr(p, part.name) for part in fields(Part)} for p in self.parts]
        about = {"schema": SCHEMA_VERSION, "sha256": _row_hash(row)}
        schema = RECORD.with_metadata({"froude": json.dumps(about)})
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist([row], schema=schema), sink)
        return sink.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Record:
        """ValueError (BrokenLog for a newer schema) unless this is a record."""
        if len(data) > MOST_BYTES:
            raise ValueError(f"not a commit record: more than {MOST_BYTES} bytes")
        try:
            table = table_of(data)
            about = json.loads((table.schema.metadata or {})[b"froude"])
            version = about["schema"]
            if version != SCHEMA_VERSION:
                raise BrokenLog(
                    f"a commit record must have schema {SCHEMA_VERSION}, but got {version!r}; "
                    "use the froude that wrote it"
                )
            (row,) = table.select(RECORD.names).cast(RECORD).to_pylist()
            if _row_hash(row) != about["sha256"]:
                raise ValueError("its content does not match its hash")
            row["scalars"], row["meta"] = json.loads(row["scalars"]), json.loads(row["meta"])
            row["parts"] = tuple(Part(**part) for part in row["parts"])
            record = cls(**row, digest=hashlib.sha256(data).hexdigest())
            record._check()
        except BrokenLog:
            raise
        except (
            pa.ArrowException,
            OSError,
            OverflowError,
            AttributeError,
            KeyError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            raise ValueError(f"not a commit record ({type(error).__name__}: {error})") from error
        return record

    def _check(self) -> None:
        """ValueError unless every field is there and is what its readers take it for."""
        missing = [name for name in RECORD.names if name != "parent" and getattr(self, name) is None]
        counts = (self.seq, self.attempt, self.step, self.tokens, self.world, self.base + 1)
        if missing or self.kind not in KINDS or min(counts) < 0:
            raise ValueError(f"kind {self.kind!r}, nothing for {missing}, or a negative count")
        if {type(self.scalars), type(self.meta)} != {dict}:
            raise ValueError("its scalars and meta must be JSON objects")
        if any(type(seq) is not int for seq in self.meta.get("expired", ())):
            raise ValueError("`expired` must be numbers of records")


def _row_hash(row: Mapping[str, Any]) -> str:
    """SHA-256 over a row of RECORD: nothing else vouches for the newest record."""
    time = row["time"].astimezone(UTC).isoformat()
    return hashlib.sha256(json.dumps({**row, "time": time}, sort_keys=True).encode()).hexdigest()


def record_name(seq: int) -> str:
    """File name of a record below `commits/`."""
    return f"{seq:08d}.parquet"


class LogReader:
    """Reads and checks the log below a run's directory; keeps what it has checked, since records never change."""

    def __init__(self, run: Location) -> None:
        self.location = run
        self._records: list[Record] = []

    def records(self) -> list[Record]:
        """The chain, oldest first; [] if there is none; BrokenLog names the first record that does not fit."""
        folder = self.location / "commits"
        names = [name for name in folder.children() if not name.startswith(".")]
        for name in names:
            if not _NAME.fullmatch(name):
                raise BrokenLog(
                    f"a commit log must hold numbered records only, but got {folder / name}; remove it"
                )
        # A record is read by its number, not by its listing: a folder that is being written may list a later file
        # and miss an earlier one.
        seen, listed = len(self._records), {int(name[:8]) for name in names}
        new = range(seen, max(listed, default=-1) + 1)
        if len(new) > len(listed) + _READERS:
            new = range(seen, next(seq for seq in new if seq not in listed) + 1)
        with ThreadPoolExecutor(_READERS) as pool:
            contents = list(pool.map(self._read, new))
        for content in contents:
            self._records.append(self._checked(content))
        return list(self._records)

    def head_under(self, recipe: str) -> Record | None:
        """The newest record, None if there is none; ConfigError if the run was begun with another recipe."""
        head = self.head()
        if head is not None and head.recipe != recipe:
            raise ConfigError(
                f"a run must go on with the recipe that it began with, but {self.location} is of "
                f"{head.recipe[:12]}, not {recipe[:12]}; restore the recipe or choose another run name"
            )
        return head

    def _read(self, seq: int) -> bytes | None:
        try:
            return (self.location / "commits" / record_name(seq)).read_range(0, MOST_BYTES + 1)
        except FileNotFoundError:
            return None

    def _checked(self, content: bytes | None) -> Record:
        expected = len(self._records)
        file = self.location / "commits" / record_name(expected)
        remedy = f"move it and what follows aside to go on from record {expected - 1}"
        if content is None:
            raise BrokenLog(
                f"a commit log must have no gap, but there are records after {file}, which is missing; "
                f"restore it, or move those aside to go on from record {expected - 1}"
            )
        try:
            record = Record.from_bytes(content)
        except BrokenLog as error:
            raise BrokenLog(f"{error} ({file})") from error
        except ValueError as error:
            raise BrokenLog(f"a commit log must be whole, but {file}: {error}; {remedy}") from error
        parent = self._records[-1].digest if self._records else None
        if record.seq != expected or record.parent != parent:
            raise BrokenLog(
                f"a record must name the one before it, but {file} says seq {record.seq} and parent "
                f"{record.parent}, not {expected} and {parent}; {remedy}"
            )
        return record

    def head(self) -> Record | None:
        """The newest record."""
        records = self.records()
        return records[-1] if records else None

    def lineage(self) -> list[Record]:
        """The checkpoints that the newest one was trained through, oldest first: their parts are the run."""
        return lineage(self.records())


def lineage(records: Sequence[Record], newest: int | None = None) -> list[Record]:
    """From the newest checkpoint (or that number) back along `base`; what was thrown away is not in it."""
    by_seq = {record.seq: record for record in records if record.kind != "attempt"}
    found: list[Record] = []
    at = max(by_seq, default=NO_BASE) if newest is None else newest
    while at != NO_BASE:
        if at not in by_seq or (found and at >= found[-1].seq):
            raise BrokenLog(
                f"a record's base must be an earlier checkpoint, but record {found[-1].seq} of {found[-1].run!r} "
                f"names {at}; restore the log from a copy"
            )
        found.append(by_seq[at])
        at = found[-1].base
    return found[::-1]


def disorder(records: Sequence[Record]) -> str:
    """What no writer leaves in a chain, "" if there is none: a record after the end, or not of the newest attempt."""
    newest: tuple[int, str] = (0, "")
    for before, record in zip([None, *records], records, strict=False):
        whose = (record.attempt, record.generation)
        if before and before.kind == "finished":
            return f"record {record.seq} follows record {before.seq}, with which the run is finished"
        if record.kind == "attempt" and record.attempt != newest[0] + 1:
            return f"record {record.seq} opens attempt {record.attempt}, but attempt {newest[0] + 1} would be next"
        if record.kind != "attempt" and whose != newest:
            return f"record {record.seq} is of {_attempt(*whose)}, but the newest is {_attempt(*newest)}"
        newest = whose
    return ""


def _attempt(number: int, generation: str) -> str:
    return f"attempt {number} ({generation[:8]})" if number else "none"


def expired(records: Iterable[Record]) -> set[int]:
    """The numbers of checkpoints whose data was given up: each is named by the record that was committed then."""
    return {int(seq) for record in records for seq in record.meta.get("expired", ())}


def parts_of(records: Iterable[Record], kind: str) -> list[Part]:
    """The records' parts of one kind, in order."""
    return [part for record in records for part in record.parts if part.kind == kind]
