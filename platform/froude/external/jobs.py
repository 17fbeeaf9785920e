"""A sweep without Ray: trials written as jobs, and what came of them taken in. Each step can be repeated."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from froude.config import Run, Trainer
from froude.external import job_files
from froude.external.job_files import CODE, SECONDS, TIMED_OUT, write
from froude.external.process import Ended
from froude.external.rows import Rows
from froude.external.trial import command, earlier, environment, folder_of, judged, prepare
from froude.material import Material, commands
from froude.promote.ladder.unfinished import is_earlier
from froude.section import ConfigError, printable
from froude.space import Space, Trial
from froude.store import Location
from froude.study import Study
from froude.sweep import trial_store
from froude.sweep.agenda import Agenda
from froude.sweep.layouts import note
from froude.train.api import check_imports

ABOUT, TRIAL, TAKEN = "jobs.json", "trial.json", "taken.json"
SHOWN = 5  # names in a line


@dataclass
class State:
    """Trials by name: in the study (`done`), diverged ones among them; waiting for their jobs; failed, with why.

    `earlier` are those not done that the space lays out no longer: no job is listed, and what came of it not taken in.
    """

    study: str
    done: list[str] = field(default_factory=list)
    diverged: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    again: list[str] = field(default_factory=list)  # of the waiting, those whose last attempt failed
    earlier: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dict(vars(self))

    def lines(self) -> list[str]:
        """The same for people."""
        counts = f"{len(self.done)} done ({len(self.diverged)} diverged), {len(self.waiting)} waiting"
        first, more = ", ".join(self.earlier[:SHOWN]), len(self.earlier) - SHOWN
        names = f"{first} and {more} more" if more > 0 else first
        return [
            f"{self.study}: {counts}, {len(self.failed)} failed",
            *(f"  failed    {name}: {printable(why)}" for name, why in self.failed.items()),
            *(f"  again     {name}: its last attempt failed" for name in self.again),
            *([f"  earlier   {names}: of an earlier version of the space, not listed"] if names else []),
        ]


def check(space: Space, study: Location, place: Path, *, fresh: bool) -> None:
    """ConfigError where a trial has no command, `place` is of another study, or a job runs that is to begin `fresh`."""
    _same(place, study)
    for folder in _folders(place) if fresh else ():
        job_files.check_idle(folder)
    for trial in (trial for trials in space.planned().values() for trial in trials):
        if not trial.runs[0].trainer.command:
            raise ConfigError(
                f"--write-jobs is for trials that a command trains, but {trial.name!r} has no `trainer.command`; set "
                "one, or sweep without --write-jobs"
            )
        for name in trial.runs[0].trainer.environment:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ConfigError(
                    f"names in `trainer.environment` must be a shell's for --write-jobs, but {trial.name!r} has "
                    f"{name!r}; use letters, digits and _"
                )


def clear(place: Path) -> None:
    """Delete the jobs below `place`, with what came of them; ConfigError where one is running."""
    for folder in _folders(place):
        job_files.remove(folder)


def write_jobs(agenda: Agenda, space: Space, study: Location, place: Path, *, trust: bool = False) -> State:
    """Write every trial that is known now and not in the study as jobs below `place`; trials that have ended count.

    What came of jobs must have been taken in before (`ingest`, which has the same `trust`), and the study begun.
    ConfigError where `place` is of another study.
    """
    _same(place, study)
    place.mkdir(parents=True, exist_ok=True)
    about = {"froude": "jobs", "study": study.url, "name": space.name}
    write(place / ABOUT, json.dumps(about, indent=1) + "\n")
    while (trial := agenda.next()) is not None:
        material = commands.material(trial.runs[-1])
        hashes = {str(path): material.modules[name] for name, path in commands.files(trial.runs[-1]).items()}
        changed = agenda.changed.pop(trial.name, None)
        trial_store.make_room(study, trial, material, changed, agenda.retired)
        for run in trial.runs:
            folder = folder_of(place, trial, run)
            prepare(folder, run, material)
            told = environment(run, folder, 1)
            told.pop("FROUDE_ATTEMPT")  # which the script counts
            job_files.write_job(folder, command(run, folder, [os.getcwd()]), told, run.trainer, hashes)
        described = {"trial": json.loads(trial.to_json()), "material": material.to_dict()}
        if write(place / trial.name / TRIAL, json.dumps(described) + "\n"):
            (place / trial.name / TAKEN).unlink(missing_ok=True)  # what was taken in was another trial's
        row = study / "trials" / f"{trial.name}.parquet"
        if _taken(place / trial.name) is not None and row.exists():  # failed in each of its attempts
            agenda.finish(trial_store.read(study, trial.name, trial))
            note(study, agenda.layouts())
    return ingest(place, study, trust=trust)


def ingest(place: Path, study: Location | None = None, *, trust: bool = False) -> State:
    """Take in what has ended of the jobs below `place`, and list again those that are to run.

    `study` is the one that the jobs were written for, unless it has moved. A run whose command failed is to run again
    as often as its trainer's `retries` say. ConfigError where there are no jobs, or no study, and where a run would
    import code from outside the package, to count its parameters, without `trust`.
    """
    about = _about(place)
    if about is None:
        raise ConfigError(
            f"jobs must have been written by `froude sweep SPACE --out STUDY --write-jobs {place}`, but there are none "
            f"at {place}; name their folder"
        )
    study = study or Location.parse(about["study"])
    if not (study / "study.json").exists():
        raise ConfigError(
            f"the study that jobs are for must be there, but there is none at {study}; name it with --study"
        )
    stored, state = trial_store.read_all(study), State(study.url)
    listed: dict[str, Trainer] = {}
    known = [_described(folder) for folder in _folders(place)]
    earlier = _earlier([trial for trial, _ in known], study)
    for trial, material in known:
        folder, before = place / trial.name, stored.get(trial.name)
        if trial.name in earlier and (before is None or before.failed):
            state.earlier.append(trial.name)
            continue
        for run in trial.runs:
            check_imports(run, trust)
        fresh = before is not None and before.trial.to_json() == trial.to_json()
        # A failed row that is not of these attempts is to be replaced.
        if not (fresh and before is not None and (not before.failed or _taken(folder) is not None)):
            _take(place, study, trial, material)
            before = trial_store.read(study, trial.name, trial) if _taken(folder) is not None else None
        if before is None:
            state.waiting.append(trial.name)
            for run in trial.runs:
                job = folder_of(place, trial, run)
                if not (job / CODE).exists():
                    listed[job.relative_to(place).as_posix()] = run.trainer
                    if any(job.glob(f"{CODE}-*")):
                        state.again.append(trial.name)
                    if trial.stop_loss is not None:  # whether those after it are trained, its loss will say
                        break
        elif before.failed:
            state.failed[trial.name] = str(before.rows["error"][0])
        else:
            state.done.append(trial.name)
            if "diverged" in before.rows["status"].to_pylist():
                state.diverged.append(trial.name)
    job_files.write_lists(place, str(about["name"]), listed)
    return state


def _take(place: Path, study: Location, trial: Trial, material: Material) -> None:
    """Take one trial in, if all of it has ended; give it back to be run again where an attempt is left."""
    found = Rows()
    try:
        for run in trial.runs:
            folder = folder_of(place, trial, run)
            rows = _rows(run, folder, trial.name)
            if rows is None:
                return
            found.add(rows)
            loss = rows.trials[0]["loss"]
            if trial.stop_loss is not None and loss is not None and loss <= trial.stop_loss:
                break
    except _Failed as error:
        trial_store.write_failed(study, trial, error=str(error), attempts=error.attempts)
    except ConfigError as error:
        attempts = 1 + max(len(list(folder_of(place, trial, run).glob(f"{CODE}-*"))) for run in trial.runs)
        trial_store.write_failed(study, trial, error=f"ConfigError: {error}", attempts=attempts)
    else:
        trial_store.write(
            study, trial, trials=found.trials, steps=found.steps, evals=found.evals, material=material
        )
    write(place / trial.name / TAKEN, json.dumps(_ends(place / trial.name)) + "\n")


class _Failed(Exception):
    def __init__(self, message: str, attempts: int) -> None:
        super().__init__(message)
        self.attempts = attempts


def _rows(run: Run, folder: Path, trial: str) -> Rows | None:
    """A run's rows; None while it has not ended, or is to run again; _Failed after its last attempt."""
    code = _number(folder / CODE)
    if code is None:
        return None
    attempts = 1 + len(list(folder.glob(f"{CODE}-*")))
    limit = run.trainer.time_limit
    ended = Ended(int(code), _number(folder / SECONDS) or 0.0, bool(limit) and code == TIMED_OUT)
    error = ended.why(limit, folder)
    rows = judged(run, folder, earlier(folder), error, trial=trial, seconds=ended.seconds, attempts=attempts)
    if rows is None and attempts > run.trainer.retries:
        raise _Failed(error, attempts)
    if rows is None:
        os.replace(folder / CODE, folder / f"{CODE}-{attempts:03d}")
    return rows


def _number(file: Path) -> float | None:
    try:
        return float(file.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        raise ConfigError(
            f"{file.name} must hold a number, but {file} does not; delete it to run the job again"
        ) from None


def _ends(folder: Path) -> dict[str, int]:
    """When each of the trial's jobs ended, by the folder."""
    return {
        file.parent.relative_to(folder).as_posix(): file.stat().st_mtime_ns for file in folder.rglob(CODE)
    }


def _taken(folder: Path) -> dict[str, int] | None:
    """The ends that were taken in; None if there were none, or others have come since."""
    try:
        then = json.loads((folder / TAKEN).read_text())
    except (OSError, ValueError):
        return None
    return then if then and then == _ends(folder) else None


def _about(place: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((place / ABOUT).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("froude") == "jobs" else None


def _folders(place: Path) -> list[Path]:
    """Those of trials."""
    return [file.parent for file in sorted(place.glob(f"*/{TRIAL}"))]


def _described(folder: Path) -> tuple[Trial, Material]:
    """The folder's trial, and what its jobs were written for."""
    described = json.loads((folder / TRIAL).read_text())
    return Trial.from_json(json.dumps(described["trial"])), Material.from_dict(described["material"])


def _earlier(trials: Sequence[Trial], study: Location) -> set[str]:
    """Which of these the study's space lays out no longer; none of a study that does not say what it lays out."""
    stages = Study(study).meta.get("stages")
    if not stages:
        return set()
    rows = {"trial": [trial.name for trial in trials], "stage": [trial.runs[0].stage for trial in trials]}
    found = pl.DataFrame(rows, schema={"trial": pl.String, "stage": pl.String})
    return set(found.filter(is_earlier(stages))["trial"])


def _same(place: Path, study: Location) -> None:
    """ConfigError unless the folder is new, or has the jobs of this study."""
    known = _about(place)
    if known is None and place.is_dir() and any(place.iterdir()):
        raise ConfigError(
            f"jobs must have a folder of their own, but {place} holds other files; name another"
        )
    if known is not None and known["study"] != study.url:
        raise ConfigError(
            f"a folder has the jobs of one study, but {place} has those of {known['study']}, not {study.url}; "
            "name another folder"
        )
