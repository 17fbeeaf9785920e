"""What a trainer told W&B, TensorBoard or MLflow, out of their folder: rows as a metrics file has them."""

from __future__ import annotations

import math
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from froude.promote.imported_runs import tensorboard_files, wandb_files
from froude.section import ConfigError
from froude.store import Location

Row = dict[str, Any]
Point = tuple[int, str, float]  # step, name, value
LOSSES = ("loss", "validation_loss")
#: What may be a setting of the tracker's run, W&B's config or MLflow's params, in place of a series.
SIZES = ("params", "params_with_embeddings", "flops_per_token")
DATABASES = "*.db"
#: MLflow's tables have no infinities: it stores the largest number in their place.
LARGEST = sys.float_info.max


def rows(folder: Path, series: Mapping[str, str]) -> list[Row]:
    """The rows of the one run below a folder that has a loss, by its own names; `series` are these by froude's.

    Nothing is there yet where no tracker has written; ConfigError where several runs have a loss.
    """
    sizes = {series.get(name, name) for name in SIZES}
    runs = {**_wandb(folder, sizes), **_tensorboard(folder), **_mlflow_files(folder, sizes)}
    for file in sorted(folder.rglob(DATABASES)):
        runs |= _mlflow_database(file, sizes)
    losses = [series.get(name, name) for name in LOSSES]
    told = [name for name, found in runs.items() if any(loss in row for row in found for loss in losses)]
    if len(told) > 1:
        shown = ", ".join(told[:4]) + ", …" * (len(told) > 4)
        raise ConfigError(
            f"a folder of metrics must have one run with {' or '.join(losses)}, but {folder} has {len(told)}: {shown}; "
            "name the folder of one, or let the others be written elsewhere"
        )
    return [row for name in told or runs for row in runs[name]]


def _wandb(folder: Path, sizes: set[str]) -> dict[str, list[Row]]:
    place = Location.parse(folder)
    found = wandb_files.read(place) if wandb_files.found(place) else []
    return {
        f"W&B {run.id}": [
            _settings(wandb_files.flat(run.config), sizes),
            # A `step` that the trainer logged itself counts: W&B's own counts calls where none is given.
            *({"step": row["_step"], **wandb_files.flat(row)} for row in run.history),
        ]
        for run in found
    }


def _tensorboard(folder: Path) -> dict[str, list[Row]]:
    files: dict[Path, list[Path]] = defaultdict(list)
    for file in sorted(folder.rglob(tensorboard_files.FILES)):
        files[file.parent].append(file)
    return {
        f"TensorBoard {place.relative_to(folder)}": list(
            _joined(point for file in own for point in tensorboard_files.scalars(file))
        )
        for place, own in files.items()
    }


def _mlflow_files(folder: Path, sizes: set[str]) -> dict[str, list[Row]]:
    """Of a store in files: a run's folder has a `meta.yaml`, a file a metric, and in it a line a value."""
    found = {}
    for meta in sorted(folder.rglob("meta.yaml")):
        about = meta.read_text(errors="replace")
        if "run_id:" not in about or "lifecycle_stage: deleted" in about:
            continue
        metrics, series = meta.parent / "metrics", []
        for file in sorted(path for path in metrics.rglob("*") if path.is_file()):
            name, points = file.relative_to(metrics).as_posix(), []
            # The last line is left out while it is not whole.
            for number, line in enumerate(file.read_text(errors="replace").split("\n")[:-1], 1):
                try:
                    time, value, step = line.split(" ")[:3]
                    points.append((int(time), (int(step), name, float(value))))
                except ValueError:
                    raise ConfigError(
                        f"a metric of MLflow must have lines of time, value and step, but line {number} of {file} is "
                        f"{line[:60]!r}; restore the file, or remove the line"
                    ) from None
            series.append(points)
        settings = {
            path.relative_to(meta.parent / "params").as_posix(): path.read_text(errors="replace")
            for path in (meta.parent / "params").rglob("*")
            if path.is_file()
        }
        found[f"MLflow {meta.parent.name}"] = [_settings(settings, sizes), *_joined(_in_time(series))]
    return found


def _mlflow_database(file: Path, sizes: set[str]) -> dict[str, list[Row]]:
    """Of a store in SQLite; nothing of a database that is none of MLflow's, or not yet."""
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            runs = database.execute("select run_uuid from runs where lifecycle_stage = 'active'").fetchall()
            params = database.execute("select run_uuid, key, value from params").fetchall()
            metrics = database.execute(
                "select run_uuid, step, key, value, is_nan from metrics order by rowid"
            ).fetchall()
    except sqlite3.Error as error:
        if "malformed" in str(error):
            raise ConfigError(
                f"a store of MLflow must be whole, but {file}: {error}; restore it, or remove it"
            ) from None
        return {}
    return {
        f"MLflow {run}": [
            _settings({key: value for owner, key, value in params if owner == run}, sizes),
            *_joined(
                (step, key, math.nan if is_nan else value if abs(value) < LARGEST else value * math.inf)
                for owner, step, key, value, is_nan in metrics
                if owner == run
            ),
        ]
        for (run,) in runs
    }


def _settings(settings: Mapping[str, Any], sizes: set[str]) -> Row:
    return {name: value for name, value in settings.items() if name in sizes}


def _in_time(series: list[list[tuple[int, Point]]]) -> list[Point]:
    """The points of all series by their times; if a clock stepped back, what each says last of its steps."""
    if all(one[0] <= other[0] for points in series for one, other in pairwise(points)):
        return [point for _, point in sorted(chain(*series), key=lambda each: each[0])]
    found = []
    for points in series:
        own: list[Point] = []
        for _, point in points:
            while own and own[-1][0] >= point[0]:
                own.pop()
            own.append(point)
        found += own
    return found


def _joined(points: Iterable[Point]) -> Iterator[Row]:
    """One row for each step of what each series says of it, up to where a series goes back; from there on again."""
    found: dict[int, Row] = {}
    newest: dict[str, int] = {}
    for step, name, value in points:
        if step <= newest.get(name, -1):
            yield from (found[each] for each in sorted(found))
            found, newest = {}, {}
        newest[name] = step
        found.setdefault(step, {"step": step})[name] = value
    yield from (found[each] for each in sorted(found))
