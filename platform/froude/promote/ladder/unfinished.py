"""What to say of a sweep none of whose trials finished, and of trials that its space no longer lays out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl


def is_earlier(stages: Mapping[str, Mapping[str, Any]]) -> pl.Expr:
    """Of rows of `trials()`, whether the space no longer lays their trial out, as far as study.json has the names."""
    found = ~pl.col("stage").is_in(list(stages))
    for name, stage in stages.items():
        if "names" in stage:
            found |= (pl.col("stage") == name) & ~pl.col("trial").is_in(stage["names"])
    return found.fill_null(False)


def earlier_line(trials: pl.DataFrame, stages: Mapping[str, Mapping[str, Any]]) -> str:
    """A line on trials of an earlier version of the space; empty if there are none."""
    found = trials.filter(is_earlier(stages))
    count = found["trial"].n_unique()
    if not count:
        return ""
    ended = found.group_by("status").len().sort("status").iter_rows()
    said = ", ".join(f"{n} {status}" for status, n in ended)
    are = "1 trial is" if count == 1 else f"{count} trials are"
    kept = found.filter(pl.col("stage").is_in(list(stages)))["trial"].n_unique()
    read = "laws of their stages still read what finished"
    if kept < count:  # without its stage's role, no law takes a row
        read = f"laws do not read the {count - kept} whose stage is gone" if kept else "no law reads them"
    return f"{are} of an earlier version of the space ({said}): {read}"


def none_finished(counts: Mapping[str, int], where: str, *, table: bool = False) -> str:
    """The error where no trial finished, given how many have each status; empty if one finished, or none ran.

    Those of a `table` were trained elsewhere, and cannot be swept again.
    """
    ended = {status: counts.get(status, 0) for status in ("diverged", "failed")}
    if counts.get("finished") or not any(ended.values()):
        return ""
    said = " and ".join(f"{n} {status}" for status, n in ended.items() if n)
    if table:
        lost = (
            "its loss column has no finite number (or its status says diverged); is `--columns loss=…` right?"
        )
        why = lost if ended["diverged"] else "is `--columns status=…` right?"
        return f"no run of the table in {where} finished: {said}; {why}"
    remedy = (
        "correct what made them fail"
        if ended["failed"]
        else "lower the learning rates or lengthen the warmup"
    )
    return f"no trial of {where} finished: {said}; `froude status` says why; {remedy}, and sweep again"
