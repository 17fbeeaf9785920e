"""Forecasts from proxies whose learning rate misses the best one by more the larger they are, corrected and not.

Each world has a law, U-curves at three widths (five or seven rates, one seed) and a ladder of five widths by three
horizons; the target has 10 to 50 times the compute of its largest run, and the best rate. The U-curves are steeper
above the best rate than below, as real ones are, so the parabola of the correction is not quite theirs. `known` takes
off what the rate really cost: what is then left is the law's own error. Writes benchmarks/regret.md.

    OMP_NUM_THREADS=1 python benchmarks/campaign/regret.py [--worlds 60]
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from froude import laws
from froude.laws.loss import fit
from froude.laws.loss.posterior import posterior
from froude.promote.fits import PRIOR
from froude.promote.ladder.regret import corrected, with_regret

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from _machine import commit, hardware  # noqa: E402

RESULT = HERE.parent / "regret.md"
WIDTHS, LADDER, RATIOS = (64, 128, 256), (64, 96, 128, 192, 256), (20.0, 50.0, 120.0)
OCTAVES, NOISES = (0.0, 0.5, 1.0, 2.0), (0.002, 0.005, 0.01)
SETTINGS = {"batch": 1, "depth": 4, "optimizer": "adamw", "schedule": "wsd", "status": "finished"}
Array = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """U-curves, the ladder's rows (with `known`, what the rate cost), and the target: params, tokens and loss."""

    curves: pl.DataFrame
    ladder: pl.DataFrame
    target: tuple[float, float, float]


def world(seed: int, parametrization: str, octaves: float, noise: float, drift: float = 0.0) -> World:
    """Draw a world; the best rate goes by the power `drift` of tokens, of which curves of one horizon know nothing."""
    rng = np.random.default_rng([seed, int(1e4 * noise), parametrization == "mup"])
    alpha, beta = rng.uniform(0.25, 0.5, 2)
    floor, (size, data) = rng.uniform(1.2, 2.0), rng.uniform(0.3, 1.0, 2)
    bend, bent = rng.uniform(0.01, 0.025), rng.uniform(0.0013, 0.0039)  # Step Law's: .017, and the cubic part
    slope = 0.0 if parametrization == "mup" else -rng.uniform(0.5, 1.1)

    def law(n: Array, d: Array) -> Array:
        return np.asarray(floor + size * (n / 6e5) ** -alpha + data * (d / 2.4e7) ** -beta)

    def cost(away: Array) -> Array:
        return np.asarray(0.5 * bend * away**2 + bent * np.maximum(away, 0) ** 3)

    step = (0.5, 7) if seed % 2 else (0.75, 5)
    rates = (np.arange(step[1]) - (step[1] - 1) / 2) * step[0] + rng.uniform(-0.5, 0.5)
    w = np.repeat(np.array(WIDTHS, dtype=float), rates.size)
    away = np.tile(rates, len(WIDTHS)) * math.log(2)
    horizon = 20 * 36.0 * WIDTHS[0] ** 2 * 3
    loss = law(36 * w**2, np.full(w.size, horizon)) * np.exp(cost(away) + noise * rng.standard_normal(w.size))
    lr = 0.01 * (w / 128) ** slope * np.exp(away)
    common = {name: pl.lit(value) for name, value in {**SETTINGS, "parametrization": parametrization}.items()}
    curves = pl.DataFrame({"width": w, "lr": lr, "loss": loss}).with_columns(**common)
    w = np.repeat(np.array(LADDER, dtype=float), len(RATIOS))
    n = 36 * w**2
    d = n * np.tile(RATIOS, len(LADDER))
    missed = rng.choice([-1, 1]) * octaves * np.log(w / w.min()) / np.log(w.max() / w.min()) * math.log(2)
    known = cost(missed - drift * np.log(d / horizon))
    ladder = pl.DataFrame(
        {
            "width": w,
            "lr": 0.01 * (w / 128) ** slope * np.exp(missed),
            "params": n,
            "tokens": d,
            "loss": law(n, d) * np.exp(known + noise * rng.standard_normal(w.size)),
            "known": known,
        }
    ).with_columns(**common)
    reach = math.exp(rng.uniform(math.log(10), math.log(50)))
    ahead = float(n.max() * math.sqrt(reach)), float(d.max() * math.sqrt(reach))
    return World(curves, ladder, (*ahead, float(law(*(np.array(v) for v in ahead)))))


def error(rows: pl.DataFrame, target: tuple[float, float, float]) -> float:
    """The relative error of the posterior's median for the target."""
    n, d, loss = (rows[name].to_numpy() for name in ("params", "tokens", "loss"))
    problem = fit.Problem.of(n, d, loss, np.ones(n.size), None, False)
    drawn = posterior(problem, PRIOR, np.arange(n.size), quick=True, draws=600)
    at = np.log(target[:1]) - problem.n_mean, np.log(target[1:2]) - problem.d_mean
    return float(np.exp(np.median(drawn.log_means(*at)))) / target[2] - 1


def cell(parametrization: str, octaves: float, noise: float, worlds: int, drift: float = 0.0) -> str:
    """A row of the table: rms and mean errors as the losses are, corrected, and with the cost known."""
    errors, rows = [], 0
    for seed in range(worlds):
        drawn = world(seed, parametrization, octaves, noise, drift)
        found = with_regret(drawn.ladder, {parametrization: laws.lr_transfer(drawn.curves)})
        rows += int((found["regret"] > 0).sum())
        plain = error(found, drawn.target)
        ours = error(corrected(found), drawn.target) if found["regret"].max() else plain
        best = found.with_columns(pl.col("loss") / pl.col("known").exp())
        errors.append((plain, ours, error(best, drawn.target) if octaves or drift else plain))
    rms = 100 * np.sqrt(np.mean(np.square(errors), axis=0))
    mean = 100 * np.mean(errors, axis=0)
    said = " | ".join(f"{r:.2f} ({m:+.2f})" for r, m in zip(rms, mean, strict=True))
    share = 100 * rows / worlds / len(LADDER) / len(RATIOS)
    name = {"sp": "SP", "mup": "μP"}[parametrization]
    return f"| {name} | {100 * noise:g} | {octaves:g} | {drift:+g} | {share:.0f} | {said} | {rms[1] / rms[0]:.2f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--worlds", type=int, default=60)
    worlds = parser.parse_args().worlds
    cells = [(p, octaves, noise, 0.0) for p in ("sp", "mup") for noise in NOISES for octaves in OCTAVES]
    cells += [("sp", octaves, 0.005, drift) for octaves in (0.0, 1.0) for drift in (-0.3, 0.3)]
    machine, lines = hardware(), []
    for parametrization, octaves, noise, drift in cells:
        lines.append(cell(parametrization, octaves, noise, worlds, drift))
        print(lines[-1], flush=True)
    RESULT.write_text(f"""# What a mis-set learning rate costs a forecast

Relative rms errors, and mean errors in brackets, in percent, of forecasts at 10 to 50 times the compute of the largest
proxy, {worlds} simulated worlds a row. "Octaves" is how far the largest proxy's rate is off; smaller ones are off by
less, the smallest by nothing, all to one side. "Drift" is the power of tokens by which the best rate moves, of which
the curves know nothing. "Rows" is the percentage of losses that were corrected, "known" what taking off the true cost
would give.

| | noise, % | octaves | drift | rows, % | as they are | corrected | known | corrected / as they are |
|---|---|---|---|---|---|---|---|---|
{chr(10).join(lines)}

With the noise, forecasts of the law itself lie lower than the truth (rows of 0 octaves). The cost of a rate that is off
by an octave or less happens to offset that: there even the true cost, taken off, raises the error.

Not shown: real proxies. The worlds' U-curves are Step Law's in size and asymmetry; those of other models may not be.

{datetime.now(UTC):%Y-%m-%d}, commit {commit("campaign/regret.py")}; {machine}.
""")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
