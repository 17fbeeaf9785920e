"""What one may ask of a run's checkpoints: which there are, whether they are whole, how two differ, a file to share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np
import torch
import xxhash

from froude.checkpoint.parts import Corrupt
from froude.checkpoint.reader import open_part, read_into
from froude.checkpoint.tensors import Difference, Tensors, differences
from froude.config import ConfigError
from froude.runlog import LogReader, Part, Record, expired
from froude.store import Location, reported

PIECE = 16 << 20  # bytes read and hashed at once
PARAMETER, STATE = "model.", "optimizer."


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in a run's folder; `why_not` says why one is not committed, and is empty where it is.

    `nbytes` are those of its data, none where it was `expired` and deleted; `seq` and `time` are None where no record
    names it.
    """

    step: int
    tokens: int | None
    attempt: int | None
    seq: int | None
    kind: str
    time: datetime | None
    nbytes: int
    committed: bool
    why_not: str = ""
    expired: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "time": self.time.isoformat() if self.time else None}


def find_run(place: Location | str, name: str = "") -> Location:
    """The directory of a run: itself, or a run (the only one, or the one named) of the study at `place`.

    A recipe.toml stands for the study that it lies in. ConfigError if there is no such run, or more than one.
    """
    location = Location.parse(place)
    if location.name.endswith(".toml"):
        location = location.parent
    with reported(location, "a run must be readable"):
        if "commits" in (inside := location.children()):
            return location
        runs = (location / "runs").children() if "runs" in inside else []
    runs = [run for run in runs if not run.startswith(".")]
    found = [run for run in runs if run == name] if name else runs
    if len(found) == 1:
        return location / "runs" / found[0]
    known = (
        f"it has {', '.join(runs)}; name one with --run" if runs else "it has none; `froude train` begins one"
    )
    raise ConfigError(f"a run's directory or a study with one run is needed, but got {location}: {known}")


def checkpoints(run: Location) -> list[Checkpoint]:
    """Every checkpoint below a run's directory, oldest first, those without a record last."""
    records = LogReader(run).records()
    found, named, gone = [], set(), expired(records)
    for record in records:
        if record.kind == "attempt":
            continue
        data = [part for part in record.parts if part.kind in ("data", "manifest")]
        named |= {part.path.rpartition("/")[0] for part in data}
        found.append(
            Checkpoint(
                step=record.step,
                tokens=record.tokens,
                attempt=record.attempt,
                seq=record.seq,
                kind=record.kind,
                time=record.time,
                nbytes=0 if record.seq in gone else sum(part.size for part in data),
                committed=True,
                expired=record.seq in gone,
            )
        )
    latest = records[-1].generation if records else ""
    return found + list(_unnamed(run, named, latest))


def _unnamed(run: Location, named: set[str], latest: str) -> Iterator[Checkpoint]:
    for step in filter(str.isdecimal, (run / "data").children()):
        for folder in (run / "data" / step).children():
            path = f"data/{step}/{folder}"
            if path in named:
                continue
            sizes = [(run / path / name).size() or 0 for name in (run / path).children()]
            if not sizes:  # a folder that was swept
                continue
            live = folder.partition(".")[0] == latest
            why = "no record names it: " + (
                "being written, or lost with its attempt"
                if live
                else "its attempt ended before it was committed"
            )
            yield Checkpoint(int(step), None, None, None, "checkpoint", None, sum(sizes), False, why)


def chosen(run: Location, step: int | None = None) -> Record:
    """The run's newest checkpoint, or the newest one of a step; ConfigError if there is none."""
    log = LogReader(run)
    gone = expired(log.records())
    line = [record for record in log.lineage() if record.seq not in gone]
    found = [record for record in line if step is None or record.step == step]
    if not found:
        raise _missing(run, line, step)
    return found[-1]


def _missing(run: Location, records: Sequence[Record], step: int | None) -> ConfigError:
    steps = ", ".join(map(str, sorted({record.step for record in records})[-8:])) or "none"
    return ConfigError(
        f"a checkpoint must be committed to be read, but {run} has none"
        + (f" of step {step}; it has {steps}" if step is not None else "; train first")
    )


def verify(run: Location, records: Sequence[Record], step: int | None = None) -> Iterator[tuple[Record, str]]:
    """For each record that commits a state (of a step): what is wrong with it, or "" if parts and tensors are whole.

    Of an expired checkpoint only the ledger and the metrics are there to be read, also if it was given up after
    `records` were read. ConfigError if no record is of the step.
    """
    gone = expired(records)
    states = [record for record in records if record.kind != "attempt"]
    found = [record for record in states if step in (None, record.step)]
    if not found and step is not None:
        raise _missing(run, states, step)
    for record in found:
        damage = _damage(run, record, record.seq in gone)
        if damage and record.seq not in gone:
            gone = expired(LogReader(run).records())  # a run that goes on has given up more since
            damage = _damage(run, record, True) if record.seq in gone else damage
        yield record, damage


def _damage(run: Location, record: Record, given_up: bool) -> str:
    """What is wrong with what a record commits, "" if nothing; without its data, if that was given up."""
    try:
        for part in record.parts:
            if not given_up or part.kind not in ("data", "manifest"):
                _hash(run, part)
        if not given_up:
            with Tensors(run, record) as tensors:
                for name in tensors:
                    tensors[name]
    except (Corrupt, ConfigError) as error:
        # A newer froude's checkpoint is no reason to leave out the others.
        return str(error)
    return ""


def _hash(run: Location, part: Part) -> None:
    """Read a part from end to end; Corrupt unless it is the bytes that were committed."""
    found, done, piece = xxhash.xxh3_128(), 0, np.empty(min(PIECE, part.size), np.uint8)
    with open_part(run, part) as file:
        while done < part.size and (count := read_into(file, done, piece)):
            found.update(piece[:count].data)
            done += count
    if done != part.size or found.hexdigest() != part.hash:
        raise Corrupt(f"{run / part.path} is not the {part.size} bytes that were committed")


def diff(a: tuple[Location, Record], b: tuple[Location, Record]) -> list[Difference]:
    """The tensors that are not the same bits in two checkpoints."""
    with ExitStack() as stack:
        one, other = (stack.enter_context(Tensors(run, record)) for run, record in (a, b))
        return list(differences(one, other))


def parameters(run: Location, record: Record) -> dict[str, torch.Tensor]:
    """A checkpoint's parameters by their names in the model; their average, where the run evaluates that."""
    average = record.scalars.get("average")
    with Tensors(run, record) as tensors:
        found = {
            name.removeprefix(PARAMETER): tensors[name] for name in tensors if name.startswith(PARAMETER)
        }
        if average:
            for name, weight in found.items():
                weight.lerp_(tensors[f"{STATE}{name}.{average['key']}"], average["weight"])
    return found


def export(run: Location, record: Record, target: Location, about: Mapping[str, Any] | None = None) -> int:
    """Write a checkpoint's parameters as one safetensors file, under their names in the model; bytes written.

    Of a run that evaluates an average of them (`froude.optimizers.Average`) the average is written. The file's metadata
    have the checkpoint's run, step, tokens and recipe, and what `about` says, as JSON in `froude`.
    """
    from safetensors.torch import save

    names = {"run": record.run, "step": record.step, "tokens": record.tokens, "recipe": record.recipe}
    average = record.scalars.get("average")
    about = {**names, **({"average": average} if average else {}), **(about or {})}
    content = save(parameters(run, record), metadata={"format": "pt", "froude": json.dumps(about)})
    target.replace(content)
    return len(content)
