"""The whole recipe of a study: batch, rate and all that goes with them, chosen under what is not known of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from froude.config import ConfigError, Run
from froude.promote.choice import knobs as told
from froude.promote.choice.batch import Batches, Prefer, batches
from froude.promote.choice.knob import Knob
from froude.promote.choice.rate import rate
from froude.promote.choice.recipe_run import moved, searched_run
from froude.promote.choice.step_time import StepTime
from froude.promote.choice.worth import with_batch
from froude.promote.fits import Fits
from froude.promote.ladder import shape


@dataclass(frozen=True, eq=False)
class Choice:
    """A recipe before its forecast: the run, its knobs, what batches cost, and the fits with the run's batch as target.

    `run` is None where the study has no rate, `batches` where it has no critical batch.
    """

    run: Run | None
    fits: Fits
    knobs: tuple[Knob, ...]
    batches: Batches | None


def choose(
    fits: Fits,
    params: float,
    *,
    flops_per_token: float,
    prefer: Prefer | None = None,
    time: StepTime | None = None,
) -> Choice:
    """Choose for a target of `params` parameters; without a preference its batch stays ("set by you").

    ConfigError for a preference where the study has no critical batch, or no times of steps.
    """
    priced = batches(fits, params, flops_per_token=flops_per_token, time=time)
    target = fits.target
    if prefer is not None and (priced is None or fits.critical is None or fits.critical.status != "ok"):
        status = (
            "no critical batch"
            if fits.critical is None
            else f"a critical batch `{fits.critical.status}`"
            if fits.critical.status != "ok"
            else "no loss law"
        )
        raise ConfigError(
            f"--prefer {prefer} needs a critical batch inside the batches tried, and a loss law, but the study has "
            f"{status}; sweep a stage of the role critical_batch and one of loss_law, or leave --prefer out"
        )
    size = priced.chosen(prefer) if prefer is not None and priced is not None else target.phases.mean
    chosen = _at(fits, with_batch(target, size)) if size != target.phases.mean else fits
    start, here, own = searched_run(fits), rate(fits, chosen.target), rate(fits, target)
    if start is None or here is None or own is None:
        return Choice(None, chosen, (), priced)
    run = moved(start, size, here.promoted, at_own_batch=own.promoted)
    loss = _loss(fits, params)
    found = told.knobs(fits, run, params, target=target, rate=here, batches=priced, prefer=prefer, loss=loss)
    return Choice(run, chosen, found, priced)


def _at(fits: Fits, target: Run) -> Fits:
    """The fits with another batch as the target's: its doubts are that batch's."""
    ladder = fits.rows["loss_law"]
    before = shape.doubts(ladder, fits.target, fits.critical, fits.cost)
    kept = tuple(doubt for doubt in fits.doubts if doubt not in before)
    return replace(
        fits, large=target, doubts=(*kept, *shape.doubts(ladder, target, fits.critical, fits.cost))
    )


def _loss(fits: Fits, params: float) -> float:
    """The loss that a proportion of it is of, nats per token; NaN without a law."""
    law = fits.loss
    if law is None or not math.isfinite(law.E):
        return math.nan
    return float(law.curve(params, np.array(fits.target.tokens)))
