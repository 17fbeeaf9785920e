"""What a run's tokens are worth at its batch: tokens at the batch of the loss law's rows that would reach its loss."""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from froude.config import Run, whole_steps
from froude.laws.batch.growth import at_horizon, growth
from froude.laws.loss.trade import Part, Trade
from froude.promote.fits import Fits

DRAWS = 2000


def parts(run: Run) -> list[Part]:
    """The tokens of a run by the batch that they are trained on in."""
    phases = [*run.phases]
    ends = [*(phase.tokens for phase in phases[1:]), run.tokens]
    return [
        Part(end - phase.tokens, phase.factor * run.batch) for phase, end in zip(phases, ends, strict=True)
    ]


def with_batch(run: Run, batch: int) -> Run:
    """The run at one batch, its tokens in whole steps, without a ramp; as it is where that is its mean already."""
    if batch == run.phases.mean:
        return run
    return run.replace({"batch": batch, "tokens": whole_steps(run.tokens, batch), "schedule.ramp": ()})


def trade(fits: Fits, params: float) -> Trade | None:
    """The loss law by batch for the study's target; None without a critical batch and a loss law."""
    critical, law = fits.critical, fits.loss
    if critical is None or law is None or not math.isfinite(law.E) or not math.isfinite(critical.b_crit):
        return None
    if (
        critical.status == "at_bound"
    ):  # a term of its hyperbola has vanished: any batch may be the critical one
        return None
    rng = np.random.default_rng(0)
    draws = at_horizon(critical, fits.target.tokens, growth(fits.horizons), rng, DRAWS)
    return Trade(law, params, law_batch(fits), draws)


def law_batch(fits: Fits) -> float:
    """The batch of the loss law's rows: their geometric mean, the target's where they do not say."""
    sizes = ladder_batches(fits)
    return math.exp(float(np.log(sizes).mean())) if sizes else float(fits.target.phases.mean)


def ladder_batches(fits: Fits) -> list[int]:
    """The batch of every finished row of the loss law that tells it, in tokens."""
    rows = fits.rows.get("loss_law")
    if rows is None:
        return []
    return rows.filter(pl.col("status") == "finished")["batch"].drop_nulls().to_list()


def as_in_the_ladder(fits: Fits, params: float) -> tuple[float, float]:
    """The tokens at the ladder's batch that the target's are worth, and the sd of ln loss by what is not known of them.

    Its own, and 0, where its batch is among the ladder's, which has measured it, and where there is no critical batch.
    """
    target = fits.target
    sizes = ladder_batches(fits)
    priced = trade(fits, params)
    if priced is None or not sizes or min(sizes) <= target.phases.mean <= max(sizes):
        return float(target.tokens), 0.0
    worth = priced.worth(parts(target))
    middle = float(np.median(worth))
    law = priced.law
    losses = law.curve(params, worth)
    return middle, float(np.log(losses).std())
