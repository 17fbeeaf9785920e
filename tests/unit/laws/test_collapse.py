"""Loss curves of several sizes at one ratio of tokens to parameters are one curve, but for a mis-tuned run."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

from froude import laws
from froude.laws.curve import collapse

FLOOR, RATIO = 1.7, 20.0


def curves(odd: float = 0.0, noise: float = 0.01, sizes: int = 6, seed: int = 0) -> pl.DataFrame:
    """Curves of a law at 20 tokens a parameter with a linear decay; the third run learns `odd` too slowly at first."""
    chance, parts = np.random.default_rng(seed), []
    for i, params in enumerate(np.geomspace(1e7, 3e8, sizes)):
        share = np.arange(1, 1001) / 1000
        above = 100 * params**-0.3 * (0.55 * share**-0.3 + 0.6 * (1 - share) * share**-0.1 + 0.45)
        slow = 1 + odd * (i == 2) * np.maximum(0, 1 - share)
        loss = FLOOR + above * slow
        parts.append(
            pl.DataFrame(
                {
                    "run": f"n{i}",
                    "params": params,
                    "tokens": share * RATIO * params,
                    "loss": loss * np.exp(noise * chance.standard_normal(share.size)),
                    "final": float(loss[-1]) * math.exp(0.001 * chance.standard_normal()),
                }
            )
        )
    return pl.concat(parts)


def test_well_tuned_runs_collapse_and_the_mistuned_one_stands_out() -> None:
    good, bad = collapse(curves(), floor=FLOOR), collapse(curves(odd=0.15), floor=FLOOR)
    assert (good.status, good.outliers) == ("ok", [])
    assert bad.outliers == ["n2"]
    assert good.runs.columns == ["run", "params", "ratio", "deviation", "noise", "stands_out"]
    assert good.runs["ratio"].to_list() == pytest.approx([RATIO] * 6)
    assert bad.runs["deviation"][2] > 5 * bad.runs["noise"][2]
    # The common curve ends at one, where the losses are the final ones.
    assert good.curve["loss"][-1] == pytest.approx(1.0, abs=0.05)
    assert good.curve["loss"].is_sorted(descending=True)


def test_noise_alone_makes_no_run_stand_out() -> None:
    assert sum(len(collapse(curves(noise=0.02, seed=seed), floor=FLOOR).outliers) for seed in range(30)) == 0


def test_without_the_irreducible_loss_sizes_do_not_collapse() -> None:
    with_floor, without = (collapse(curves(noise=0.0), floor=floor).runs for floor in (FLOOR, 0.0))
    assert without["deviation"].median() > 3 * with_floor["deviation"].median()  # type: ignore[operator]


def test_what_cannot_be_compared() -> None:
    few = collapse(curves(sizes=3), floor=FLOOR)
    assert few.status == "too_few_points"
    assert not few.runs["stands_out"].any()
    longer = curves().with_columns(
        tokens=pl.col("tokens") * pl.when(pl.col("run") == "n0").then(3.0).otherwise(1.0)
    )
    assert "tokens per parameter are 20 to 60" in collapse(longer, floor=FLOOR).reasons[0]
    begun = curves().filter((pl.col("run") != "n1") | (pl.col("tokens") > 0.6 * RATIO * pl.col("params")))
    assert math.isnan(collapse(begun, floor=FLOOR).runs["deviation"][1])
    with pytest.raises(ValueError, match="floor must be below the final losses"):
        collapse(curves(), floor=2.3)
    with pytest.raises(ValueError, match="'final'"):
        laws.curve.collapse(curves().drop("final"))
