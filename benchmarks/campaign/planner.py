"""What a width of the forecast's interval costs: proxies chosen by the planner, on a uniform grid, and by chance.

Two kinds of oracle answer what a run's loss would be. Synthetic worlds follow a law that bends in log-log, with noise
and mistuned learning rates, none of which the planner is told. The other holds 240 published runs (Hoffmann et al.
2203.15556, digitised by Besiroglu et al. 2404.10102): a run can be bought once, up to a twentieth of the target's
compute. Each strategy buys runs and fits the law; the interval is that of `LossLaw.predict`, the cost is in tokens and
counts the runs to begin with. Curves of width against cost are made monotone (isotonic regression in logs) before they
are read. Writes benchmarks/planner.md; a seed that is done is kept, so the same command goes on.

    python benchmarks/campaign/planner.py [--seeds 20] [--seconds 0] [--out runs/campaign/planner]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from froude import laws
from froude.laws.design import forecast_design
from froude.promote.fits import PRIOR

HERE = Path(__file__).resolve().parents[1]
GROWTH, ROUNDS = 0.4, 8  # the planner and chance spend so much of what they have spent, so many times
POOL = 6e20  # FLOPs of the largest published run that can be bought; the target's are 1.3e22
Points = NDArray[np.float64]  # rows of (params, tokens)


@dataclass(frozen=True)
class Oracle:
    """A world: `points` that can be bought, `once` or repeatedly, those to `start` with, and `grids` of growing size.

    `loss(point, number)` is what the run bought as the so-manieth gives; `actual` is the target's.
    """

    points: Points
    start: list[int]
    grids: list[Points]
    target: tuple[float, float]
    actual: float
    loss: Callable[[Points, int], float]
    once: bool


def synthetic(seed: int) -> Oracle:
    """A law with curvature in log-log; noise of 0.2 to 0.6% and learning rates off by up to 0.6 in ln (one sd)."""
    draw = np.random.default_rng(seed)
    floor = draw.uniform(1.5, 2.1)
    terms = draw.uniform(0.2, 0.6, 2)
    exponents, bends = draw.uniform(0.28, 0.42, 2), draw.normal(0, 0.006, 2)
    noise, mistuned = draw.uniform(0.002, 0.006), draw.uniform(0, 0.6)

    def mean(point: Points) -> float:
        x = np.log(np.asarray(point) / (2e8, 4e9))
        return float(floor + (terms * np.exp(-exponents * x - 0.5 * bends * x**2)).sum())

    def loss(point: Points, number: int) -> float:
        own = np.random.default_rng([seed, number])
        off = own.normal(
            0, mistuned
        )  # costs half the curvature of a U-curve, 0.046 in the median of 160 published ones
        return mean(point) * math.exp(noise * own.standard_normal()) + 0.5 * 0.046 * off**2

    target = (7e9, 1.4e11)
    points = lattice(9)
    low = [i for i, (n, d) in enumerate(points) if n <= 1.1e8 and d <= 4e9]
    near = [
        min(low, key=lambda i: float(np.abs(np.log(points[i] / at)).sum())) for at in lattice(3, 1e8, 3.2e9)
    ]
    return Oracle(
        points,
        sorted(set(near)),
        [lattice(k) for k in range(3, 9)],
        target,
        mean(np.array(target)),
        loss,
        False,
    )


def lattice(count: int, params: float = 1e9, tokens: float = 2e10) -> Points:
    """Sizes × horizons, evenly in log from 1e7 parameters and 5e8 tokens, at 2 to 1000 tokens per parameter."""
    n, d = np.meshgrid(np.geomspace(1e7, params, count), np.geomspace(5e8, tokens, count), indexing="ij")
    points = np.column_stack([n.ravel(), d.ravel()])
    ratio = points[:, 1] / points[:, 0]
    return points[(ratio >= 2) & (ratio <= 1000)]


def published(seed: int) -> Oracle:
    """Chinchilla's runs; the seed shifts the grids and chooses the runs to begin with among the small ones."""
    folder = os.environ.get("FROUDE_REFERENCE_DATA", "")
    if not folder:
        raise SystemExit(
            "FROUDE_REFERENCE_DATA names no folder: the published runs are not part of this repository"
        )
    rows = pl.read_csv(Path(folder) / "chinchilla_epoch.csv").filter(
        ~pl.col("dropped_by_authors").cast(pl.Boolean)
    )
    rows = rows.sort("params_N", "tokens_D")
    large = rows.sort("flops_C").row(-1, named=True)
    pool = rows.filter(pl.col("flops_C") <= POOL)
    points, losses = pool.select("params_N", "tokens_D").to_numpy(), pool["loss"].to_numpy()
    known = {tuple(point): float(loss) for point, loss in zip(points, losses, strict=True)}
    draw = np.random.default_rng(seed)
    small = np.flatnonzero(points[:, 1] <= np.quantile(points[:, 1], 0.4))
    return Oracle(
        points,
        nearest(points, small, 3, draw),
        [points[nearest(points, np.arange(len(points)), k, draw)] for k in range(4, 12)],
        (large["params_N"], large["tokens_D"]),
        large["loss"],
        lambda point, _: known[tuple(point)],
        True,
    )


def nearest(points: Points, among: NDArray[np.intp], count: int, draw: np.random.Generator) -> list[int]:
    """The points next to those of a count × count lattice over the range of `among`, shifted by part of a cell."""
    logs = np.log(points)
    low, high = logs[among].min(0), logs[among].max(0)
    cell = (high - low) / count
    at = (np.arange(count) + 0.5)[:, None] * cell + low + draw.uniform(-0.4, 0.4, 2) * cell
    found = []
    for place in np.stack(np.meshgrid(at[:, 0], at[:, 1], indexing="ij"), axis=-1).reshape(-1, 2):
        off = np.abs((logs[among] - place) / cell).max(1)
        if off.min() <= 0.5:  # a cell without a run stays empty
            found.append(int(among[off.argmin()]))
    return sorted(set(found))


class Bought:
    """Runs bought so far."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle, self.points, self.losses = oracle, np.empty((0, 2)), np.empty(0)

    def buy(self, points: Points) -> None:
        numbers = range(len(self.points), len(self.points) + len(points))
        new = [self.oracle.loss(point, number) for point, number in zip(points, numbers, strict=True)]
        self.points, self.losses = np.vstack([self.points, points]), np.append(self.losses, new)

    @property
    def cost(self) -> float:
        return float(self.points[:, 1].sum())

    @property
    def frame(self) -> pl.DataFrame:
        return pl.DataFrame({"params": self.points[:, 0], "tokens": self.points[:, 1], "loss": self.losses})

    def law(self) -> laws.LossLaw:
        law = laws.loss_law(self.frame)
        return law if law.status == "ok" else laws.loss_law(self.frame, prior=PRIOR)

    def state(self, law: laws.LossLaw) -> dict[str, float]:
        params, tokens = self.oracle.target
        seen = law.predict(params=params, tokens=tokens, level=0.9)
        return {
            "cost": self.cost,
            "width": (seen.high - seen.low) / 2 / seen.loss,
            "error": seen.loss / self.oracle.actual - 1,
            "inside": float(seen.low <= self.oracle.actual <= seen.high),
        }


def planned(oracle: Oracle) -> Iterator[dict[str, float]]:
    have, left = Bought(oracle), np.ones(len(oracle.points), dtype=bool)
    have.buy(oracle.points[oracle.start])
    left[oracle.start] = not oracle.once
    for _ in range(ROUNDS):
        law = have.law()
        yield have.state(law)
        offered = oracle.points[left]
        grid = pl.DataFrame({"params": offered[:, 0], "tokens": offered[:, 1]})
        design = forecast_design(law, have.frame, grid, params=oracle.target[0], tokens=oracle.target[1])
        budget = max(GROWTH * have.cost, float(offered[:, 1].min()))
        chosen = design.greedy(offered[:, 1], budget, once=oracle.once)
        have.buy(offered[chosen])
        if oracle.once:
            left[np.flatnonzero(left)[chosen]] = False


def by_chance(oracle: Oracle, seed: int) -> Iterator[dict[str, float]]:
    draw = np.random.default_rng([seed, 1])
    have = Bought(oracle)
    have.buy(oracle.points[oracle.start])
    most = sum(float(point[1]) for point in max(oracle.grids, key=len))
    rest = (
        np.setdiff1d(np.arange(len(oracle.points)), oracle.start)
        if oracle.once
        else np.arange(len(oracle.points))
    )
    order = list(draw.permutation(rest)) if oracle.once else list(draw.choice(rest, 400))
    while order and have.cost < most:
        yield have.state(have.law())
        goal = (1 + GROWTH) * have.cost
        while order and have.cost < goal:
            have.buy(oracle.points[[order.pop()]])
    yield have.state(have.law())


def on_grids(oracle: Oracle) -> Iterator[dict[str, float]]:
    for grid in oracle.grids:
        have = Bought(oracle)
        have.buy(grid)
        yield have.state(have.law())


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


def seed_of(kind: str, seed: int) -> dict[str, list[dict[str, float]]]:
    oracle = synthetic(seed) if kind == "synthetic" else published(seed)
    return {
        "planned": list(planned(oracle)),
        "uniform": list(on_grids(oracle)),
        "chance": list(by_chance(oracle, seed)),
    }


def summary(found: list[dict[str, list[dict[str, float]]]]) -> dict[str, Any]:
    """Of the seeds of one kind: cost ratios at the width of the last uniform grid but one, and how true they are."""
    ratios, chance, widths, cheap = [], [], [], []
    for curves in found:
        goal = math.exp(monotone(curves["uniform"])[1][-2])
        uniform = reached(curves["uniform"], goal)
        ratios.append(reached(curves["planned"], goal) / uniform)
        chance.append(reached(curves["chance"], goal) / uniform)
        widths.append(goal)
        cheap.append(uniform)
    last = {
        name: [
            min(c[name], key=lambda s, u=u, f=f: abs(math.log(s["cost"] / (f * u))))
            for c, u in zip(found, cheap, strict=True)
        ]
        for name, f in (("planned", 0.5), ("uniform", 1.0), ("chance", 1.0))
    }
    return {
        "ratios": np.array(ratios),
        "chance": np.array(chance),
        "widths": np.array(widths),
        "states": last,
    }


def table(kind: str, got: dict[str, Any]) -> list[str]:
    ratios, chance = got["ratios"], got["chance"]
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])

    def rms(name: str) -> str:
        states = got["states"][name]
        error = math.sqrt(np.mean([state["error"] ** 2 for state in states]))
        inside = int(sum(state["inside"] for state in states))
        width = float(np.median([state["width"] for state in states]))
        return f"{100 * error:.2f}%, {100 * width:.2f}%, {inside} of {len(states)}"

    return [
        f"| {kind} | {len(ratios)} | {100 * np.median(got['widths']):.2f}% | {middle:.2f} ({low:.2f}–{high:.2f}) | "
        f"{int((ratios <= 0.6).sum())} | {np.median(chance):.2f} | {int((ratios < chance).sum())} | "
        f"{rms('planned')} | {rms('uniform')} | {rms('chance')} |"
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="stop before a seed after so long; 0: never"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/campaign/planner"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    kinds: dict[str, list[dict[str, list[dict[str, float]]]]] = {"synthetic": [], "published": []}
    for seed in range(arguments.seeds):
        for kind, found in kinds.items():
            file = arguments.out / f"{kind}{seed}.json"
            if not file.exists():
                if arguments.seconds and time.monotonic() - began > arguments.seconds:
                    print(f"{file.stem} and what follows is left; the same command goes on")
                    return 1
                file.write_text(json.dumps(seed_of(kind, seed)))
            found.append(json.loads(file.read_text()))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    results = {kind: summary(found) for kind, found in kinds.items()}
    columns = (
        "oracle",
        "seeds",
        "goal (median)",
        "planner's cost over the grid's: median (quartiles)",
        "≤ 0.6 in",
        "chance's cost over the grid's",
        "planner cheaper than chance in",
        "planner at half the grid's cost: rms error, width, inside",
        "grid",
        "chance at the grid's cost",
    )
    lines = [
        "# The planner against a uniform grid and chance",
        "",
        f"`python benchmarks/campaign/planner.py --seeds {arguments.seeds}` at commit {commit}, "
        f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}. Costs are tokens of all runs bought, those "
        "to begin with included; the width is that of the 90% interval of `LossLaw.predict`, as half of it over the "
        "loss. The goal of a seed is the width of the last uniform grid but one.",
        "",
        f"| {' | '.join(columns)} |",
        "|" + "---|" * len(columns),
        *(line for kind, got in results.items() for line in table(kind, got)),
        "",
    ]
    (HERE / "planner.md").write_text("\n".join(lines))
    print("\n".join(lines))
    good = all(
        np.median(got["ratios"]) <= 0.6 and np.mean(got["ratios"] < got["chance"]) > 0.5
        for got in results.values()
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
