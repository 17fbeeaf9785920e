"""Read a study: its frames, from a local folder or from S3 alike."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from froude import schemas
from froude.config import ConfigError
from froude.runlog import LogReader, Part, Record, lineage, parts_of
from froude.store import Location, reported

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

#: `recipe.toml`, `forecast.json`, `report.html` and their like, and what a study's folders are called.
FILES = re.compile(r"(study|target|recipe|forecast|summary|report)([.-][\w.-]+)?")
CHAOS = re.compile(r"chaos-\d+")  # where `froude chaos` trains a recipe again: a study of its own
FOLDERS = ("trials", "steps", "evals", "runs", "retired", "logs", "ray", "external")
PROJECT = "search_space.py"  # of a folder that `froude init` made
_SUFFIX = ".parquet"


def _foreign(location: Location) -> ConfigError:
    return ConfigError(
        f"a study's directory must hold only its own files, but got {location}; move it away or choose "
        "another directory"
    )


class Study:
    """The frames of the study at `url` (a path or s3://…), each a Polars LazyFrame with the columns of `records`.

    A frame without rows has its columns all the same. ConfigError for a foreign file, an unreadable store or a
    broken commit log. Reading is safe while a sweep or a run writes: what is not committed yet is not seen. Nor is a
    folder below runs/ whose log is of a run of another name.
    """

    def __init__(self, url: str | os.PathLike[str] | Location) -> None:
        self.location = Location.parse(url)
        self._logs: dict[str, LogReader] = {}
        names = self._names()
        if PROJECT in names:
            raise ConfigError(
                f"a study's directory must hold only its own files, but {self.location} is a project (it has "
                f"{PROJECT}); name the study below it, such as {self.location / 'runs/study'}"
            )
        for name in names:
            own = name in FOLDERS or FILES.fullmatch(name) or CHAOS.fullmatch(name)
            if not (name.startswith(".") or own):
                raise _foreign(self.location / name)

    def __repr__(self) -> str:
        return f"Study({self.location.url!r})"

    @property
    def exists(self) -> bool:
        """Whether a sweep has begun here."""
        return (self.location / "study.json").exists()

    def missing(self) -> ConfigError:
        """The error of what needs a study where none has begun."""
        place = self.location
        suffix, hint = place.name.rpartition(".")[2], ""
        if suffix in ("csv", "tsv", "parquet", "json", "jsonl", "ndjson"):
            hint = f"; did you mean `froude fit --from {place} --out STUDY`?"
        elif suffix == "toml":
            hint = f"; did you mean its folder, {place.parent}?"
        return ConfigError(
            "a study must have been begun by `froude sweep`, or made of a table by `froude fit --from`, but there is "
            f"none at {place}{hint}"
        )

    @property
    def meta(self) -> dict[str, Any]:
        """What the sweep wrote down about itself (study.json); {} where there is none yet."""
        file = self.location / "study.json"
        try:
            with reported(file, "a study must be readable"):
                content = json.loads(file.read()) if file.exists() else {}
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"study.json must be JSON, but {file}: {error}; restore it") from error
        if not isinstance(content, dict):
            raise ConfigError(
                f"study.json must be an object, but {file} is a {type(content).__name__}; restore it"
            )
        stages, target = content.get("stages", {}), content.get("target", {})
        if not (isinstance(stages, dict) and all(isinstance(stage, dict) for stage in stages.values())):
            raise ConfigError(
                f"study.json must have an object of stages, but {file} has other ones; restore it"
            )
        if not isinstance(target, dict):
            raise ConfigError(
                f"study.json must have an object as target, but {file} has {target!r}; restore it"
            )
        return content

    def trials(self) -> pl.LazyFrame:
        """One row per finished trial or branch of one; diverged and failed ones included."""
        return self._scan(schemas.TRIALS, [self.location / "trials" / name for name in self._parts("trials")])

    def steps(self, *, trials: bool = True) -> pl.LazyFrame:
        """One row per training step of every run and, with `trials`, every trial; a repeated step has one row."""
        return self._scan(schemas.STEPS, self._metrics("steps") if trials else self._reached("steps"))

    def evals(self) -> pl.LazyFrame:
        """One row per evaluation of every trial and every run."""
        return self._scan(schemas.EVALS, self._metrics("evals"))

    def commits(self) -> pl.LazyFrame:
        """One row per commit record of every run: attempts and checkpoints, in order."""
        rows = []
        for record in (record for chain in self._chains().values() for record in chain):
            rows.append({name: getattr(record, name) for name in schemas.COMMITS.names})
        return _frame(schemas.table(schemas.COMMITS, rows)).lazy()

    def ledger(self, all: bool = False) -> pl.LazyFrame:
        """One row per slot that entered the weights, according to the commit log; `all`: also what attempts lost."""
        if all:
            runs = self.location / "runs"
            files = [
                runs / run / "parts" / name
                for run in self._names("runs")
                for name in self._names(f"runs/{run}/parts")
                if name.startswith("ledger-")
            ]
        else:
            files = self._reached("ledger")
        return self._scan(schemas.LEDGER, files)

    def events(self) -> pl.LazyFrame:
        """One row per event that a run's spike policy noticed or caused, also in steps that a rollback discarded."""
        files = [
            self.location / "runs" / run / part.path
            for run, chain in self._chains().items()
            for part in parts_of(chain, "events")
        ]
        return self._scan(schemas.EVENTS, files)

    def norms(self) -> pl.LazyFrame:
        """One row per layer's norm of gradient, parameter or activation, every `norms_every` steps of a run."""
        return self._scan(schemas.NORMS, self._reached("norms"))

    def downstream(self) -> pl.LazyFrame:
        """One row per number that a user's own evaluation gave at a checkpoint (`froude train --evaluate`)."""
        return self._scan(schemas.DOWNSTREAM, self._reached("downstream"))

    def committed(self, run: str, kind: str, by: Iterable[Record]) -> pl.LazyFrame:
        """The rows of one of `schemas.TABLES` that these records of a run name; no other run's log is read."""
        place = self.location / "runs" / run
        return self._scan(schemas.SCHEMAS[kind], [place / part.path for part in parts_of(by, kind)])

    def _names(self, folder: str = "") -> list[str]:
        place = self.location / folder if folder else self.location
        with reported(place, "a study must be readable"):
            return place.children()

    def _parts(self, folder: str) -> list[str]:
        names = [name for name in self._names(folder) if not name.startswith(".")]
        for name in names:
            if not name.endswith(_SUFFIX):
                raise _foreign(self.location / folder / name)
        return names

    def _metrics(self, kind: str) -> list[Location]:
        # A trial's metrics are written before its row, so without the row they are those of a trial cut short.
        finished = set(self._parts("trials"))
        return [
            self.location / kind / name for name in self._parts(kind) if name in finished
        ] + self._reached(kind)

    def _chains(self) -> dict[str, list[Record]]:
        chains = {}
        for run in self._names("runs"):
            place = self.location / "runs" / run
            with reported(place, "a study must be readable"):
                chain = self._logs.setdefault(run, LogReader(place)).records()
            if (
                not chain or chain[0].run == run
            ):  # a copy beside a run, of another name, would count its tokens twice
                chains[run] = chain
        return chains

    def _reached(self, kind: str) -> list[Location]:
        files: list[Location] = []
        for run, chain in self._chains().items():
            found: list[Part] = parts_of(lineage(chain), kind)
            files += [self.location / "runs" / run / part.path for part in found]
        return files

    def _scan(self, schema: pa.Schema, files: list[Location]) -> pl.LazyFrame:
        import polars as pl

        empty = _frame(schema.empty_table())
        if not files:
            return empty.lazy()
        return pl.scan_parquet(
            [file.url for file in files],
            schema=empty.schema,
            missing_columns="insert",
            extra_columns="ignore",
            glob=False,
            hive_partitioning=False,
            storage_options=self.location.polars()[1],
        )


def _frame(table: pa.Table) -> pl.DataFrame:
    import polars as pl

    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
