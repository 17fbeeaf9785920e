"""A trial that a user's command trains, in a folder of its own: run after run, each tried again where it fails."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from froude.config import Run
from froude.external import job_files
from froude.external.metrics import Metrics, newest_step, read
from froude.external.process import Ended
from froude.external.process import run as run_command
from froude.external.rows import Rows, rows_of
from froude.material import Material, commands
from froude.section import ConfigError
from froude.space import Trial

METRICS = commands.FILES["metrics"]
ABOUT = "about.json"  # which run a folder is of, and how often it was tried


class Failed(RuntimeError):
    """A command failed in each attempt that it has."""

    def __init__(self, message: str, attempts: int) -> None:
        super().__init__(message)
        self.attempts = attempts


#: Runs a command in a folder with an environment added, to its end; `tick` may raise to end it.
Start = Callable[[Sequence[str], Path, Mapping[str, str]], Ended]


def run_trial(
    trial: Trial,
    place: Path,
    *,
    material: Material,
    roots: Sequence[str],
    progress: Callable[[int, int], None] = lambda done, total: None,
    start: Callable[[Run, Callable[[], None]], Start] | None = None,
) -> Rows:
    """Train each run of the trial by its command, below `place`; its rows.

    Branches are runs of their own here; those after the first that reaches the trial's `stop_loss` are not trained.
    `roots` are where the command's files are looked up, `progress` is told steps done and steps in all, and may raise
    to stop. `start` takes the place of starting the command in this process. Failed after the last attempt;
    ConfigError for what no other attempt would get past.
    """
    found, total, before = Rows(), sum(run.steps for run in trial.runs), 0
    for run in trial.runs:
        folder = folder_of(place, trial, run)
        prepare(folder, run, material)

        def tick(before: int = before, folder: Path = folder) -> None:
            progress(min(before + newest_step(folder / METRICS), total), total)

        starts = (start or _here)(run, tick)
        found.add(_until_it_ends(run, trial.name, folder, roots, starts))
        before += run.steps
        loss = found.trials[-1]["loss"]
        if trial.stop_loss is not None and loss is not None and loss <= trial.stop_loss:
            break
    return found


def folder_of(place: Path, trial: Trial, run: Run) -> Path:
    """Where a run of the trial is trained: a folder of the trial's name; of several runs each has one below it."""
    return place / trial.name / run.name if len(trial.runs) > 1 else place / trial.name


def prepare(folder: Path, run: Run, material: Material) -> None:
    """Make the run's folder, with its description; what is there stays if it is of the same run, files and data.

    ConfigError where a job is running in a folder that is to begin anew.
    """
    about = {"run": run.fingerprint, "material": material.digest}
    try:
        same = json.loads((folder / ABOUT).read_text()) == about
        before = Run.from_dict(json.loads((folder / "run.json").read_text()))
        same = same and not run.trainer.differences(before.trainer)
    except (OSError, ValueError):
        same = False
    if not same:
        job_files.remove(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.toml").write_text(run.to_toml())
    (folder / "run.json").write_text(json.dumps(run.to_dict(), indent=1) + "\n")
    (folder / ABOUT).write_text(json.dumps(about) + "\n")


def environment(run: Run, folder: Path, attempt: int) -> dict[str, str]:
    """What the command is told, besides its words."""
    told = {
        "FROUDE_RUN": str(folder / "run.json"),
        "FROUDE_METRICS": str(folder / METRICS),
        "FROUDE_SEED": str(run.seed),
        "FROUDE_ATTEMPT": str(attempt),
    }
    return {**told, **run.trainer.environment}


def command(run: Run, folder: Path, roots: Sequence[str]) -> list[str]:
    """The command's words, for that folder."""
    files = {name: str(folder / file) for name, file in commands.FILES.items()}
    return commands.filled(run, files, roots)


def _here(run: Run, tick: Callable[[], None]) -> Start:
    limit = run.trainer.time_limit

    def start(words: Sequence[str], folder: Path, told: Mapping[str, str]) -> Ended:
        return run_command(words, folder, told, time_limit=limit, tick=tick)

    return start


def _until_it_ends(run: Run, trial: str, folder: Path, roots: Sequence[str], start: Start) -> Rows:
    seconds, error = 0.0, ""
    for attempt in range(1, run.trainer.retries + 2):
        past = set_aside(folder)
        ended = start(command(run, folder, roots), folder, environment(run, folder, attempt))
        seconds += ended.seconds
        error = ended.why(run.trainer.time_limit, folder)
        found = judged(run, folder, past, error, trial=trial, seconds=seconds, attempts=attempt)
        if found is not None:
            return found
    raise Failed(error, run.trainer.retries + 1)


def judged(
    run: Run, folder: Path, past: Sequence[Path], error: str, *, trial: str, seconds: float, attempts: int
) -> Rows | None:
    """What an attempt that has ended has come to: its rows if it has finished or diverged; None if it has failed.

    `error` is why its command failed, empty if it exited with 0; `past` are what earlier attempts wrote.
    """
    try:
        last = read(newest(folder), run)
    except ConfigError:
        if error:  # a command that was killed may have written half of anything
            return None
        raise
    if error and not last.why_diverged:
        return None
    before = [metrics for file in past if (metrics := _readable(file, run)) is not None]
    return rows_of(run, before, last, trial=trial, seconds=seconds, attempts=attempts)


def newest(folder: Path) -> Path:
    """The metrics of the attempt that runs, or has just ended: JSON lines, Parquet if there is any, else a folder."""
    return _counting(folder / METRICS)


def set_aside(folder: Path) -> list[Path]:
    """Rename what the last attempt wrote, so that the next writes anew; what counts of each, oldest first."""
    stem = f"metrics-{len(earlier(folder)) + 1:03d}"
    for file in _kinds(folder / METRICS):
        if file.exists():
            os.replace(file, folder / f"{stem}{file.suffix}")
    return earlier(folder)


def earlier(folder: Path) -> list[Path]:
    """What counts of each attempt whose metrics were set aside, oldest first."""
    return list({file.stem: _counting(file) for file in sorted(folder.glob("metrics-[0-9]*"))}.values())


def _kinds(file: Path) -> tuple[Path, Path, Path]:
    """An attempt's JSON lines, Parquet and tracker's folder, of which it may have written any."""
    return file.with_suffix(".jsonl"), file.with_suffix(".parquet"), file.with_suffix("")


def _counting(file: Path) -> Path:
    """Parquet if there is any, else JSON lines, else a tracker's folder."""
    lines, parquet, folder = _kinds(file)
    if parquet.exists():
        return parquet
    return folder if folder.is_dir() and not lines.exists() else lines


def _readable(file: Path, run: Run) -> Metrics | None:
    """What an earlier attempt wrote, if it can be read."""
    try:
        return read(file, run)
    except ConfigError:
        return None
