"""What the planner's campaign makes of its curves: costs at the same width, how true the forecasts are, the tables."""

from __future__ import annotations

import math
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from _planner_oracles import Points
from scipy.optimize import isotonic_regression

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _machine import commit, cpu

GOAL = -2  # the width to reach is that of the last uniform grid but one
SHARE = 0.6  # of the grid's cost, at most, is what the planner is to need


def reached(curve: list[dict[str, float]], width: float) -> float:
    """Tokens at which the monotone curve of ln width over ln cost falls to a width; inf if it does not."""
    cost, seen = monotone(curve)
    below = np.flatnonzero(seen <= math.log(width) + 1e-12)
    if not below.size:
        return math.inf
    i = int(below[0])
    if i == 0:
        return math.exp(cost[0])
    share = (seen[i - 1] - math.log(width)) / (seen[i - 1] - seen[i])
    return math.exp(cost[i - 1] + share * (cost[i] - cost[i - 1]))


def monotone(curve: list[dict[str, float]]) -> tuple[Points, Points]:
    cost, width = (np.log([state[key] for state in curve]) for key in ("cost", "width"))
    order = np.argsort(cost)
    return cost[order], np.asarray(isotonic_regression(width[order], increasing=False).x)


def summary(found: list[dict[str, list[dict[str, float]]]]) -> dict[str, Any]:
    """Of the seeds of one kind: costs over the grid's at the goal's width, and how true the forecasts are there."""
    goals = np.array([np.exp(monotone(curves["uniform"])[1]) for curves in found])  # seeds × grids

    def costs(name: str) -> Points:
        return np.array(
            [[reached(c[name], goal) for goal in row] for c, row in zip(found, goals, strict=True)]
        )

    uniform = costs("uniform")
    planned, chance = costs("planned") / uniform, costs("chance") / uniform

    def near(name: str, share: float) -> list[dict[str, float]]:
        """Each seed's state whose cost is nearest to this share of the grid's."""
        return [
            min(c[name], key=lambda state, u=u: abs(math.log(state["cost"] / (share * u))))
            for c, u in zip(found, uniform[:, GOAL], strict=True)
        ]

    return {
        "planned": planned[:, GOAL],
        "chance": chance[:, GOAL],
        "goals": goals[:, GOAL],
        "coarser": np.median(planned[:, :GOAL], axis=0),
        "states": {
            "planned": near("planned", SHARE),
            "uniform": near("uniform", 1),
            "chance": near("chance", 1),
        },
    }


def row(kind: str, got: dict[str, Any]) -> str:
    def cost(name: str) -> str:
        low, middle, high = np.quantile(got[name], [0.25, 0.5, 0.75], method="inverted_cdf")
        return f"{middle:.2f} ({low:.2f} to {high:.2f})"

    cells = [
        kind,
        str(len(got["goals"])),
        f"{100 * np.median(got['goals']):.2f}%",
        f"**{cost('planned')}**",
        ", ".join(f"{ratio:.2f}" for ratio in got["coarser"]),
        str(int((got["planned"] <= SHARE).sum())),
        cost("chance"),
        str(int((got["planned"] < got["chance"]).sum())),
    ]
    return f"| {' | '.join(cells)} |"


def verdict(got: dict[str, Any]) -> str:
    good = np.median(got["planned"]) <= SHARE and np.mean(got["planned"] < got["chance"]) > 0.5
    return f"{'reached' if good else 'not reached'}, over {len(got['goals'])} seeds"


def truth(kind: str, got: dict[str, Any]) -> list[str]:
    names = {
        "planned": f"planner at {SHARE:g} of the grid's cost",
        "uniform": "uniform grid",
        "chance": "chance at the grid's cost",
    }
    lines = []
    for name, states in got["states"].items():
        error = math.sqrt(np.mean([state["error"] ** 2 for state in states]))
        width = float(np.median([state["width"] for state in states]))
        inside = int(sum(state["inside"] for state in states))
        lines.append(
            f"| {kind} | {names[name]} | {100 * width:.2f}% | {100 * error:.2f}% | {inside} of {len(states)} |"
        )
    return lines


def report(command: str, results: dict[str, dict[str, Any]]) -> list[str]:
    return [
        "# The planner against a uniform grid and chance",
        "",
        f"{command} at commit {commit()}, seeds from 0, {datetime.now(UTC):%Y-%m-%d}, on {cpu()} "
        f"(shared; no number here is a time), Python {platform.python_version()}.",
        "",
        "Costs are tokens of all runs bought, those to begin with included, over the uniform grid's at the same width: "
        f"median and quartiles over seeds, to be at most {SHARE:g} and below chance's. The width is half the 90% "
        "interval of `LossLaw.predict` over the loss; the goal of a seed is that of its last grid but one. Grid, "
        "planner and chance buy from the same box. `posterior` is the law that a study has before its free one is "
        "certified, `study` what `promote.fits` chooses of both: that one's intervals are calibrated on larger runs.",
        "",
        *(f"- {kind}: {verdict(got)}." for kind, got in results.items()),
        "",
        "A row of fewer seeds than were asked for is not finished.",
        "",
        "| oracle, law | seeds | goal | planner's cost | at the widths of coarser grids | "
        f"≤ {SHARE:g} in | chance's cost | planner below chance in |",
        "|---|---|---|---|---|---|---|---|",
        *(row(kind, got) for kind, got in results.items()),
        "",
        "What the forecasts are worth there, against the truth of a synthetic world, and against the law fitted to all "
        "240 published runs (the run at the target is itself 2.4% below that law, three times the scatter of the "
        "others).",
        "",
        "| oracle, law | runs | half-width, median | error, rms | actual inside |",
        "|---|---|---|---|---|",
        *(line for kind, got in results.items() for line in truth(kind, got)),
        "",
    ]
