"""Rows of the frames as points, one a step, under names that do not collide: train/loss, validation/loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from froude.tracking.tracker import Point

Row = Mapping[str, Any]
#: Columns that say which row it is.
KEYS = ("run", "step", "split", "name", "time")


def points(
    steps: Iterable[Row],
    evals: Iterable[Row] = (),
    downstream: Iterable[Row] = (),
    events: Iterable[Row] = (),
) -> list[Point]:
    """One point for each step that a row is of, in order; a row's time is that of the step's, where there is one."""
    values: dict[int, dict[str, float]] = {}
    times: dict[int, datetime] = {}
    told: dict[int, list[str]] = {}

    def add(row: Row, prefix: str, skip: tuple[str, ...]) -> None:
        step = int(row["step"])
        times.setdefault(step, row["time"] or datetime.fromtimestamp(0, UTC))
        values.setdefault(step, {}).update(
            {
                f"{prefix}/{name}": float(value)
                for name, value in row.items()
                if name not in skip and isinstance(value, int | float)
            }
        )

    for row in steps:
        add(row, "train", KEYS)
    for row in evals:
        add(row, str(row["split"]), (*KEYS, "attempt", "tokens"))
    for row in downstream:
        # By itself: a user's name may be that of one of the row's own columns.
        add({"step": row["step"], "time": row["time"]}, "downstream", KEYS)
        if row["value"] is not None:
            values[int(row["step"])][f"downstream/{row['name']}"] = float(row["value"])
    for row in events:
        step = int(row["step"])
        times.setdefault(step, row["time"])
        told.setdefault(step, []).append(f"{row['action']}: {row['why']}")
    return [
        Point(step, times[step], values.get(step, {}), "; ".join(told.get(step, ())))
        for step in sorted(times)
    ]
