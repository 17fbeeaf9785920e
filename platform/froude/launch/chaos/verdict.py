"""The verdict on a run under chaos: is it what an undisturbed run would have been, to the token and to the bit?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from froude.checkpoint.tools import verify
from froude.launch.chaos import KINDS
from froude.launch.chaos.conduct import Course, Recovery
from froude.promote.recipe import Recipe
from froude.promote.verify import Verdict, verify_run
from froude.runlog import LogReader, expired
from froude.study import Study


@dataclass(frozen=True)
class Row:
    """A kind of failure: how often it struck, and how long the run stood still (seconds)."""

    kind: str
    count: int
    restarts: int
    median: float
    worst: float


def rows(recoveries: Sequence[Recovery]) -> list[Row]:
    """A row for each kind that struck and was recovered from, in the order in which kinds are listed."""
    found = []
    for kind in KINDS:
        mine = [one for one in recoveries if one.kind == kind and one.seconds is not None]
        seconds = [one.seconds for one in mine if one.seconds is not None]
        if seconds:
            restarts = sum(o.restarted for o in mine)
            found.append(Row(kind, len(seconds), restarts, median(seconds), max(seconds)))
    return found


def table(found: Sequence[Row]) -> list[str]:
    """The rows as text."""
    lines = [f"{'kind':<20}{'count':>6}{'restarts':>10}{'median s':>10}{'worst s':>9}"]
    for row in found:
        lines.append(f"{row.kind:<20}{row.count:>6}{row.restarts:>10}{row.median:>10.1f}{row.worst:>9.1f}")
    return lines


def verdict(
    study: Study,
    recipe: Recipe,
    course: Course,
    failures: int,
    *,
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> Iterator[Verdict]:
    """Each check, as it is made; an exact run is also trained undisturbed, here, and compared bit for bit."""
    survived = sum(recovery.seconds is not None for recovery in course.recoveries)
    yield Verdict(
        "each failure struck, and was recovered from",
        survived == failures and not course.ended,
        f"{survived} of {failures}" + (f"; {course.ended}" if course.ended else ""),
    )
    log = LogReader(study.location / "runs" / recipe.run.name)
    head = log.head_under(recipe.sha256)
    if head is None:
        yield Verdict("the run has begun", False, "its log is empty")
        return
    records = log.records()
    damage = {record.seq: wrong for record, wrong in verify(log.location, records)}
    bad = {seq for seq, wrong in damage.items() if wrong}
    ours = course.damaged - expired(records)
    odd = sorted(bad ^ ours)
    yield Verdict(
        "each commit that is kept is whole, except those damaged on purpose, which are found",
        not odd,
        f"{len(damage)} commits read, {len(bad)} damaged, {len(ours)} of them on purpose"
        + (f"; record {odd[0]}: {damage[odd[0]] or 'the damage is not found'}" if odd else ""),
    )
    exact = recipe.run.reduction == "exact" and head.kind == "finished"
    # The folder of this run has no trials, so where its recipe came from can't be told, nor was that put to the test.
    yield from (
        check
        for check in verify_run(study, recipe, rerun=exact, progress=progress)
        if check.passed is not None
    )


def summary(
    recipe: Recipe, study: Study, course: Course, checks: Sequence[Verdict], **more: Any
) -> dict[str, Any]:
    """All of it in plain JSON types."""
    return {
        "run": recipe.run.name,
        "study": study.location.url,
        "good": all(check.passed for check in checks),
        **more,
        "kinds": [vars(row) for row in rows(course.recoveries)],
        "failures": [recovery.to_dict() for recovery in course.recoveries],
        "checks": [check.to_dict() for check in checks],
    }
