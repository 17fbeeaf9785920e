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
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl
from _planner_oracles import Oracle, Points, published, synthetic
from _planner_tables import SHARE, report, summary

from froude import laws
from froude.laws.loss.design import forecast_design
from froude.promote.fits import PRIOR, loss_law

HERE = Path(__file__).resolve().parents[1]
WORLDS = ("synthetic", "published")
# What a study is fitted with before its free law is certified, and what `promote.fits` chooses of both.
LAWS = ("posterior", "study")
STRATEGIES = ("uniform", "planned", "chance")
GROWTH = 0.5  # the planner and chance spend so much of what they have spent, again and again


class Bought:
    """Runs bought so far, and which of LAWS is fitted to them."""

    def __init__(self, oracle: Oracle, kind: str) -> None:
        self.oracle, self.kind = oracle, kind
        self.points, self.losses = np.empty((0, 2)), np.empty(0)

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
        if self.kind == "posterior":
            return laws.loss_law(self.frame, prior=PRIOR)
        return loss_law(self.frame.with_columns(trial=pl.int_range(pl.len()), status=pl.lit("finished")))

    def state(self, law: laws.LossLaw) -> dict[str, float]:
        params, tokens = self.oracle.target
        seen = law.predict(params=params, tokens=tokens, level=0.9)
        return {
            "cost": self.cost,
            "width": (seen.high - seen.low) / 2 / seen.loss,
            "error": seen.loss / self.oracle.actual - 1,
            "inside": float(seen.low <= self.oracle.actual <= seen.high),
        }


def planned(oracle: Oracle, kind: str, most: float) -> Iterator[dict[str, float]]:
    """The planner's rounds until it has spent `most` tokens, or sees nothing worth its cost."""
    have, left = Bought(oracle, kind), np.ones(len(oracle.points), dtype=bool)
    have.buy(oracle.points[oracle.start])
    left[oracle.start] = not oracle.once
    while True:
        law = have.law()
        yield have.state(law)
        offered = oracle.points[left]
        if have.cost >= most or not len(offered):
            return
        grid = pl.DataFrame({"params": offered[:, 0], "tokens": offered[:, 1]})
        design = forecast_design(law, have.frame, grid, params=oracle.target[0], tokens=oracle.target[1])
        budget = max(GROWTH * have.cost, float(offered[:, 1].min()))
        chosen = design.greedy(offered[:, 1], budget, once=oracle.once)
        if not chosen:
            return
        have.buy(offered[chosen])
        if oracle.once:
            left[np.flatnonzero(left)[chosen]] = False


def by_chance(oracle: Oracle, kind: str, most: float, seed: int) -> Iterator[dict[str, float]]:
    """The same start and the same steps of cost, with any run of the box as likely as any other."""
    draw = np.random.default_rng([seed, 1])
    have = Bought(oracle, kind)
    have.buy(oracle.points[oracle.start])
    every = np.arange(len(oracle.points))
    order = list(
        draw.permutation(np.setdiff1d(every, oracle.start)) if oracle.once else draw.choice(every, 400)
    )
    while True:
        yield have.state(have.law())
        if have.cost >= most or not order:
            return
        goal = (1 + GROWTH) * have.cost
        while order and have.cost < goal:
            have.buy(oracle.points[[order.pop()]])


def on_grids(oracle: Oracle, kind: str) -> Iterator[dict[str, float]]:
    for grid in oracle.grids:
        have = Bought(oracle, kind)
        have.buy(grid)
        yield have.state(have.law())


def curve(job: tuple[str, str, int, str]) -> list[dict[str, float]]:
    world, law, seed, strategy = job
    oracle = synthetic(seed) if world == "synthetic" else published(seed)
    most = float(oracle.grids[-2][:, 1].sum())
    if strategy == "uniform":
        return list(on_grids(oracle, law))
    return list(
        planned(oracle, law, most) if strategy == "planned" else by_chance(oracle, law, 2 * most, seed)
    )


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
    files = {
        (world, law, seed, strategy): arguments.out / f"{world}-{law}-{seed}-{strategy}.json"
        for law in LAWS
        for seed in range(arguments.seeds)
        for world in WORLDS
        for strategy in STRATEGIES
    }
    left = [job for job, file in files.items() if not file.exists()]
    with ProcessPoolExecutor(2) as pool:
        for jobs in (left[i : i + 4] for i in range(0, len(left), 4)):
            if arguments.seconds and time.monotonic() - began > arguments.seconds:
                print(f"{jobs[0]} and what follows is left; the same command goes on")
                break
            for job, found in zip(jobs, pool.map(curve, jobs), strict=True):
                files[job].write_text(json.dumps(found))
    kinds = {
        f"{world}, {law}": [
            {name: json.loads(files[world, law, seed, name].read_text()) for name in STRATEGIES}
            for seed in range(arguments.seeds)
            if all(files[world, law, seed, name].exists() for name in STRATEGIES)
        ]
        for world in WORLDS
        for law in LAWS
    }
    results = {kind: summary(found) for kind, found in kinds.items() if found}
    lines = report(f"`python benchmarks/campaign/planner.py --seeds {arguments.seeds}`", results)
    (HERE / "planner.md").write_text("\n".join(lines))
    print("\n".join(lines))
    reached = [
        len(got["goals"]) >= arguments.seeds
        and np.median(got["planned"]) <= SHARE
        and np.mean(got["planned"] < got["chance"]) > 0.5
        for got in results.values()
    ]
    return 0 if all(reached) and len(reached) == len(kinds) else 1


if __name__ == "__main__":
    sys.exit(main())
