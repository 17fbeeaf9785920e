"""What a coordinate check says of moves that are made up: the slopes, their bounds and the verdict."""

from __future__ import annotations

import math
from typing import Any

import pytest

from froude.train.probe.slopes import DOWNHILL, judge


def rows(
    slope: float,
    parametrization: str = "mup",
    name: str = "blocks.0",
    t: int = 3,
    scatter: float = 0.0,
    start: float = 0.0,
    built: float = -0.5,
) -> list[dict[str, Any]]:
    """What would be measured if delta went as width^slope, and what is there at the start as width^built.

    Seeds differ by `scatter`, the sign by size.
    """
    found = []
    for i, width in enumerate((64, 128, 256, 512)):
        for seed in (-1, 0, 1):
            delta = width**slope * (1 + scatter * seed * (-1) ** i)
            where = {
                "parametrization": parametrization,
                "width": width,
                "depth": 2,
                "seed": seed,
                "name": name,
            }
            found += [
                {**where, "t": t, "delta": delta, "scale": 1.0},
                {**where, "t": 0, "delta": 0.0, "scale": start * width**built},
            ]
    return found


CONTROL = rows(1.0, "sp")


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (rows(0.04), "passed"),
        (rows(-0.04), "passed"),
        (rows(0.06), "failed"),
        (rows(-0.06), "failed"),
        (rows(0.0, name="logits") + rows(0.0), "passed"),
        (rows(-0.2, name="logits") + rows(0.0), "failed"),
        (rows(-0.2, name="logits", start=1.0) + rows(0.0), "passed"),
        (rows(-0.49, name="logits", start=1.0) + rows(0.0), "passed"),
        (rows(-0.6, name="logits", start=1.0) + rows(0.0), "failed"),
        (rows(0.04, name="logits", start=1.0, built=0.0) + rows(0.0), "failed"),
        (rows(-0.49, name="logits", start=1.0) + rows(-0.2), "passed"),
        (rows(-0.49, name="logits", start=1.0) + rows(0.11), "failed"),
        (rows(0.2, scatter=0.3), "passed"),
        (rows(0.2, scatter=0.01), "failed"),
        (rows(0.0, scatter=0.9), "inconclusive"),
        (rows(-0.089, scatter=0.9), "inconclusive"),
        (rows(0.0, scatter=0.9) + rows(0.5, name="blocks.1"), "failed"),
        (rows(2.0, scatter=0.9), "failed"),
        (rows(math.nan), "failed"),
        ([], "failed"),
    ],
)
def test_verdicts_are_those_of_the_bounds(found: list[dict[str, Any]], verdict: str) -> None:
    judged = judge("width", [*found, *CONTROL])
    assert (judged.verdict, judged.passed) == (verdict, verdict == "passed")


def first_move(whole: float, downhill: float) -> list[dict[str, Any]]:
    """Of logits that start at zero: how all of it, and its part along the gradient, go with the width."""
    found = [row for row in rows(downhill, name=DOWNHILL, t=1) if row["t"]]
    return [{**row, "scale": row["width"] ** whole} for row in found]


@pytest.mark.parametrize(
    ("whole", "downhill", "later", "verdict"),
    [
        (-0.2, 0.0, -0.2, "passed"),  # all that falls is random
        (-0.2, 0.0, -0.3, "failed"),
        (-0.2, 0.0, 0.06, "failed"),
        (-0.2, -0.2, 0.0, "failed"),  # what falls is the move itself
        (-0.02, 0.0, -0.2, "failed"),
        (0.2, 0.0, 0.2, "failed"),
        (-0.9, 0.0, -0.6, "failed"),  # faster than anything random
    ],
)
def test_a_random_part_of_the_first_move_of_logits_may_fall(
    whole: float, downhill: float, later: float, verdict: str
) -> None:
    moves = [*first_move(whole, downhill), *rows(whole, name="logits", t=1), *rows(later)]
    found = judge("width", [*moves, *CONTROL, *rows(1.0, "sp", DOWNHILL)])
    assert found.verdict == verdict
    assert {s.parametrization for s in found.slopes if s.name == DOWNHILL} == {"mup"}


def test_too_little_power_asks_for_seeds_and_fails_nothing() -> None:
    found = judge("width", rows(-0.089, scatter=0.42) + CONTROL)
    assert "add --seeds 6" in found.reasons[-1]
    assert found.lines()[-1].startswith("coordinate check over width inconclusive: blocks.0 of mup")
    content = found.to_dict()
    assert (content["passed"], content["verdict"]) == (False, "inconclusive")
    alone = [row for row in rows(0.1) if row["seed"] == 0]  # its scatter is not known
    assert judge("width", alone + CONTROL).verdict == "passed"


def test_a_control_that_passes_says_that_the_check_has_no_power() -> None:
    found = judge("width", rows(0.0) + rows(0.3, "sp"))
    assert found.verdict == "inconclusive"
    assert "no power" in found.reasons[0]
    assert judge("width", rows(0.0) + rows(math.nan, "sp")).passed  # SP diverged


def test_what_decay_alone_has_moved_is_not_judged() -> None:
    """With a readout of zeros, that is, in the first step."""
    rest, others = rows(0.5, t=1), [*rows(0.0), *CONTROL]
    found = judge("width", rest + rows(0.0, t=1, name="logits") + others)
    assert found.passed
    assert {(s.name, s.t) for s in found.slopes} == {("logits", 1), ("blocks.0", 3)}
    assert not judge("width", rest + rows(0.0, t=1, name="logits", start=1.0) + others).passed
