"""Runs in the files that W&B writes offline (`wandb/offline-run-*/run-*.wandb`), read without its service.

A file is a log in LevelDB's format after a header of seven bytes: blocks of 32 KiB, in them records of CRC-32, length,
type and data; a record's data are a message of W&B's own protocol, for which its package is needed. The package had a
reader up to version 0.2x and has none now. Values are JSON; nothing is unpickled.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from froude.config import ConfigError
from froude.store import Location, reported

BLOCK, HEADER = 32 * 1024, struct.Struct("<IHB")
MAGIC = b":W&B\xe1\xbe\x00"
WHOLE, LAST = (1, 2), (1, 4)  # types of a record that begin one's data, and that end them


@dataclass
class OfflineRun:
    """One run, of one file or of several that went on with it. `exit_code` is None where it never ended."""

    id: str
    name: str = ""
    group: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    exit_code: int | None = None


def found(folder: Location) -> list[Location]:
    """The files below a folder, oldest first: their folders' names begin with the time. A link is passed over."""
    files = (file for file in folder.walk(".wandb") if file.parent.name != "latest-run")
    return sorted(files, key=lambda file: (file.parent.name, file.name))


def read(folder: Location) -> list[OfflineRun]:
    """The runs below a folder (or in one file), oldest first."""
    files = [folder] if folder.name.endswith(".wandb") else found(folder)
    runs: dict[str, OfflineRun] = {}
    for file in files:
        _take(file, runs)
    return list(runs.values())


def messages(content: bytes, what: str) -> Iterator[bytes]:
    """The data of each record; where a process was killed, the last one is missing. ConfigError for damage."""
    if not content:  # its writer has just begun
        return
    if content[: len(MAGIC)] != MAGIC:
        raise ConfigError(
            f"a W&B file must begin with {MAGIC!r}, but {what} begins with {content[: len(MAGIC)]!r}; "
            "name a run-*.wandb file, or a folder that has some"
        )
    at, parts = len(MAGIC), b""
    while at + HEADER.size <= len(content):
        if (left := BLOCK - at % BLOCK) < HEADER.size:
            at += left
            continue
        checksum, size, kind = HEADER.unpack_from(content, at)
        data = content[at + HEADER.size : at + HEADER.size + size]
        if len(data) < size or (not checksum and not kind):
            return
        if zlib.crc32(data, zlib.crc32(bytes([kind]))) != checksum:
            raise ConfigError(
                f"a W&B file must be whole, but {what} is damaged at byte {at}; restore it, or remove it"
            )
        at += HEADER.size + size
        parts = data if kind in WHOLE else parts + data
        if kind in LAST:
            yield parts


def _take(file: Location, runs: dict[str, OfflineRun]) -> None:
    try:
        from google.protobuf.message import DecodeError
        from wandb.proto import wandb_internal_pb2
    except ImportError:
        raise ConfigError(
            "W&B's files need the package wandb, which is not installed here; "
            "pip install -e '.[wandb]' in froude's checkout"
        ) from None
    with reported(file, "a W&B file must be readable"):
        content = file.read()
    run = None
    for number, data in enumerate(messages(content, str(file))):
        try:
            record = wandb_internal_pb2.Record.FromString(data)  # type: ignore[attr-defined]
            kind = record.WhichOneof("record_type")
            if kind == "run":
                run = runs.setdefault(record.run.run_id, OfflineRun(record.run.run_id))
                run.name, run.group = record.run.display_name or run.id, record.run.run_group
                run.exit_code = None  # it goes on
                _update(run.config, record.run.config.update)
            elif run is not None and kind == "config":
                _update(run.config, record.config.update)
            elif run is not None and kind == "summary":
                _update(run.summary, record.summary.update)
            elif run is not None and kind == "history":
                row: dict[str, Any] = {"_step": record.history.step.num}
                _update(row, record.history.item)
                run.history.append(row)
            elif run is not None and kind == "exit":
                run.exit_code = record.exit.exit_code
        except (DecodeError, ValueError) as error:
            raise ConfigError(
                f"a W&B file must hold W&B's records, but number {number} of {file} is none: {error}; "
                "read it with the wandb that wrote it"
            ) from None


def _update(into: dict[str, Any], items: Any) -> None:
    """Set what the items say: a key, or nested keys, and a value as JSON."""
    for item in items:
        path, inner = list(item.nested_key) or [item.key], into
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = json.loads(item.value_json)


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables with dots between the names, as in model.width; without W&B's own."""
    rows: dict[str, Any] = {}
    for name, value in nested.items():
        if not prefix and name.startswith("_"):
            continue
        if isinstance(value, Mapping):
            rows |= flat(value, f"{prefix}{name}.")
        else:
            rows[prefix + name] = value
    return rows
