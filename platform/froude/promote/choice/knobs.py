"""Every knob of a chosen run, in words: what recipe, report and terminal show."""

from __future__ import annotations

import math
from dataclasses import replace

from froude.config import Run
from froude.laws.lr.exponents import KNOBS
from froude.optimizers.times import cut_off, timescale
from froude.promote.choice.batch import Batches, Prefer, unknown
from froude.promote.choice.decay import best_timescale
from froude.promote.choice.knob import Knob, Source
from froude.promote.choice.rate import Rate
from froude.promote.choice.recipe_run import decouples
from froude.promote.choice.schedules import compared
from froude.promote.choice.searched import MEAN_BEND, WARMUP, Found, half_life, searched
from froude.promote.fits import Fits
from froude.schedules import SCHEDULES

MORE_TRIALS = "twice the trials of stage search would about halve this"
#: Standard deviation of the exponent by which the best warmup's share of the tokens goes with them: nobody has measured
#: it here, and the exponents of rate, decay and half-life are believed as widely.
WARMUP_TOKENS_SD = 0.25
TOLD = 5e-4  # nats: less is not worth a word
UNCOMPARED = "schedules were not compared, each at its own best rate, at two horizons"


def knobs(
    fits: Fits,
    run: Run,
    *,
    target: Run,
    rate: Rate,
    batches: Batches | None,
    prefer: Prefer | None,
    loss: float,
) -> tuple[Knob, ...]:
    """Those of `run`, which was chosen for `target`; `loss` is the forecast's, nats per token."""
    assert fits.best is not None
    # The best half-life goes with the batch: what the recipe's would have been at the search's.
    kept = half_life(run.optimizer.beta2, run.phases.mean) * math.exp(-_half_life_moved(fits, run, target)[0])
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
    )
    made = [peak, _batch(fits, run, batches, prefer)]
    if run.optimizer.has_beta2:
        made.append(_beta2(fits, run, target, found.get("half_life"), loss))
    if (rest := run.optimizer.stored_rest) is not None:
        rule = (
            "AdamW's where the optimizer takes no matrix: the search's, moved to another batch as the rate is"
        )
        made.append(Knob("optimizer.rest.lr", rest.lr, _unplaced(fits, "rest_lr"), rule=rule))
    if run.optimizer.weight_decay and decouples(run.optimizer):
        made.append(_decay(fits, run, target, loss))
    made += [_warmup(fits, run, found.get("warmup"), loss), *_schedule(fits, run)]
    return tuple(_rounded(knob) for knob in made)


def _rounded(knob: Knob) -> Knob:
    """To four digits, which is more than is known."""
    low, high, regret = (float(f"{each:.4g}") for each in (knob.low, knob.high, knob.regret))
    return replace(knob, low=low, high=high, regret=regret)


def _batch(fits: Fits, run: Run, priced: Batches | None, prefer: Prefer | None) -> Knob:
    """The batch; its interval is that of the one that the preference, or least loss, would take."""
    size = run.phases.mean
    if priced is None:
        return Knob("batch", size, "set by you", rule=unknown(fits.critical.status if fits.critical else ""))
    grown = priced.growth.source == "measured"
    source: Source = "set by you" if prefer is None else "measured" if grown else "prior"
    hours = f", hours {priced.timed}" if prefer in ("time", "price") else ""
    chosen = f"--prefer {prefer}{hours}; " if prefer else ""
    low, high = priced.interval(prefer or "loss")
    buys = "" if grown else "stages critical_batch at three losses would measure how the critical batch grows"
    looked = [row.batch for row in priced.rows]
    ends = [name for name, end in (("smallest", looked[0]), ("largest", looked[-1])) if end in (low, high)]
    open_ended = f"the interval ends at the {' and '.join(ends)} batch that was looked at" if ends else ""
    buys = "; ".join(text for text in (open_ended, buys) if text)
    return Knob("batch", size, source, low, high, priced.regret(size), f"{chosen}{priced.words(size)}", buys)


def _beta2(fits: Fits, run: Run, target: Run, found: Found | None, loss: float) -> Knob:
    """beta2 by its half-life, whose own exponent over batch is believed to be about 0."""
    value, size = run.optimizer.beta2, run.phases.mean
    own = target.phases.mean
    moved = size != own
    rule = "that of the search's best trial"
    if run.optimizer.beta2_half_life:
        rule = f"a half-life of {run.optimizer.beta2_half_life:,.0f} tokens, that of the search's best trial"
    elif moved:
        rule += f" at batch {own:,}, by its half-life in tokens"
    if cut_off(half_life(value, size), value) and moved:
        rule += ", cut off at an end of .9 to .9999"
    if found is None:
        return Knob("optimizer.beta2", value, _unplaced(fits, "beta2"), rule=rule)
    shift, sd = _half_life_moved(fits, run, target)
    ends = [0.5 ** (size / (tokens * math.exp(shift))) for tokens in found.wider(sd)]
    source: Source = "prior" if fits.beta2_is_prior else found.source
    cost = loss * (found.regret + 0.5 * MEAN_BEND * sd**2)
    if not min(ends) <= value <= max(ends):
        rule += ", kept since the loss law's proxies were trained with it"
    buys = MORE_TRIALS if cost >= TOLD else ""
    return Knob("optimizer.beta2", value, source, ends[0], ends[1], cost, rule, buys)


def _half_life_moved(fits: Fits, run: Run, target: Run) -> tuple[float, float]:
    """How far the best half-life moves from the search's batch to the run's, in ln, and that standard deviation."""
    law = fits.exponents.knobs.get("half_life_batch") if fits.exponents is not None else None
    mean, error = (law.posterior.value, law.posterior.se) if law else KNOBS["half_life_batch"].prior
    far = math.log(run.phases.mean / target.phases.mean)
    return mean * far, error * abs(far)


def _unplaced(fits: Fits, column: str) -> Source:
    """Where a setting is from that the search does not place: it was yours if all trials had one value of it."""
    return "prior" if fits.rows["search"][column].n_unique() > 1 else "set by you"


def _decay(fits: Fits, run: Run, target: Run, loss: float) -> Knob:
    """The decay at the target's timescale; its interval is that of the best one, where a stage Exponents has it."""
    own = timescale(
        lr=run.optimizer.lr, weight_decay=run.optimizer.weight_decay, batch=run.batch, tokens=run.tokens
    )
    held = "the target's own timescale"
    if run.optimizer.timescale:
        held = "the target's timescale"
    elif run.phases.mean != target.phases.mean:
        held = "the target's timescale kept at the new batch"
    rule = f"{held}: {own:.3g} of the run"
    name, value = "optimizer.weight_decay", run.optimizer.weight_decay
    law = fits.exponents.knobs.get("timescale_tokens") if fits.exponents is not None else None
    found = best_timescale(law, run, own)
    if found is None:
        return Knob(name, value, "set by you", rule=rule, buys="a stage Exponents would say which is best")
    rule += f", where {found.middle:.3g} [{found.low:.3g}, {found.high:.3g}] is best ({found.source})"
    low, high = (value * own / end for end in (found.high, found.low))
    return Knob(name, value, "set by you", low, high, loss * found.regret, rule)


def _warmup(fits: Fits, run: Run, found: Found | None, loss: float) -> Knob:
    tokens = run.schedule.warmup_tokens
    rule = f"{100 * tokens / run.tokens:.1f}% of the tokens, the share of the search's best trial"
    if found is None:
        return Knob("schedule.warmup_tokens", tokens, _unplaced(fits, "warmup_tokens"), rule=rule)
    assert fits.best is not None
    sd = WARMUP_TOKENS_SD * abs(math.log(run.tokens / fits.best["tokens"]))
    cost = loss * (found.regret + 0.5 * MEAN_BEND * sd**2)
    buys = MORE_TRIALS if cost >= TOLD else ""
    if sd**2 > math.log(found.high / found.low) ** 2 / 12:
        buys = "a search at a longer horizon would tell what the share does there"
    low, high = (end * run.tokens for end in found.wider(sd))
    source: Source = found.source if sd < WARMUP[1] else "prior"
    return Knob("schedule.warmup_tokens", tokens, source, low, high, cost, rule, buys)


def _schedule(fits: Fits, run: Run) -> list[Knob]:
    """The schedule and its tail: the target's own, whatever a comparison says, since its ladder was trained by it."""
    name, tail = run.schedule.name, run.schedule.decay_fraction
    against = compared(fits.rows["schedule"], run) if "schedule" in fits.rows else ()
    made = Knob("schedule.name", name, "set by you", rule=UNCOMPARED)
    if against:
        better = [each for each in against if each.high < 0]
        rule = "; ".join(str(each) for each in against)
        buys = f"with {better[0].name} as the target's, sweep the ladder again" if better else ""
        source: Source = "set by you" if better else "measured"
        regret = max(each.regret for each in against)
        made = Knob("schedule.name", name, source, regret=regret, rule=rule, buys=buys)
    if SCHEDULES[name].trunk is None:
        return [made]
    own = replace(made, name="schedule.decay_fraction", value=tail)
    return [made, own if against else replace(own, rule="")]
