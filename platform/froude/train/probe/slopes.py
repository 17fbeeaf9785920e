"""Slopes over width, or depth, of how far updates move a model, and the verdict on them.

Logits of a readout of zeros move by the first update as a sum over the width: of terms of one sign where it is about
what the batch has, of random ones where it is about tokens that have little to do with one another. The second kind
shrinks as width^(-1/2), so their mean falls with the width although all is right: by -0.02 of bytes, by -0.23 of 512
tokens at widths 64 to 256, at any rate. Their move along the gradient of the loss has terms of one sign alone: it must
be level. By how much the other falls beside it is allowed to all that follows, which that readout's gradient makes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from froude.parametrizations import PARAMETRIZATIONS, STANDARD

Over = Literal["width", "depth"]
Verdict = Literal["passed", "failed", "inconclusive"]
Row = dict[str, Any]

#: Slopes over width of a block and of logits, and the last block's over depth, where averages over random branches
#: shrink: bounds from 2-layer and 2- to 16-layer GPTs, where muP had -0.04 to 0.00, and depth scaling -0.32 to +0.14.
BLOCK, LOGITS, LAST_BLOCK = (-0.05, 0.05), (-0.05, 0.05), (-0.45, 0.15)
#: Slopes of logits and of blocks where logits start at random: the rule above with the same margin; and blocks, which
#: follow the gradient of such logits. At rates .001 to .02, widths 64 to 1024, tied tables of sd .1 to 1 had -0.46 to
#: -0.08 (blocks -0.16 to +0.09), untied ones of sd .5 and .02 -0.42 to -0.01 (blocks -0.21 to +0.06).
RANDOM_LOGITS, RANDOM_BLOCK = (-0.55, 0.05), (-0.30, 0.10)
#: Their slope as built where they are divided by m: -1/2, or -1 where the table shrinks as 1/sqrt(width) by itself. The
#: upper bound is half-way to that of a multiplier of 1/sqrt(m), which the moves don't show. Measured: -0.49 to -0.47;
#: with that multiplier +0.03.
AS_BUILT, BUILT = "logits as built", (-1.1, -0.25)
#: Logits' first move along the gradient of the loss, where they start at zero.
DOWNHILL = "logits, downhill"
#: A check without power passes anything: under SP some block, or the logits, must reach this slope over width.
CONTROL = 0.5
NOISE = 0.15  # standard error of a slope from which on it says nothing
SCATTER = 0.2  # between seeds, relative, where a single one does not show it


@dataclass(frozen=True)
class Slope:
    """Of ln delta over ln size for one block or the logits after t updates; `top`: over the three largest sizes only.

    At t = 0, as built, that of ln mean|x_0| of logits. NaN where a size did not move, or diverged. `se` is the standard
    error from the seeds, `low` and `high` the bounds.
    """

    parametrization: str
    name: str
    t: int
    slope: float
    se: float
    top: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """failed: more than two standard errors off the bounds; inconclusive: nearer, but they are too large to say."""
        if not (self.low <= self.slope + 2 * self.se and self.slope - 2 * self.se <= self.high):
            return "failed"
        return "inconclusive" if self.se > NOISE else "passed"

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"

    def line(self) -> str:
        """The slope, its standard error and the bounds, in words."""
        where = f"{self.name} of {self.parametrization} at t = {self.t}"
        off = "outside" if self.verdict == "failed" else "too uncertain to place in"
        return (
            f"{where}: slope {self.slope:+.3f} (se {self.se:.3f}) {off} {self.low:+.2f} to {self.high:+.2f}"
        )


@dataclass(frozen=True)
class CoordinateCheck:
    """What was measured over `over` (one row a run, block and t), the slopes that are judged, and the verdict."""

    over: Over
    rows: tuple[Row, ...]
    slopes: tuple[Slope, ...]
    verdict: Verdict
    reasons: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        slopes = [
            {**asdict(slope), "passed": slope.passed, "verdict": slope.verdict} for slope in self.slopes
        ]
        head = {"over": self.over, "passed": self.passed, "verdict": self.verdict}
        return {**head, "reasons": list(self.reasons), "slopes": slopes, "rows": list(self.rows)}

    def lines(self) -> list[str]:
        """The slopes as a table, and the verdict."""
        times = sorted({slope.t for slope in self.slopes})
        found = {(s.parametrization, s.name, s.t): s for s in self.slopes}
        text = [f"{'slope of ln delta':<20}" + "".join(f"{f't = {t}':>15}" for t in times) + "   bounds"]
        for p, name in dict.fromkeys((s.parametrization, s.name) for s in self.slopes):
            row = [found.get((p, name, t)) for t in times]
            cells = "".join(f"{'-' if s is None else f'{s.slope:+.2f} ± {2 * s.se:.2f}':>15}" for s in row)
            (low, high) = next((s.low, s.high) for s in row if s is not None)
            control = self.over == "width" and not _transfers(p)
            rule = "control" if control else f"{low:+.2f} to {high:+.2f}"
            text.append(f"{p + ' ' + name:<20}{cells}   {rule}")
        why = f": {'; '.join(self.reasons)}" if self.reasons else ""
        return [*text, f"coordinate check over {self.over} {self.verdict}{why}"]


def judge(
    over: Over,
    rows: Sequence[Row],
    *,
    control: Literal["blocks", "logits"] = "blocks",
    broken: Sequence[str] = (),
) -> CoordinateCheck:
    """Slopes of what was measured, their bounds and the verdict; SP's blocks or logits must be seen to move.

    `broken` are rules that the model is known to break, in words: they fail the check.
    """
    slopes = tuple(_slopes(over, rows))
    level = [slope for slope in slopes if _transfers(slope.parametrization)]
    failed = [*broken, *(slope.line() for slope in level if slope.verdict == "failed")]
    if not level:
        failed.append("nothing moved")
    if failed:
        return CoordinateCheck(over, tuple(rows), slopes, "failed", tuple(failed))
    unclear = [slope for slope in level if slope.verdict == "inconclusive"]
    reasons = [slope.line() for slope in unclear]
    if unclear:
        seeds = len({row["seed"] for row in rows})
        enough = seeds * (max(slope.se for slope in unclear) / NOISE) ** 2
        reasons[-1] += f"; add --seeds {max(2 * seeds, math.ceil(enough))}"
    seen = [
        s.slope
        for s in slopes
        if not _transfers(s.parametrization) and (s.name == "logits") == (control == "logits")
    ]
    if seen and not any(slope >= CONTROL or math.isnan(slope) for slope in seen):
        reached = f"the control, {STANDARD.label}, reaches only {max(seen):+.3f} instead of {CONTROL:+.1f}"
        reasons.append(f"{reached}, so the check has no power; add wider --widths, or raise the rate")
    return CoordinateCheck(over, tuple(rows), slopes, "inconclusive" if reasons else "passed", tuple(reasons))


def _slopes(over: Over, rows: Sequence[Row]) -> Iterator[Slope]:
    random = any(row["name"] == "logits" and row["t"] == 0 and row["scale"] for row in rows)
    bounds = {"logits": RANDOM_LOGITS if random else LOGITS, DOWNHILL: LOGITS, "last block": LAST_BLOCK}
    if over == "depth":
        rows = [{**row, "name": "last block"} for row in rows if row["name"] == f"blocks.{row['depth'] - 1}"]
    falls = _falls(rows) if over == "width" else {}
    for p, name, t in dict.fromkeys((row["parametrization"], row["name"], row["t"]) for row in rows):
        here = [row for row in rows if (row["parametrization"], row["name"], row["t"]) == (p, name, t)]
        if name == DOWNHILL and not _transfers(p):
            continue
        sizes = sorted({row[over] for row in here})
        deltas = [[row["delta"] for row in here if row[over] == size] for size in sizes]
        # With a readout of zeros the first gradient is zero except for its own: decay alone moves the blocks.
        if any(map(any, deltas)) and (random or t > 1 or name in ("logits", DOWNHILL)):
            (slope, se), (top, _) = _fit(sizes, deltas), _fit(sizes[-3:], deltas[-3:])
            low, high = bounds.get(name, RANDOM_BLOCK if random else BLOCK)
            low += falls.get(p, 0.0) if name != DOWNHILL else 0.0
            yield Slope(p, name, t, slope, se, top, low, high)
        elif random and t == 0 and name == "logits" and _transfers(p):
            built = [[row["scale"] for row in here if row[over] == size] for size in sizes]
            (slope, se), (top, _) = _fit(sizes, built), _fit(sizes[-3:], built[-3:])
            higher = PARAMETRIZATIONS[p].logits + 1
            yield Slope(p, AS_BUILT, t, slope, se, top, *(bound + higher for bound in BUILT))


def _falls(rows: Sequence[Row]) -> dict[str, float]:
    """By parametrization how the random part of the first move of logits bends its slope: -1/2, all of it, to 0."""
    found = {}
    for p in dict.fromkeys(row["parametrization"] for row in rows if row["name"] == DOWNHILL):
        here = [row for row in rows if (row["parametrization"], row["name"]) == (p, DOWNHILL)]
        sizes = sorted({row["width"] for row in here})
        moved, downhill = (
            _fit(sizes, [[row[what] for row in here if row["width"] == size] for size in sizes])[0]
            for what in ("scale", "delta")
        )
        fall = moved - downhill
        found[p] = min(0.0, max(-0.5, fall)) if math.isfinite(fall) else 0.0
    return found


def _fit(sizes: Sequence[int], deltas: Sequence[Sequence[float]]) -> tuple[float, float]:
    """OLS slope of ln mean delta over ln size, and its standard error from the scatter of each size's seeds."""
    means = np.array([np.mean(each) for each in deltas])
    if not (np.isfinite(means).all() and (means > 0).all()):
        return math.nan, 0.0
    x = np.log(sizes) - np.log(sizes).mean()
    weights = x / (x @ x)
    errors = [
        np.std(each, ddof=1) / np.mean(each) / len(each) ** 0.5 if len(each) > 1 else SCATTER
        for each in deltas
    ]
    return float(weights @ np.log(means)), float(np.linalg.norm(weights * errors))


def _transfers(parametrization: str) -> bool:
    return PARAMETRIZATIONS[parametrization].transfers
