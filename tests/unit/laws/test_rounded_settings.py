"""A setting that was rounded on its way into a table is the setting that was trained with."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

from froude import laws
from froude.laws.stats.frames import read

RATES = 1e-3 * 2.0 ** np.arange(-4, 4)
ROUNDED: dict[str, Callable[[float], float]] = {
    "float32": lambda rate: float(np.float32(rate)),
    "three digits": lambda rate: float(f"{rate:.3g}"),
}


def sweep(rounded: Callable[[float], float], **sizes: float) -> list[dict[str, float]]:
    """Two seeds of an octave grid, the second one's rates as somebody's log has them."""
    noise = np.random.default_rng(int(sum(sizes.values()))).normal(0, 0.003, (2, RATES.size))
    tokens, width = sizes.get("tokens", 4e8), sizes.get("width", 256.0)
    best = math.log(1.3e-3) - 0.25 * math.log(tokens / 4e8) - 0.5 * math.log(width / 256)
    return [
        {
            "lr": rounded(rate) if seed else rate,
            "seed": seed,
            "loss": 3 + 0.06 * (math.log(rate) - best) ** 2 + noise[seed, i],
            "tokens": tokens,
            "batch": 65536,
            "width": width,
        }
        for seed in (0, 1)
        for i, rate in enumerate(RATES)
    ]


def found(rounded: Callable[[float], float]) -> list[float]:
    """What three laws say of the same runs."""
    curve = laws.lr_curve(pl.DataFrame(sweep(rounded)))
    over = [row for tokens in (1e8, 2e8, 4e8, 8e8) for row in sweep(rounded, tokens=tokens)]
    exponent = laws.exponents(pl.DataFrame(over))["lr_tokens"]
    widths = [row for width in (128.0, 256.0, 512.0) for row in sweep(rounded, width=width)]
    transfer = laws.lr_transfer(pl.DataFrame(widths))
    assert (curve.status, exponent.status, transfer.status) == ("ok", "ok", "ok")
    assert transfer.curves["rates"].max() == RATES.size
    return [math.log(curve.lr), curve.low, exponent.measured.value, transfer.slope.value, transfer.slope.se]


@pytest.mark.parametrize("how", ROUNDED)
def test_rates_of_a_seed_that_were_rounded_are_those_of_the_other(how: str) -> None:
    assert found(ROUNDED[how]) == pytest.approx(found(float), rel=0.02, abs=0.004)


def test_what_was_not_rounded_stays_bit_for_bit() -> None:
    frame = pl.DataFrame({"lr": [0.003, 0.001, 0.00102, None], "loss": [3.0, 3.1, 3.2, 3.3]})
    known = frame.drop_nulls()
    assert read(known, ["lr"], setting="lr").frame.equals(known)
    near = pl.DataFrame({"lr": [0.001009, 0.001, 0.001018], "loss": [3.0, 3.1, 3.2]})  # no chain
    assert read(near, ["lr"], setting="lr").frame["lr"].to_list() == [0.001, 0.001, 0.001018]
