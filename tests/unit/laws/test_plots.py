"""Figures draw for every status, without pyplot and with units on the axes."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure

from froude import laws
from froude.laws.drawing.render import draw
from froude.report.svg import figure as page_figure
from froude.report.theme import REPORT

U = (np.arange(7) - 3) * math.log(2) / 2
NOISE = 0.002 * np.random.default_rng(0).standard_normal(7)
CURVE = pl.DataFrame({"lr": 2e-3 * np.exp(U), "loss": 3 + 0.03 * U**2 + NOISE})
EDGE = pl.DataFrame({"lr": 2e-3 * np.exp(U), "loss": 3 - 0.03 * U})
BATCH = pl.DataFrame(
    {"batch": 2.0 ** np.arange(6, 13), "steps": 100 * (1 + 500 / 2.0 ** np.arange(6, 13)) * np.exp(3 * NOISE)}
)
N, D = (v.ravel() for v in np.meshgrid(np.geomspace(1e7, 1e9, 4), np.geomspace(1e9, 1e11, 4)))
LOSS = pl.DataFrame({"params": N, "tokens": D, "loss": 1.8 + 480 * N**-0.35 + 2100 * D**-0.37})
MANY = pl.concat([LOSS, LOSS.with_columns(pl.col("params") * 1.1)])
OPTIMA = pl.DataFrame(
    {"params": N, "tokens": D, "lr": 1.8 * N**-0.7 * D**0.3 * np.exp(0.05 * np.sin(np.arange(16)))}
)
WIDTHS = pl.concat(
    CURVE.with_columns(pl.lit(float(w)).alias("width"), pl.col("lr") * (64 / w)) for w in (64, 128)
)
MIXED = pl.concat([WIDTHS, EDGE.with_columns(pl.lit(256.0).alias("width"))], how="diagonal")
BEST = pl.DataFrame({"batch": 2.0 ** np.arange(6, 13)}).with_columns(
    lr=0.01 / (1 + 500 / pl.col("batch")) * (1 + 0.01 * pl.int_range(7) % 2)
)
STEPS = np.arange(1, 401)
NORMS = pl.DataFrame(
    {
        "step": STEPS,
        "batch_small": 64.0,
        "batch_big": 768.0,
        "small_sq_norm": (1 + 500 / 64) * (1 + 0.1 * np.sin(STEPS)),
        "big_sq_norm": (1 + 500 / 768) * (1 + 0.1 * np.cos(STEPS)),
    }
)
PROFILES = pl.DataFrame(
    [
        {"flops": c, "params": n, "loss": 1.8 + 480 * n**-0.35 + 2100 * (c / 6 / n) ** -0.37}
        for c in (1e18, 1e19, 1e20)
        for n in math.sqrt(c / 120) * 1.6 ** np.arange(-3, 4)
    ]
)
RATES = np.minimum(1.0, (300.5 - np.arange(1, 301)) / 60)
RUN = pl.DataFrame({"run": "a", "step": np.arange(1, 301), "lr": 1e-3 * RATES}).with_columns(
    loss=2 + 0.35 * pl.col("lr").cum_sum() ** -0.5 - 0.2 * (1 - pl.col("lr") / 1e-3)
)
TWICE = pl.concat(
    [
        LOSS.with_columns(unique_tokens=pl.col("tokens")),
        LOSS.with_columns(unique_tokens=pl.col("tokens") / 4, loss=pl.col("loss") * 1.01),
    ]
)
PRIOR = {"alpha": (0.35, 0.1), "beta": (0.35, 0.1)}

RESULTS: dict[str, Callable[[], Any]] = {
    "curve": lambda: laws.lr_curve(CURVE),
    "curve-diverged": lambda: laws.lr_curve(
        pl.concat([CURVE, pl.DataFrame({"lr": [9e-3], "loss": [math.nan]})])
    ),
    "curve-edge": lambda: laws.lr_curve(EDGE),
    "curve-flat": lambda: laws.lr_curve(CURVE.with_columns(loss=pl.lit(3))),
    "curve-few": lambda: laws.lr_curve(CURVE[:2]),
    "curve-empty": lambda: laws.lr_curve(CURVE[:0]),
    "transfer": lambda: laws.lr_transfer(WIDTHS),
    "transfer-edge": lambda: laws.lr_transfer(MIXED),
    "transfer-few": lambda: laws.lr_transfer(WIDTHS[:3]),
    "transfer-empty": lambda: laws.lr_transfer(WIDTHS[:0]),
    "batch": lambda: laws.critical_batch(BATCH),
    "batch-bound": lambda: laws.critical_batch(BATCH.with_columns(steps=100 / pl.col("batch"))),
    "batch-few": lambda: laws.critical_batch(BATCH[:2]),
    "batch-empty": lambda: laws.critical_batch(BATCH[:0]),
    "loss": lambda: laws.loss_law(LOSS),
    "loss-many": lambda: laws.loss_law(MANY),
    "loss-prior": lambda: laws.loss_law(LOSS, prior=PRIOR),
    "loss-few": lambda: laws.loss_law(LOSS[:3]),
    "loss-empty": lambda: laws.loss_law(LOSS[:0]),
    "kaplan": lambda: laws.kaplan(LOSS),
    "kaplan-few": lambda: laws.kaplan(LOSS[:3]),
    "isoflop": lambda: laws.iso_flop(PROFILES),
    "isoflop-few": lambda: laws.iso_flop(PROFILES[:5]),
    "isoflop-empty": lambda: laws.iso_flop(PROFILES[:0]),
    "repeated": lambda: laws.data_constrained(TWICE),
    "repeated-few": lambda: laws.data_constrained(TWICE[:16]),
    "rate": lambda: laws.batch_lr_law(BEST),
    "rate-few": lambda: laws.batch_lr_law(BEST[:2]),
    "noise": lambda: laws.noise_scale(NORMS),
    "noise-few": lambda: laws.noise_scale(NORMS[:20]),
    "noise-empty": lambda: laws.noise_scale(NORMS[:0]),
    "annealing": lambda: laws.curve.annealing(RUN),
    "annealing-many": lambda: laws.curve.annealing(
        pl.concat(RUN.with_columns(run=pl.lit(name)) for name in "abcdefghi")
    ),
    "annealing-few": lambda: laws.curve.annealing(RUN[:5]),
    "annealing-empty": lambda: laws.curve.annealing(RUN[:0]),
    "power": lambda: laws.optimum_law(OPTIMA),
    "power-few": lambda: laws.optimum_law(OPTIMA[:2]),
    "power-empty": lambda: laws.optimum_law(OPTIMA[:0]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RESULTS)
def test_every_result_draws(name: str) -> None:
    result = RESULTS[name]()
    figure = result.plot()
    assert isinstance(figure, Figure)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=40)
    assert out.getbuffer().nbytes > 1000
    panels = [axis for axis in figure.axes if axis.get_xlabel()]
    assert panels
    assert all(axis.get_ylabel() for axis in panels)
    text = figure.get_suptitle()
    assert (result.status in text) == (result.status != "ok")
    for panel in result.drawing():  # the report's look has all that this law draws
        with page_figure(4.7, 3.5) as page:
            draw(page.subplots(), panel, REPORT)
            page.savefig(io.StringIO(), format="svg")


def test_the_optimum_and_its_interval_are_drawn() -> None:
    law = laws.critical_batch(BATCH)
    axis = law.plot().axes[0]
    assert any(list(line.get_xdata()) == [law.b_crit] * 2 for line in axis.lines)
    assert f"{law.b_crit:.3g}" in axis.get_title(loc="left")


def test_no_global_state_of_pyplot_is_touched() -> None:
    before = "matplotlib.pyplot" in sys.modules
    laws.lr_curve(CURVE).plot()
    assert ("matplotlib.pyplot" in sys.modules) == before
