"""What the gate asks of a study: the evidence, and each check's rule, value and remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from froude.promote.gate import NAMES, PRODUCTION, Check, Profile

#: `critical_status` of a study without trials that measure a critical batch.
NO_STAGE = "no such stage"
#: What is said of the best rate where the curves have none, and what then comes first.
NO_RATE = "unknown: there is no best rate"
FIRST = "first see to `lr_edge`, `lr_points` and their kin"


@dataclass(frozen=True)
class Evidence:
    """What the gate looks at; losses in nats per token, ratios target over largest proxy.

    `unfinished` names the largest proxies that did not finish, `precisions` those of target and proxies. `leaked` is
    the largest share of validation windows that are in a training split, None where no trial says. `seeds` maps a
    stage's role to the seeds of its most frugal size. `spikes` maps each of the largest proxies to the spikes from
    which it did not recover. `lr_curves` maps each size to (number of rates, status of its U-curve), `lr_bumps` to the
    height of the highest rise between two of its minima, `lr_left_out` to the rates that are not fitted, and why.
    `lr_half_width` is that of the pooled optimum's 95% interval
    in ln lr; `lr_drift` how far in ln lr the fitted slope moves the optimum from the middle of the sizes to the target,
    0 if the slope's interval holds 0 or the rate follows the slope. `diverged_ratio` is the smallest ratio (>= 1)
    between the promoted rate and one that diverged in the same parametrization, inf if none did. `sizes_off` names the
    sizes that the loss law of the others does not predict. `token_overhead` is E / E_min - 1 at the promoted batch, NaN
    if there is no critical batch.
    """

    failed: int
    unfinished: Sequence[str]
    precisions: Sequence[str]
    leaked: float | None
    seeds: Mapping[str, int]
    spikes: Mapping[str, int]
    lr_curves: Mapping[int, tuple[int, str]]
    lr_bumps: Mapping[int, float]
    lr_status: str
    lr_half_width: float
    lr_drift: float
    diverged_ratio: float
    ratios: Mapping[str, float]
    sizes_off: Sequence[str]
    forecast_half_width: float
    forecast_certified: bool
    forecast_reasons: Sequence[str]
    batch: int
    critical_batch: float
    critical_status: str
    critical_reasons: Sequence[str]
    token_overhead: float
    lr_left_out: Mapping[int, str] = field(default_factory=dict)


def table(evidence: Evidence, profile: Profile = PRODUCTION) -> tuple[Check, ...]:
    """Every check of the profile on this evidence, none overridden yet."""
    checks = (
        *_rows(evidence, profile),
        *_rates(evidence, profile),
        *_reach(evidence, profile),
        *_forecast(evidence, profile),
        _batch(evidence),
    )
    assert tuple(check.name for check in checks) == NAMES
    return checks


def _rows(evidence: Evidence, profile: Profile) -> list[Check]:
    few = {role: n for role, n in evidence.seeds.items() if n < profile.seeds}
    spiked = [f"{run} ({n})" for run, n in evidence.spikes.items() if n]
    known = evidence.leaked is not None
    return [
        Check(
            "trials_failed",
            evidence.failed == 0,
            str(evidence.failed),
            "0 failed trials",
            "run the sweep again: finished trials stay",
        ),
        Check(
            "largest_finished",
            not evidence.unfinished,
            f"unfinished: {', '.join(evidence.unfinished)}" if evidence.unfinished else "finished",
            "a finished largest proxy in every law",
            "run the sweep to its end, or find out why it does not finish",
        ),
        Check(
            "one_precision",
            len(evidence.precisions) == 1,
            ", ".join(evidence.precisions),
            "one precision for target and proxies",
            "train the proxies in the target's precision",
        ),
        Check(
            "validation_leak",
            evidence.leaked is not None and evidence.leaked <= profile.leaked,
            f"{100 * evidence.leaked:.1f}%" if evidence.leaked is not None else "unknown",
            f"<= {100 * profile.leaked:g}% of the validation windows in the training data",
            "hold the validation data out of the training data"
            if known
            else "train proxies here, which look",
            kind="refuse" if known else "warn",
        ),
        Check(
            "seeds",
            not few,
            ", ".join(f"{n} in {role}" for role, n in (few or evidence.seeds).items()) or "none",
            f">= {profile.seeds} seeds",
            "repeat the stage's central runs with another seed",
        ),
        Check(
            "unstable_proxies",
            bool(evidence.spikes) and not spiked,
            ", ".join(spiked) or ("none" if evidence.spikes else "unknown: no steps were kept"),
            "no spike in the largest proxies that does not recover",
            "lower the rate, lengthen the warmup or clip harder, and run them again",
            kind="refuse" if evidence.spikes else "warn",
        ),
    ]


def _rates(evidence: Evidence, profile: Profile) -> list[Check]:
    statuses = {size: status for size, (_, status) in evidence.lr_curves.items()}
    rates, fewest = min(((n, size) for size, (n, _) in evidence.lr_curves.items()), default=(0, None))
    at = "" if fewest is None else f" at width {fewest}"
    without = evidence.lr_left_out.get(fewest or 0)
    bumps = {size: bump for size, bump in evidence.lr_bumps.items() if bump > profile.bump}

    def curve(name: str, status: str, rule: str, remedy: str) -> Check:
        where = [f"width {size}" for size, its in statuses.items() if its == status]
        where += ["joint fit"] if evidence.lr_status == status else []
        value = f"`{status}` at {', '.join(where)}" if where else "true of all"
        return Check(name, not where, value, rule, remedy)

    return [
        curve("lr_edge", "edge", "an optimum inside the grid", "extend the rates of stage `lr_transfer`"),
        Check(
            "lr_points",
            rates >= profile.lr_rates,
            f"{rates} fitted rates{at}, the fewest" + (f"; left out: {without}" if without else ""),
            f">= {profile.lr_rates} rates a size",
            "add rates to stage `lr_transfer`" + (", nearer to the best" if without else ""),
        ),
        curve("lr_flat", "flat", "a loss that depends on the rate", "widen the grid of rates or add seeds"),
        curve(
            "lr_convex",
            "not_convex",
            "a convex curve of the loss over ln rate",
            "add seeds, or rates nearer by",
        ),
        Check(
            "lr_one_minimum",
            not bumps,
            ", ".join(f"a rise of {bump:.3f} at width {size}" for size, bump in bumps.items())
            or "true of all",
            f"a loss that rises by <= {profile.bump:g} nats between two minima over the rates",
            "add seeds and rates there: the runs between the minima may be unstable",
        ),
        _at_most(
            "lr_interval",
            evidence.lr_half_width,
            profile.lr_half_width,
            "in ln rate, half-width",
            "add rates",
        ),
        _at_most(
            "lr_transfers",
            evidence.lr_drift,
            profile.drift,
            "in ln rate from the proxies to the target",
            "the optimum moves with size: `froude fit --diagnose`, or promote by the slope under SP",
        ),
        Check(
            "diverged_near_optimum",
            evidence.diverged_ratio > profile.diverged_distance,
            _ratio(evidence.diverged_ratio),
            f"> {_ratio(profile.diverged_distance)} between the promoted rate and one that diverged",
            FIRST
            if math.isnan(evidence.diverged_ratio)
            else "clip harder, lengthen the warmup, or promote a lower rate",
        ),
    ]


def _reach(evidence: Evidence, profile: Profile) -> list[Check]:
    lost = evidence.critical_status in ("edge", "at_bound")
    inside = "a critical batch inside the batches tried"
    checks = [
        _unmeasured("batch_edge", inside, evidence)
        if not lost and not math.isfinite(evidence.critical_batch)
        else Check(
            "batch_edge",
            not lost,
            f"`{evidence.critical_status}`: {'; '.join(evidence.critical_reasons)}" if lost else "true",
            inside,
            "add batch sizes to stage `critical_batch` on that side",
        )
    ]
    for axis in ("params", "tokens", "compute", "batch"):
        bound = float(getattr(profile, f"{axis}_ratio"))
        value = evidence.ratios[axis]
        within = 1 / bound <= value <= bound if axis == "batch" else value <= bound
        rule = f"<= {_ratio(bound)} the largest proxy's {axis}"
        remedy = "add larger proxies to stage `loss_law`"
        checks.append(Check(f"extrapolation_{axis}", within, _ratio(value), rule, remedy))
    return checks


def _forecast(evidence: Evidence, profile: Profile) -> list[Check]:
    width = evidence.forecast_half_width
    return [
        Check(
            "sizes_agree",
            not evidence.sizes_off,
            f"off: {', '.join(evidence.sizes_off)} parameters" if evidence.sizes_off else "true of all",
            "sizes that the law of the others predicts",
            "look at that size's runs (rate, data, stability) and repeat it",
        ),
        Check(
            "forecast_interval",
            width <= profile.forecast_half_width,
            f"{100 * width:.1f}% half-width",
            f"<= {100 * profile.forecast_half_width:g}% of the loss",
            "add proxies or seeds to stage `loss_law`",
        ),
        Check(
            "forecast_certified",
            evidence.forecast_certified,
            "certified"
            if evidence.forecast_certified
            else f"not ({'; '.join(evidence.forecast_reasons) or 'no reason'})",
            "a certified interval",
            "add sizes and horizons to stage `loss_law`: `froude plan --next` says which",
        ),
    ]


def _at_most(name: str, value: float, bound: float, what: str, remedy: str) -> Check:
    if math.isnan(value):
        return Check(name, False, NO_RATE, f"<= {bound:g} {what}", FIRST)
    return Check(name, value <= bound, f"{value:.2f} {what}", f"<= {bound:g} {what}", remedy)


def _ratio(value: float) -> str:
    return f"{value:.3g}×" if math.isfinite(value) else "no such trial" if value > 0 else "unknown"


def _unmeasured(name: str, rule: str, evidence: Evidence) -> Check:
    """A check of the critical batch where the study knows none."""
    status = evidence.critical_status
    why = "no trials of the role critical_batch" if status == NO_STAGE else f"no critical batch (`{status}`)"
    remedy = "sweep a stage of that role, or one of more batch sizes, to know"
    return Check(name, False, f"not measured: {why}", rule, remedy, kind="unmeasured")


def _batch(evidence: Evidence) -> Check:
    rule = "at most the critical batch"
    if evidence.critical_status == NO_STAGE:
        return _unmeasured("batch_below_critical", rule, evidence)
    if not math.isfinite(evidence.critical_batch):
        value = f"{evidence.batch} tokens against an unknown critical batch ({evidence.critical_status})"
        remedy = "add batch sizes to stage `critical_batch`"
    else:
        value = f"{evidence.batch} against {evidence.critical_batch:.0f} tokens"
        remedy = (
            f"this batch needs {100 * evidence.token_overhead:.0f}% more tokens to a loss than a small one: "
            "the price of its parallelism"
        )
    below = evidence.batch <= evidence.critical_batch
    return Check("batch_below_critical", below, value, rule, remedy, kind="warn")
