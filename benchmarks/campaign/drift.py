"""Does the gate's check `lr_transfers` promote a rate that is off, and does it know a rate that is not?

Made-up sweeps in which the optimum moves by a known amount: noise of a run × drift to the target × kind of world. The
drift is stated by what the promoted rate then costs in that world, not by the fitted curve. Writes benchmarks/drift.md.

    python benchmarks/campaign/drift.py [--grids 300]
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import optimize, stats

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE)]

from _machine import commit, cpu  # noqa: E402

from froude.laws.lr.drift import lr_drift  # noqa: E402
from froude.promote.checks.drift import LR_TRANSFERS  # noqa: E402

Array = NDArray[np.float64]
Curve = Callable[[Array], Array]
REGRET = LR_TRANSFERS.bound
LOSS = 3.0  # nats per token, at the optimum
NOISES = (0.001, 0.002, 0.005, 0.01)  # of the loss, sd of a run
DRIFTS = (0.0, 0.5, 1.0, 2.0)  # of the one that costs as much as the check allows
USUAL = 0.005
#: The grid of docs/guide/transfer.md, and a target four times as wide and sixteen times as long as its largest.
WIDTHS, TOKENS, RATES, SEEDS = (256, 512, 1024), (1e9, 4e9), 9, 3
RUNS = len(WIDTHS) * len(TOKENS) * RATES * SEEDS
TARGET = {"width": 4096.0, "tokens": 64e9}
READ = {"width": 512.0, "tokens": 4e9}
STEEPER: Curve = lambda u: 0.5 * 0.045 * u**2 + 0.0072 * np.maximum(u, 0) ** 3  # noqa: E731
#: A curve (nats over ln lr above the optimum), and what the noise is.
WORLDS: dict[str, tuple[Curve, str]] = {
    "parabola": (lambda u: 0.5 * 0.045 * u**2, "normal"),
    "steeper above, as published curves": (STEEPER, "t"),
    "exponential": (lambda u: 0.045 * (np.exp(u) - 1 - u), "t"),
    "curvature 1.7 times as large above": (lambda u: 0.5 * np.where(u > 0, 0.075, 0.045) * u**2, "normal"),
    "steeper above, seeds differ by 1%": (STEEPER, "seeds"),
}
KINDS = {
    "normal": "normal",
    "t": "Student's t(3)",
    "seeds": "normal, and 1% common to a seed's runs of one size",
}


def allowed(curve: Curve, side: int) -> float:
    """How far the optimum may move up (side 1) or down (-1) before the rate that stayed costs too much."""
    return float(optimize.brentq(lambda d: float(curve(np.array(-side * d))) - REGRET * LOSS, 1e-3, 4.0))


def sweep(rng: np.random.Generator, world: str, noise: float, drift: float) -> pl.DataFrame:
    """Losses of a grid in which the optimum moves by `drift` from where the rate is read to the target.

    Width and horizon each have a random part of it; the grid is not centred on the optimum.
    """
    curve, kind = WORLDS[world]
    part = rng.uniform()
    by_width = drift * part / math.log(TARGET["width"] / READ["width"])
    by_tokens = drift * (1 - part) / math.log(TARGET["tokens"] / READ["tokens"])
    offsets = (np.arange(RATES) - (RATES - 1) / 2 + rng.uniform(-0.5, 0.5)) * math.log(2) / 2
    frames = []
    for width in WIDTHS:
        for tokens in TOKENS:
            optimum = by_width * math.log(width / READ["width"]) + by_tokens * math.log(
                tokens / READ["tokens"]
            )
            for seed in range(SEEDS):
                z = rng.standard_t(3, RATES) / math.sqrt(3) if kind == "t" else rng.standard_normal(RATES)
                common = 0.01 * rng.standard_normal() * (kind == "seeds")
                loss = LOSS * (1 + noise * z + common) + curve(offsets - optimum)
                rates = {"lr": 0.01 * np.exp(offsets), "loss": loss}
                frames.append(
                    pl.DataFrame(rates).with_columns(
                        width=pl.lit(width), tokens=pl.lit(tokens), seed=pl.lit(seed)
                    )
                )
    return pl.concat(frames)


def cell(world: str, noise: float, drift: float, grids: int) -> dict[str, float]:
    """Shares of grids that the check passes, refuses as drifting, and does not know."""
    counts = {"promoted": 0, "drifts": 0, "unknown": 0}
    for seed in range(grids):
        rng = np.random.default_rng(
            [seed, list(WORLDS).index(world), NOISES.index(noise), DRIFTS.index(drift)]
        )
        side = 1 if seed % 2 else -1
        moved = side * drift * allowed(WORLDS[world][0], side)
        found = lr_drift(sweep(rng, world, noise, moved), at=READ, to=TARGET)
        passed = found.equivalent(REGRET)
        counts["promoted" if passed else "drifts" if found.moves(REGRET) else "unknown"] += 1
    return {key: count / grids for key, count in counts.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--grids", type=int, default=300)
    grids = parser.parse_args().grids
    began = time.process_time()
    found = {
        (world, noise, drift): cell(world, noise, drift, grids)
        for world in WORLDS
        for noise in NOISES
        for drift in DRIFTS
    }
    # What a check with an error of exactly 5% would exceed once in a thousand tables of this size.
    worlds = len(WORLDS)
    most = float(stats.binom.isf(0.001 / (worlds * len(NOISES)), grids, 0.05)) / grids
    wrong = {key: shares["promoted"] for key, shares in found.items() if key[2] >= 1}
    worst, largest = max(wrong.items(), key=lambda each: each[1])
    at_bound = float(np.mean([share for key, share in wrong.items() if key[2] == 1]))
    powers = {world: found[world, USUAL, 0.0]["promoted"] for world in WORLDS}
    lines = [
        "# A drift of the best rate, and what the gate makes of it",
        "",
        f"`python benchmarks/campaign/drift.py --grids {grids}` at commit {commit('campaign/drift.py')}, "
        f"{datetime.now(UTC):%Y-%m-%d}, on one core of {cpu()} (shared), Python {platform.python_version()}, "
        f"{(time.process_time() - began) / 60:.0f} minutes of it.",
        "",
        f"Made-up sweeps: widths {', '.join(map(str, WIDTHS))}; horizons of {' and '.join(f'{t:.0e}' for t in TOKENS)} "
        f"tokens; {RATES} rates half an octave apart; {SEEDS} seeds: {RUNS} runs. The target has width "
        f"{TARGET['width']:.0f} and {TARGET['tokens']:.1e} tokens. Curvature: .045 nats at a loss of {LOSS:g}, as in "
        "published sweeps; more above the optimum.",
        "",
        f"A cell is the share of {grids} sweeps that `lr_transfers` lets pass; in brackets the shares that it calls",
        "drifting and unknown. At the bound the proxies' rate, kept, costs the target "
        f"{100 * REGRET:g}% of the loss by the world's own",
        "curve; the other columns have no drift, half of that one, and twice it. Half go up, half down; width",
        "and horizon share them at random.",
        "",
        "**What it does not show.** Optima here move by power laws, and curves keep their shape: a drift that begins",
        "beyond the proxies is seen by no test on proxies. A target farther away needs more runs.",
        "",
        "| world | noise of a run | no drift | half the bound | at the bound | twice |",
        "|---|---|---|---|---|---|",
    ]
    for world in WORLDS:
        for noise in NOISES:
            cells = [found[world, noise, drift] for drift in DRIFTS]
            shown = [
                f"{100 * c['promoted']:.0f}% ({100 * c['drifts']:.0f}, {100 * c['unknown']:.0f})"
                for c in cells
            ]
            lines.append(
                f"| {world}; noise: {KINDS[WORLDS[world][1]]} | {100 * noise:g}% | "
                + " | ".join(shown)
                + " |"
            )
    lines += [
        "",
        f"**Wrong promotions** at the bound: {100 * at_bound:.1f}% over all cells; most in one cell, there or beyond: "
        f"{100 * largest:.1f}% ({worst[0]}, noise {100 * worst[1]:g}%). A cell whose true share is 5% shows up to "
        f"{100 * most:.1f}% in so many sweeps and cells.",
        "",
        f"**Power** without a drift at a noise of {100 * USUAL:g}%: "
        + ", ".join(f"{100 * power:.0f}% ({world})" for world, power in powers.items())
        + ".",
        "Proxies of one size differ between seeds by .8% of the loss after 600 steps, by .2% after 4000 (two seeds;",
        "search_spaces/hour.py); what a seed does to all rates alike is not noise here, as the last world shows.",
        "",
    ]
    (HERE / "drift.md").write_text("\n".join(lines))
    print("\n".join(lines[-5:]))
    return 0 if largest <= most and min(powers.values()) >= 0.8 else 1


if __name__ == "__main__":
    sys.exit(main())
