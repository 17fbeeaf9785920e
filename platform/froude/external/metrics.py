"""What a user's trainer tells of itself: JSON lines, Parquet with the same columns, a tracker's folder; all checked."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from froude.config import Run
from froude.external import tracker_folders
from froude.section import ConfigError, did_you_mean
from froude.sections import TOLD

VALIDATION = "validation_loss"
#: Numbers of a step's line that the steps frame has columns for.
MEASURED = ("lr", "grad_norm", "tokens_per_second", "seconds")
COUNTS = ("params", "params_with_embeddings")
#: What the tokens of a step may differ by from batch × step, as in a table of runs.
TOLERANCE = 0.01
DECODER = json.JSONDecoder()


@dataclass
class Metrics:
    """What lines have told so far: losses by step, validation losses by set and step, the model's size.

    A step that is not after the one before it takes back what was told of it and of later steps: the trainer went back
    to a checkpoint, or began anew. Losses are in nats per token, `tokens` are those trained on up to a step. `series`
    are the trainer's names by ours, where they differ; empty: as the run's trainer says.
    """

    run: Run
    where: str
    series: Mapping[str, str] = field(default_factory=dict)
    steps: dict[int, dict[str, Any]] = field(default_factory=dict)
    evals: dict[tuple[int, str], float] = field(default_factory=dict)
    size: dict[str, float] = field(default_factory=dict)
    diverged: str = ""
    unknown: set[str] = field(default_factory=set)
    went_back: bool = False
    _at: int = 0

    def __post_init__(self) -> None:
        self.series = self.series or self.run.trainer.series

    def add(self, line: Mapping[str, Any], number: int) -> None:
        """Take one line in, the file's `number`th, from 1; ConfigError if it breaks a rule."""
        at = f"line {number} of {self.where}"
        line = _renamed(line, self.series)
        self.unknown |= {key for key in line if key not in TOLD and not key.startswith(f"{VALIDATION}_")}
        for key in (*COUNTS, "flops_per_token"):
            if line.get(key) is not None:
                self.size[key] = _positive(line[key], key, at, whole=key in COUNTS)
        if "loss" in line:
            self._loss(line, at)
        if line.get("status") == "diverged":  # after its loss, which may be of a step that was told before
            self.diverged = str(line.get("reason") or "the trainer said that it diverged")
        for key in line:
            if line[key] is not None and (key == VALIDATION or key.startswith(f"{VALIDATION}_")):
                step = self._step(line, at, least=0) if line.get("step") is not None else self._at
                split = key.removeprefix(f"{VALIDATION}_") if key != VALIDATION else "validation"
                self.evals[step, split] = _loss(line[key], key, at)

    def _loss(self, line: Mapping[str, Any], at: str) -> None:
        step = self._step(line, at, least=1)
        due, tokens = self.run.phases.tokens_at(step), line.get("tokens")
        if tokens is not None:
            seen = _positive(tokens, "tokens", at)
            if abs(seen - due) > max(TOLERANCE * due, 0.5):
                raise ConfigError(
                    f"`tokens` must be those trained on up to a step, {due:,} at step {step} of this run, but {at} has "
                    f"{seen:,.0f}; train the run's batch and steps, and count tokens, not windows"
                )
        if step <= self._at:
            self.went_back, self.diverged = True, ""
            self.steps = {other: row for other, row in self.steps.items() if other < step}
            self.evals = {key: loss for key, loss in self.evals.items() if key[0] < step}
        self._at = step
        row = {"step": step, "tokens": due, "loss": _loss(line["loss"], "loss", at)}
        for key in MEASURED:
            if line.get(key) is not None:
                row[key] = _number(line[key], key, at)
        self.steps[step] = row

    def _step(self, line: Mapping[str, Any], at: str, least: int) -> int:
        if line.get("step") is None:
            raise ConfigError(f"a line with a loss must have its `step`, but {at} has none; write it")
        value = _number(line["step"], "step", at)
        if value != value // 1 or not least <= value <= self.run.steps:
            raise ConfigError(
                f"`step` must be the number of updates so far, {least} to {self.run.steps}, but {at} has {value:g}; "
                "count from 1, after the first update, or name a series that does so in `trainer.series` as step"
            )
        return int(value)

    @property
    def step(self) -> int:
        """The newest step that has a loss."""
        return self._at

    @property
    def final(self) -> float | None:
        """The validation loss after the last step, None before it is there."""
        return self.evals.get((self.run.steps, "validation"))

    @property
    def why_diverged(self) -> str:
        """Why the run has diverged by what its trainer tells; empty if it has not."""
        if self.diverged:
            return self.diverged
        odd = next((step for step, row in sorted(self.steps.items()) if not math.isfinite(row["loss"])), None)
        if odd is not None:
            return f"the loss was not finite at step {odd}"
        odd = next((step for (step, _), loss in sorted(self.evals.items()) if not math.isfinite(loss)), None)
        return f"a validation loss was not finite at step {odd}" if odd is not None else ""

    def lacking(self) -> str:
        """Why a command that exited with 0 has not finished its run, with the remedy."""
        rule = f"a command that exits with 0 must have written the {VALIDATION} of its last step, {self.run.steps}, to "
        rule += f"FROUDE_METRICS ({self.where}), but "
        if last := max((step for step, split in self.evals if split == "validation"), default=None):
            return f"{rule}its last is of step {last}; evaluate after the last update, and count steps from 1"
        if self._at in (0, self.run.steps) and (other := self._others()):
            if named := self.series.get(VALIDATION):
                return f"{rule}`trainer.series` calls it {named!r}, but it has {', '.join(other)}; correct the name"
            meant = did_you_mean(other[0], TOLD)
            return (
                f"{rule}it has only {', '.join(other)}{meant}; name it {VALIDATION}, or say its name in "
                "`trainer.series`"
            )
        what = f"losses up to step {self._at}" if self._at else "nothing"
        place = Path(self.where)
        if place.is_dir():
            return f"{rule}it has {what}; log {VALIDATION} at that step"
        beside = f" (the folder {place.stem} beside it is not read)" if place.with_suffix("").is_dir() else ""
        return f"{rule}it wrote {what}{beside}; append a JSON line with step and {VALIDATION} at the end"

    def _others(self) -> list[str]:
        """A few names that are no metric's, those of losses first."""
        return sorted(self.unknown, key=lambda name: ("loss" not in name.lower(), name))[:4]

    @property
    def unnamed(self) -> str:
        """Which loss is due and was not told, where there are other names that it may have; else empty."""
        over = self._at >= self.run.steps and self.final is None
        due = (VALIDATION if over else "") if self.steps else "loss"
        if not due or not self.unknown:
            return ""
        names = ", ".join(self._others())
        return f"{self.where} has no `{due}` yet, but {names}; --series {due}=NAME if it is one of these"


def read(file: Path, run: Run) -> Metrics:
    """Everything that is in a metrics file, which may be missing; ConfigError for a line that breaks a rule."""
    metrics = Metrics(run, str(file))
    for number, line in lines(file, metrics.series):
        metrics.add(line, number)
    return metrics


def lines(file: Path, series: Mapping[str, str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """A file's rows and their lines' numbers: JSON lines that are ready, or Parquet by the name's ending.

    Of a folder those of the one run that a tracker wrote there, its losses being those that `series` names.
    """
    if file.is_dir():
        yield from enumerate(tracker_folders.rows(file, series), 1)
        return
    if file.suffix == ".parquet":
        yield from enumerate(_parquet(file), 1)
        return
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return
    for number, line in enumerate(ready(content).split(b"\n"), 1):
        for found in decoded(line, f"line {number} of {file}", series):
            yield number, found


def ready(content: bytes) -> bytes:
    """Lines that are being written, without a last one that is neither ended nor a whole object."""
    last = content.rfind(b"\n") + 1
    _, rest = _objects(content[last:])
    return content[:last] if rest else content


def decoded(line: bytes, at: str, series: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """A line's JSON object, none of an empty one; ConfigError for anything else.

    A trainer that was killed may leave a line without its end, and the next one goes on with it: then there
    are several objects, or the first is only half there and is left out.
    """
    found, rest = _objects(line)
    if not rest:
        return found
    # Objects within the half, or within what was appended, do not end with the line; if that is cut, too, an
    # object within it may: hence the keys.
    keys = {series.get(key, key) for key in ("step", *COUNTS)}
    for start in re.finditer(r'(?<!^)\{"', rest) if rest.startswith("{") else ():
        row, end = _object(rest, start.start())
        if row is not None and end == len(rest) and not keys.isdisjoint(row):
            return [*found, row]
    shown = line[:60].decode(errors="replace")
    raise ConfigError(
        f"a line of metrics must be a JSON object, but {at} is {shown!r}; write whole lines, from one process, and "
        "nothing else to FROUDE_METRICS"
    )


def _objects(line: bytes) -> tuple[list[Mapping[str, Any]], str]:
    """The whole JSON objects that a line begins with, and what follows them."""
    text = line.decode("utf-8-sig", errors="replace").strip()
    found: list[Mapping[str, Any]] = []
    row, end = _object(text, 0)
    while row is not None:
        found.append(row)
        while text[end : end + 1].isspace():
            end += 1
        row, end = _object(text, end)
    return found, text[end:]


def _object(text: str, start: int) -> tuple[Mapping[str, Any] | None, int]:
    """The JSON object that begins there, and its end; None if there is none."""
    try:
        found, end = DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, start
    return (found, end) if isinstance(found, dict) else (None, start)


def _parquet(file: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow as pa

    from froude.schemas import table_of

    try:
        rows = table_of(file.read_bytes()).to_pylist()
    except FileNotFoundError:
        return
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(
            f"metrics in {file} must be a whole Parquet file, but reading it says: {error}; write it to another name, "
            "then rename it"
        ) from None
    for row in rows:
        # What a line leaves out is a null here; a loss that is no number must be NaN.
        yield {key: value for key, value in row.items() if value is not None}


def newest_step(file: Path) -> int:
    """The step of the newest whole line that has one, quickly; 0 if there is none yet."""
    try:
        with file.open("rb") as source:
            size = source.seek(0, os.SEEK_END)
            source.seek(max(0, size - 4096))
            found = source.read().split(b"\n")[:-1]
    except OSError:
        return 0
    for line in reversed(found):
        try:
            step = json.loads(line)["step"]
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if isinstance(step, int):
            return step
    return 0


def _renamed(line: Mapping[str, Any], series: Mapping[str, str]) -> Mapping[str, Any]:
    """The line by our names; what is called so without being meant is left out."""
    if not series:
        return line
    kept = {key: value for key, value in line.items() if key not in series and key not in series.values()}
    return kept | {ours: line[theirs] for ours, theirs in series.items() if theirs in line}


def _number(value: object, key: str, at: str) -> float:
    """A number, also NaN and infinities, also as text; ConfigError for anything else."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            pass
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"`{key}` must be a number, but {at} has {value!r}; write a plain JSON number")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _loss(value: object, key: str, at: str) -> float:
    """A loss; null is one that is no number, as some libraries write NaN."""
    found = math.nan if value is None else _number(value, key, at)
    if found < 0:
        raise ConfigError(f"`{key}` must be in nats per token, 0 or more, but {at} has {found:g}; correct it")
    return found


def _positive(value: object, key: str, at: str, *, whole: bool = False) -> float:
    found = _number(value, key, at)
    if not (math.isfinite(found) and found > 0) or (whole and found != found // 1):
        raise ConfigError(
            f"`{key}` must be a {'whole ' * whole}number above 0, but {at} has {found:g}; correct it"
        )
    return found
