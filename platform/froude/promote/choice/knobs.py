"""Every knob of a chosen run, in words: what recipe, report and terminal show."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from froude.config import Run
from froude.optimizers.times import cut_off, timescale
from froude.promote.choice.batch import Batches, Prefer, unknown
from froude.promote.choice.decay import best_timescale
from froude.promote.choice.knob import Knob, Source
from froude.promote.choice.rate import Rate, exponent
from froude.promote.choice.recipe_run import decouples, searched_batch
from froude.promote.choice.schedules import Against, Compared, compared
from froude.promote.choice.searched import (
    HALF_LIFE_SD,
    LEAST_TRIALS,
    WARMUP,
    Found,
    half_life,
    near_best,
    searched,
    tried_one,
)
from froude.promote.fits import Fits
from froude.schedules import SCHEDULES

#: Standard deviation of the exponent by which the best warmup's share of the tokens goes with them: nobody has measured
#: it here, and the exponents of rate, decay and half-life are believed as widely.
WARMUP_TOKENS_SD = 0.25
EQUAL = 0.005  # of the loss: the gate's bound on a drift of the rate, and as much as another seed of a small proxy
TOLD = 5e-4  # nats: less is not worth a word
UNTOLD = "the table does not tell it"
UNCOMPARED = "schedules were not compared, each at its own best rate, at two horizons"
UNCOMPARED_TAILS = "tails of other lengths were not compared"


def knobs(
    fits: Fits,
    run: Run,
    params: float,
    *,
    target: Run,
    rate: Rate,
    batches: Batches | None,
    prefer: Prefer | None,
    loss: float,
) -> tuple[Knob, ...]:
    """Those of `run`, of `params` parameters, chosen for `target`; `loss` is the forecast's, nats per token."""
    assert fits.best is not None
    # The best half-life goes with the batch: what the recipe's would have been at the search's.
    kept = half_life(run.optimizer.beta2, _as_told(fits, run)) * math.exp(-_half_life_moved(fits, run).shift)
    found = searched(fits.rows["search"], fits.best, promoted_half_life=kept)
    low, high = rate.interval
    peak = Knob(
        "optimizer.lr",
        run.optimizer.lr,
        rate.source,
        low,
        high,
        loss * rate.regret,
        rate.rule,
        rate.buys(loss),
        loss * rate.worst,
    )
    made = [peak, _batch(fits, run, batches, prefer)]
    if run.optimizer.has_beta2:
        made.append(_beta2(fits, run, target, found.get("half_life"), loss))
    if (rest := run.optimizer.stored_rest) is not None:
        rule = (
            "AdamW's where the optimizer takes no matrix: the search's, moved to another batch as the rate is"
        )
        source: Source = "set by you" if tried_one(fits.rows["search"], "rest_lr") else "prior"
        made.append(Knob("optimizer.rest.lr", rest.lr, source, rule=rule))
    if run.optimizer.weight_decay and decouples(run.optimizer):
        made.append(_decay(fits, run, params, target, loss))
    made += [_warmup(fits, run, found.get("warmup"), loss), *_schedule(fits, run, loss)]
    return tuple(_rounded(knob) for knob in made)


def _rounded(knob: Knob) -> Knob:
    """To four digits, which is more than is known."""
    numbers = {name: float(f"{getattr(knob, name):.4g}") for name in ("low", "high", "regret", "worst")}
    return replace(knob, **numbers)  # type: ignore[arg-type]


def _batch(fits: Fits, run: Run, priced: Batches | None, prefer: Prefer | None) -> Knob:
    """The batch; its interval is that of the one that the preference, or least loss, would take."""
    size = run.phases.mean
    # A ramp goes by its mean, which none of its steps has.
    value = str(run.phases) if run.schedule.ramp else size
    if priced is None:
        return Knob("batch", value, "set by you", rule=unknown(fits.critical.status if fits.critical else ""))
    grown = priced.growth.source == "measured"
    source: Source = "set by you" if prefer is None else "measured" if grown else "prior"
    low, high = priced.interval(prefer or "loss")
    buys = "" if grown else "stages critical_batch at three losses would measure how the critical batch grows"
    looked, cost = priced.offered, priced.regret(size)
    ends = [name for name, i in (("smallest", 0), ("largest", -1)) if looked and looked[i] in (low, high)]
    if len(looked) == 1:
        low, high, ends = math.nan, math.nan, []
        buys = "no other batch was looked at"
    open_ended = f"the interval ends at the {' and '.join(ends)} batch that was looked at" if ends else ""
    buys = "; ".join(text for text in (open_ended, buys) if text)
    rule, worst = priced.rule(prefer, size), priced.worst(size)
    return Knob("batch", value, source, low, high, cost, rule, buys, worst)


def _beta2(fits: Fits, run: Run, target: Run, found: Found | None, loss: float) -> Knob:
    """beta2 by its half-life, whose own exponent over batch is believed to be about 0."""
    value, size, own = run.optimizer.beta2, run.batch, searched_batch(fits)
    if not fits.tells(fits.best, "beta2"):
        kept = "" if run.phases == target.phases else ", by its half-life in tokens at the new batch"
        return Knob("optimizer.beta2", value, "set by you", rule=f"the target's own{kept}: {UNTOLD}")
    moved = size != own
    rule = f"that of {_taken_from(fits)}"
    if run.optimizer.beta2_half_life:
        rule = f"a half-life of {run.optimizer.beta2_half_life:,.0f} tokens, {rule}"
    elif moved:
        near = ", the nearest searched" if own not in (target.batch, target.phases.mean) else ""
        rule += f" at batch {own:,}{near}, by its half-life in tokens ({_half_life_moved(fits, run).source})"
    if cut_off(half_life(value, size), value) and moved:
        rule += ", cut off at an end of .9 to .9999"
    set_by_you = tried_one(fits.rows["search"], "beta2")
    if found is None or set_by_you:
        return Knob("optimizer.beta2", value, "set by you" if set_by_you else "prior", rule=rule)
    shift, sd, how = _half_life_moved(fits, run)
    told, lives = _as_told(fits, run), [tokens * math.exp(shift) for tokens in found.wider(sd)]
    low, high = (0.5 ** (told / tokens) for tokens in lives)
    prior = fits.beta2_is_prior or (moved and how == "prior")
    source: Source = "prior" if prior else found.still(sd, HALF_LIFE_SD)
    cost = loss * (found.regret + 0.5 * found.bend * sd**2)
    if not (moved or low <= value <= high):
        rule += ", kept since the loss law's proxies were trained with it"
    worst = loss * found.worst(half_life(value, told), *lives)
    buys = _buys(fits, found, loss, f"{0.5 ** (told / (found.middle * math.exp(shift))):.3g}")
    return Knob("optimizer.beta2", value, source, low, high, cost, rule, buys, worst)


def _taken_from(fits: Fits) -> str:
    """The trial whose beta2 and warmup the recipe has."""
    return f"stage {fits.settled}" if fits.settled else "the search's best trial"


def _buys(fits: Fits, found: Found, loss: float, best: str) -> str:
    """What would take the most off the expected cost of beta2 or the warmup; `best` is the search's, in words."""
    if near_best(fits.rows["search"]).height < LEAST_TRIALS:
        return f"{LEAST_TRIALS} trials of stage search near the best one would begin to tell"
    nearer, left = loss * (found.regret - found.least), loss * found.least
    if not max(nearer, left) >= TOLD:  # nor where there is no law
        return ""
    if nearer > left and not fits.settled:
        return f"a stage of the role settled, at the bowl's best ({best}), would save {nearer:.4f} nats"
    return f"more trials of stage search would save {left:.4f} nats at most"


def _as_told(fits: Fits, run: Run) -> float:
    """The run's batch as the search's rows tell batches: by the mean of a ramp, where the best trial ramped."""
    assert fits.best is not None
    return run.batch * float(fits.best["batch"]) / searched_batch(fits)


class _Moved(NamedTuple):
    shift: float
    sd: float
    source: Source


def _half_life_moved(fits: Fits, run: Run) -> _Moved:
    """How far the best half-life moves from the search's batch to the run's, in ln, and that standard deviation."""
    mean, error, source = exponent(fits, "half_life_batch")
    far = math.log(run.batch / searched_batch(fits))
    return _Moved(mean * far, error * abs(far), source)


def _decay(fits: Fits, run: Run, params: float, target: Run, loss: float) -> Knob:
    """The decay at the target's timescale; its interval is that of the best one, where a stage Exponents has it."""
    own = timescale(
        lr=run.optimizer.lr, weight_decay=run.optimizer.weight_decay, batch=run.batch, tokens=run.tokens
    )
    held = "the target's own timescale"
    if run.optimizer.timescale:
        held = "the target's timescale"
    elif run.phases != target.phases:
        held = "the target's timescale kept at the new batch"
    rule = f"{held}: {own:.3g} of the run"
    name, value = "optimizer.weight_decay", run.optimizer.weight_decay
    law = fits.exponents.knobs.get("timescale_tokens") if fits.exponents is not None else None
    found = best_timescale(law, run.tokens / params, own) if law is not None else None
    if found is None:
        return Knob(name, value, "set by you", rule=rule, buys="a stage Exponents would say which is best")
    rule += f", where {found.middle:.3g} [{found.low:.3g}, {found.high:.3g}] is best ({found.source})"
    low, high = (value * own / end for end in (found.high, found.low))
    worst = loss * found.worst(own, found.low, found.high)
    return Knob(name, value, "set by you", low, high, loss * found.regret, rule, worst=worst)


def _warmup(fits: Fits, run: Run, found: Found | None, loss: float) -> Knob:
    assert fits.best is not None
    name, tokens = "schedule.warmup_tokens", run.schedule.warmup_tokens
    if not fits.tells(fits.best, "warmup_tokens"):
        share = (
            f"the target's own, {100 * tokens / run.tokens:.1f}% of the tokens"
            if tokens
            else "the target has none"
        )
        return Knob(name, tokens, "set by you", rule=f"{share}: {UNTOLD}")
    set_by_you = tried_one(fits.rows["search"], "warmup_tokens")
    of = "of every trial of the search" if set_by_you else f"of {_taken_from(fits)}"
    rule = f"{100 * tokens / run.tokens:.1f}% of the tokens, the share {of}"
    if not tokens:
        share = fits.best["warmup_tokens"] / fits.best["tokens"]
        rule = (
            f"{100 * share:.1f}% of the tokens, the share {of}, is less than half a step" if share else "none"
        )
    if found is None or set_by_you or not tokens:
        return Knob(name, tokens, "set by you" if set_by_you else "prior", rule=rule)
    sd = WARMUP_TOKENS_SD * abs(math.log(run.tokens / fits.best["tokens"]))
    cost = loss * (found.regret + 0.5 * found.bend * sd**2)
    buys = _buys(fits, found, loss, f"{100 * found.middle:.1f}% of the tokens")
    if sd**2 > math.log(found.high / found.low) ** 2 / 12:
        buys = "a search at a longer horizon would tell what the share does there"
    low, high = found.wider(sd)
    source = found.still(sd, WARMUP[1])
    worst = loss * found.worst(tokens / run.tokens, low, high)
    return Knob(name, tokens, source, low * run.tokens, high * run.tokens, cost, rule, buys, worst)


def _schedule(fits: Fits, run: Run, loss: float) -> list[Knob]:
    """The schedule and its tail: the target's own, whatever a comparison says, since its ladder was trained by it."""
    found = compared(fits.rows["schedule"], run) if "schedule" in fits.rows else Compared()
    told = EQUAL * loss
    made = [_verdict("schedule.name", run.schedule.name, found.schedules, UNCOMPARED, told)]
    if SCHEDULES[run.schedule.name].has_tail:
        tail = run.schedule.decay_fraction
        made.append(_verdict("schedule.decay_fraction", tail, found.tails, UNCOMPARED_TAILS, told))
    return made


def _verdict(
    name: str, value: str | float, against: tuple[Against, ...], uncompared: str, told: float
) -> Knob:
    """Measured where no other can be better by more than `told` nats, and no two horizons disagree on it; else set."""
    if not against:
        return Knob(name, value, "set by you", rule=uncompared)
    split = [each for each in against if each.split]
    better = [each for each in against if each.high < 0 and not each.split]
    rule = "; ".join(map(str, against))
    worst = max(0.0, *(-each.low for each in against))
    if better:
        buys = f"with {better[0].name} as the target's, sweep the ladder again"
    elif split:
        buys = "runs nearer to the target's horizon would tell"
    else:
        buys = "" if worst <= told else "more seeds of each would tell which is better"
    if split:
        return Knob(name, value, "set by you", rule=rule, buys=buys)
    regret = max(each.regret for each in against)
    source: Source = "measured" if worst <= told else "set by you"
    return Knob(name, value, source, regret=regret, rule=rule, buys=buys, worst=worst)
