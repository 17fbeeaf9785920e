"""The loss along the target run, forecast before it starts: the proxies' curve, moved to end at the forecast.

Bands are of the training loss, averaged over blocks of tokens as the monitor averages it while the run goes on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from froude import laws, schedules
from froude.config import Run
from froude.promote.choice.target_loss import widened
from froude.promote.choice.worth import as_in_the_ladder
from froude.promote.fits import Fits
from froude.promote.forecast import BandPoint, Forecast
from froude.promote.ladder.rates import RAMPED
from froude.study import Study

BLOCKS = 200  # of a run: half a percent of its tokens each
LEVEL = 0.99  # of the band: a run that is well has all its way to leave it on
SHAPE_LEVEL = 0.9  # of the curve alone, against which the run's own level is held
POINTS = 80  # of the band as it is stored
MIN_BLOCKS = 40  # of a proxy, or its curve says little


def with_band(forecast: Forecast, study: Study, fits: Fits, run: Run, params: float) -> Forecast:
    """The forecast with the band of the loss along `run`; as it is where the proxies' steps determine no curve."""
    batches = run.tokens // run.batch
    block = max(1, batches // BLOCKS, run.phases.largest // run.batch) * run.batch
    rows, gaps = curves(study, fits, block, run.batch)
    if not rows.height:
        return forecast
    law = laws.curve.annealing(rows, floor="params")
    # at_bound: a floor at zero says nothing of the final loss, and draws the same curve
    if law.status not in ("ok", "at_bound"):
        return forecast
    assert fits.loss is not None
    gap = float(np.mean(gaps))
    tokens, apart = as_in_the_ladder(fits, params)
    end = widened(fits.loss.predict(params=params, tokens=tokens, level=LEVEL), apart)
    rates = _rates(run)
    ends = (end.loss, end.low, end.high)
    if fits.cost is not None:
        ends = fits.cost.moved(*ends, LEVEL)
    seen = replace(end, loss=ends[0] + gap, low=ends[1] + gap, high=ends[2] + gap)
    along = law.predict(rates, level=LEVEL, final=seen)
    shape = law.predict(
        rates, level=SHAPE_LEVEL, final=replace(seen, level=SHAPE_LEVEL, low=seen.loss, high=seen.loss)
    )
    first = max(block // run.batch, math.ceil(run.schedule.warmup_tokens / run.batch) + 1)
    at = np.unique(np.linspace(first, batches, POINTS).round().astype(int)) - 1
    points = tuple(
        BandPoint(
            tokens=(int(i) + 1) * run.batch,
            loss=float(along.loss[i]),
            low=max(0.0, float(along.low[i])),  # a cross-entropy
            high=float(along.high[i]),
            shape=float(shape.high[i] - shape.low[i]) / 2,
        )
        for i in at
    )
    return replace(forecast, band=points, block=block, band_level=LEVEL)


def _rates(run: Run) -> list[float]:
    """The rate of each of the run's batches, as if each were a step.

    A step that takes k batches at the rate r is k steps at r over the root of k, as Adam's rule of the root has it
    (Malladi et al. 2205.10287).
    """
    rates = []
    for step in range(run.steps):
        factor = run.phases.factor_at(step)
        rates += [schedules.at_step(run, step) * run.optimizer.lr / math.sqrt(factor)] * factor
    return rates


def curves(study: Study, fits: Fits, block: int, batch: int) -> tuple[pl.DataFrame, Sequence[float]]:
    """Training losses of the loss law's proxies, one run a trial, as means over blocks of at most `block` tokens.

    A proxy shorter than the target run has shorter blocks, which scatter more. Columns `run, step, lr, loss, params`,
    where a step is `batch` tokens; and by how much each run's curve ends above its validation loss. Without rows where
    the study kept no steps, or another trainer told no rates. Proxies that ramp their batch are left out: their steps
    are not alike.
    """
    proxies = fits.rows["loss_law"].filter(pl.col("status") == "finished", ~RAMPED).sort("tokens")
    longest = proxies.unique("trial", keep="last", maintain_order=True)
    kept = study.steps().filter(pl.col("run").is_in(longest["run"].implode())).sort("tokens").collect()
    parts, gaps = [], []
    for proxy in longest.iter_rows(named=True):
        steps = kept.filter(pl.col("run") == proxy["run"])
        own = max(batch, min(block, proxy["tokens"] // BLOCKS))
        blocks = averaged(steps, own)
        if blocks.height < MIN_BLOCKS or steps["lr"].null_count():
            continue
        gaps.append(float(blocks["loss"][-1]) - proxy["loss"])
        # A block may end where no step of the target's does: of two in one step the later stays.
        numbered = blocks.with_columns(step=(pl.col("tokens") - 1) // batch + 1).unique(
            "step", keep="last", maintain_order=True
        )
        parts.append(
            numbered.select(
                run=pl.lit(proxy["run"]),
                step="step",
                lr="lr",
                loss="loss",
                params=pl.lit(float(proxy["params"])),
            )
        )
    return (pl.concat(parts) if parts else pl.DataFrame()), gaps


def averaged(steps: pl.DataFrame, block: int) -> pl.DataFrame:
    """Mean loss, and last tokens and rate, of each whole block of `block` tokens: `tokens, lr, loss`."""
    numbered = steps.with_columns(at=(pl.col("tokens") - 1) // block)
    blocks = numbered.group_by("at", maintain_order=True).agg(
        pl.col("tokens").last(), pl.col("lr").last(), pl.col("loss").mean()
    )
    last = blocks["tokens"].max()
    whole = (pl.col("tokens") % block == 0) | (pl.col("tokens") < (last or 0))
    return blocks.filter(whole).select("tokens", "lr", "loss")
