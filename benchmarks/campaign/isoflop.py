"""Do the intervals of isoFLOP fits hold the exponent, and the optimum at ten times the compute? Simulated profiles.

Each world draws a Chinchilla-like law, budgets over 1.2 to 2.5 decades, sizes a factor of 1.3 to 1.9 apart that miss
the centre by up to one step and drift across it by up to half a step; noise is normal or Student's t with three degrees
of freedom, of the same standard deviation. Of the losses at ten times the compute `laws.loss_law` makes forecasts, from
the same rows. Writes benchmarks/isoflop.md.

    OMP_NUM_THREADS=1 python benchmarks/campaign/isoflop.py [--worlds 300] [--losses 100]
"""

from __future__ import annotations

import argparse
import math
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

from froude import laws
from froude.laws import IsoFlop
from froude.promote.fits import PRIOR

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from _machine import commit, hardware  # noqa: E402

RESULT = HERE.parent / "isoflop.md"
GRIDS = ((4, 5), (4, 9), (5, 7), (7, 5), (7, 9))  # budgets, sizes of each
NOISES, TAILS = (0.002, 0.005, 0.01, 0.02), ("normal", "t3")
LEVELS, BEYOND = (0.90, 0.95), 10.0
HEAD = (
    "| budgets × sizes | noise, % | tails | ok, % | bias | sd of exponent | width at 95% "
    "| exponent 90% | 95% | size 90% | 95% | scatter 95% | width |"
)


def world(
    seed: int, budgets: int, sizes: int, noise: float, tail: str
) -> tuple[pl.DataFrame, float, float, float, float]:
    """Return the rows, the true exponent, and the target's flops, best params and loss."""
    rng = np.random.default_rng([seed, budgets, sizes, int(noise * 1e5), tail == "t3"])
    floor, (alpha, beta) = rng.uniform(1.4, 2.0), rng.uniform(0.27, 0.45, 2)
    size, data = rng.uniform(0.3, 1.2, 2)  # the terms at 1e8 parameters and 2e9 tokens, nats

    def loss(n: np.ndarray | float, flops: float) -> np.ndarray | float:
        return floor + size * (n / 1e8) ** -alpha + data * (flops / 6 / n / 2e9) ** -beta

    def best(flops: float) -> float:
        log = (
            math.log(alpha * size / (beta * data)) + alpha * math.log(1e8) + beta * math.log(flops / 6 / 2e9)
        )
        return math.exp(log / (alpha + beta))

    top = 10 ** rng.uniform(19, 21)
    step, off, tilt = rng.uniform(1.3, 1.9), rng.uniform(-1, 1), rng.uniform(-0.5, 0.5)
    parts = []
    for i, flops in enumerate(np.geomspace(top / 10 ** rng.uniform(1.2, 2.5), top, budgets)):
        n = best(flops) * step ** (
            np.arange(sizes) - (sizes - 1) / 2 + off + tilt * (i / (budgets - 1) - 0.5)
        )
        z = rng.standard_t(3, sizes) / math.sqrt(3) if tail == "t3" else rng.standard_normal(sizes)
        parts.append(
            pl.DataFrame({"params": n, "loss": loss(n, flops) * np.exp(noise * z)}).with_columns(flops=flops)
        )
    goal = BEYOND * top
    return pl.concat(parts), beta / (alpha + beta), goal, best(goal), float(loss(best(goal), goal))


def inside(law: IsoFlop, level: float, exponent: float, flops: float, params: float) -> tuple[bool, bool]:
    """Whether the intervals at a level hold the exponent and the best size (and so the tokens) of the target."""
    assert law._line is not None
    slope = law._line.estimate(np.array([0.0, 1.0]), level)
    found = law.optimum(flops=flops, level=level).params
    return slope.low <= exponent <= slope.high, found.low <= params <= found.high


def cell(budgets: int, sizes: int, noise: float, tail: str, worlds: int) -> tuple[str, list[float]]:
    """A row of the table, and the four coverages."""
    hits, before, errors, widths = [], [], [], []
    for seed in range(worlds):
        rows, exponent, flops, params, _ = world(seed, budgets, sizes, noise, tail)
        law = laws.iso_flop(rows)
        if law.status != "ok":
            continue
        hits.append([hit for level in LEVELS for hit in inside(law, level, exponent, flops, params)])
        old = law.line.exponents["flops"]
        before.append(
            (
                (old.high - old.low) / (law.n_exponent.high - law.n_exponent.low),
                old.low <= exponent <= old.high,
            )
        )
        errors.append(law.n_exponent.value - exponent)
        widths.append(law.n_exponent.high - law.n_exponent.low)
    held = [float(v) for v in np.mean(hits, axis=0)]
    ratio, covered = np.median([b[0] for b in before]), np.mean([b[1] for b in before])
    numbers = " | ".join(f"{100 * v:.0f}" for v in (held[0], held[2], held[1], held[3]))
    text = (
        f"| {budgets} × {sizes} | {100 * noise:g} | {tail} | {100 * len(hits) / worlds:.0f} | {np.mean(errors):+.3f} "
        f"| {np.std(errors):.3f} | {np.median(widths):.3f} | {numbers} | {100 * covered:.0f} | {ratio:.1f} |"
    )
    return text, held if len(hits) >= worlds / 2 else []


def losses(budgets: int, sizes: int, noise: float, worlds: int) -> str:
    """A row for the loss at the target's true optimum, as `laws.loss_law` forecasts it from the same rows."""
    hits, errors, widths = [], [], []
    for seed in range(worlds):
        rows, _, flops, params, loss = world(seed, budgets, sizes, noise, "normal")
        law = laws.loss_law(rows.with_columns(tokens=pl.col("flops") / 6 / pl.col("params")), prior=PRIOR)
        found = law.predict(params=params, tokens=flops / 6 / params, level=0.9)
        hits.append(found.low <= loss <= found.high)
        errors.append(found.loss / loss - 1)
        widths.append(found.half_width)
    rms = 100 * math.sqrt(np.mean(np.square(errors)))
    return (
        f"| {budgets} × {sizes} | {100 * noise:g} | {100 * np.mean(hits):.0f} | {100 * np.mean(errors):+.2f} "
        f"| {rms:.2f} | {100 * np.median(widths):.2f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--worlds", type=int, default=300)
    parser.add_argument("--losses", type=int, default=100, help="worlds for each row of forecast losses")
    given = parser.parse_args()
    machine, lines, held = hardware(), [], []
    for budgets, sizes in GRIDS:
        for noise in NOISES:
            for tail in TAILS:
                line, found = cell(budgets, sizes, noise, tail, given.worlds)
                lines.append(line)
                held += found
                print(line, flush=True)
    forecasts = [losses(*grid, noise, given.losses) for grid in ((4, 5), (7, 9)) for noise in (0.002, 0.01)]
    print("\n".join(forecasts), flush=True)
    RESULT.write_text(f"""# Intervals of isoFLOP fits

Coverage in simulated worlds, {given.worlds} a row, of nominal 90% and 95% intervals of `laws.iso_flop`: of the exponent
of the best size, and of the best size at {BEYOND:g} times the largest budget (`IsoFlop.optimum`; its tokens are the
budget's rest, so their interval holds if that does). "ok" is the percentage of worlds with status `ok`, of which the
other columns are; where it is below half, intervals are of few and lucky worlds, and not counted below. "Scatter" is
the 95% interval by Student's t of least squares through the optima alone, and how many times as wide it is; before,
intervals were at least that wide.

{HEAD}
|---|---|---|---|---|---|---|---|---|---|---|---|---|
{chr(10).join(lines)}

In rows with half of the worlds or more, coverage is from {100 * min(held):.0f}% to {100 * max(held):.0f}%.

The loss at the optimum at {BEYOND:g} times the budget, as `laws.loss_law` with its weak prior forecasts it from the
same rows; {given.losses} worlds a row, 90% intervals for one new run held against the law's loss, normal noise:

| budgets × sizes | noise, % | coverage, % | mean error, % | rms error, % | median half-width, % |
|---|---|---|---|---|---|
{chr(10).join(forecasts)}

Not shown: real profiles, whose losses need not follow the law, and runs of one size at several budgets that share
noise.

{datetime.now(UTC):%Y-%m-%d}, commit {commit("campaign/isoflop.py")}; {machine}.
""")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
