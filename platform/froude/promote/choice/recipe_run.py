"""The target run with settings put into it: first as the search found them, then moved to a batch and a rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from froude.config import Run
from froude.optimizers.section import Optimizer, Rest
from froude.optimizers.times import LEAST_BETA2, MOST_BETA2
from froude.promote.choice.rate import exponent
from froude.promote.choice.worth import with_batch
from froude.promote.fits import Fits


def searched_run(fits: Fits) -> Run | None:
    """The target with the rate of stage lr_transfer, and the search's beta2, warmup and rest; None without a rate.

    What `froude promote` wrote before it chose batch and rate. Of a best trial at the target's batch beta2 needs no
    rule to get there; from another batch it is taken by its half-life, the rest's rate by the exponent of the rate. A
    half-life stays one. Decay is the target's own.
    """
    target, rate, best = fits.target, fits.peak_lr, fits.best
    if rate is None or best is None:
        return None
    warmup = best["warmup_tokens"] / best["tokens"] * target.tokens
    beta2 = "beta2_half_life" if fits.half_life else "beta2"
    changes = {
        "optimizer.lr": _rounded(rate.value),
        "schedule.warmup_tokens": round(warmup / target.batch) * target.batch,
    }
    ratio = target.batch / searched_batch(fits)
    if target.optimizer.has_beta2:
        changes[f"optimizer.{beta2}"] = best[beta2] if fits.half_life else beta2_at(best[beta2], ratio)
    if best.get("rest_lr") is not None and best["optimizer"] == target.optimizer.name:
        power, _, _ = exponent(fits, "lr_batch")
        changes["optimizer.rest.lr"] = (
            best["rest_lr"] if ratio == 1 else _rounded(best["rest_lr"] * ratio**power)
        )
        if not target.optimizer.rest.beta2_half_life:
            changes["optimizer.rest.beta2"] = beta2_at(best["rest_beta2"], ratio)
    return target.replace(changes, name=target.name)


def searched_batch(fits: Fits) -> int:
    """The batch, in tokens, that the settings of the search's best trial are for; the first of the target's ramp.

    A trial tells the mean of a ramp; one that ramps and is taken for the target ramps as that does.
    """
    best = fits.best
    assert best is not None
    ramps = best.get("batch_final") not in (None, best["batch"])
    return fits.target.batch if ramps else int(best["batch"])


def beta2_at(beta2: float, ratio: float) -> float:
    """A beta2 of the same half-life in tokens at a batch so many times as large, in .9 to .9999; at 1 as it is."""
    return beta2 if ratio == 1 else _rounded(min(max(beta2**ratio, LEAST_BETA2), MOST_BETA2))


def moved(run: Run, batch: int, lr: float, *, at_own_batch: float) -> Run:
    """A run taken to another batch at the rate `lr`; `at_own_batch` is the rate that it would have at its own.

    Of a ramp the first batch counts. What is held: the decay timescale batch / (lr · weight_decay · tokens) (Wang &
    Aitchison 2405.13698), the half-life of beta2 in tokens (Marek et al. 2507.07101) with beta2 in .9 to .9999, the
    warmup's share of the tokens. AdamW's rate for what an optimizer of matrices leaves moves as the other does.
    """
    changes: dict[str, Any] = {"optimizer.lr": _rounded(lr)}
    optimizer = run.optimizer
    if batch == run.phases.mean:
        return run.replace(changes, name=run.name)
    changed = with_batch(run, batch)
    ratio, faster = batch / run.batch, lr / at_own_batch
    stored = optimizer.stored_rest
    tables: Mapping[str, Optimizer | Rest] = {"optimizer": optimizer} | (
        {"optimizer.rest": stored} if stored is not None else {}
    )
    for table, settings in tables.items():
        if settings.weight_decay and not settings.timescale and decouples(settings):
            changes[f"{table}.weight_decay"] = _rounded(settings.weight_decay * ratio / faster)
        if settings.beta2 and not settings.beta2_half_life and _averages(run, table):
            changes[f"{table}.beta2"] = beta2_at(settings.beta2, ratio)
    if stored is not None:
        changes["optimizer.rest.lr"] = _rounded(stored.lr * faster)
    share = run.schedule.warmup_tokens / run.tokens
    changes["schedule.warmup_tokens"] = round(share * changed.tokens / batch) * batch
    return changed.replace(changes, name=run.name)


def decouples(settings: Optimizer | Rest) -> bool:
    """Whether decay is a share of the weights a step, so that it has a timescale."""
    return settings.spec.decays and not settings.spec.coupled


def _averages(run: Run, table: str) -> bool:
    """Whether beta2 of this table is one that the optimizer averages by."""
    return table != "optimizer" or run.optimizer.has_beta2


def _rounded(value: float) -> float:
    """To six digits, so that the last bits of a fit make no other run."""
    return float(f"{value:.6g}")
