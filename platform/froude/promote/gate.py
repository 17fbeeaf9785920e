"""The promotion gate: named checks, their bounds from a profile, overrides by name with a reason."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from froude.config import ConfigError


@dataclass(frozen=True)
class Check:
    """One row of the gate's table; `value` and `bound` are texts with units, `reason` is the override's.

    A check of kind "warn" never refuses: its remedy states what the choice costs.
    """

    name: str
    passed: bool
    value: str
    bound: str
    remedy: str
    kind: str = "refuse"
    overridden: bool = False
    reason: str = ""

    @property
    def refuses(self) -> bool:
        return self.kind == "refuse" and not self.passed and not self.overridden

    def line(self) -> str:
        """The rule, the value and the remedy in one line."""
        return f"{self.name}: must be {self.bound}, but is {self.value}; {self.remedy}"


@dataclass(frozen=True)
class Profile:
    """Bounds of the gate; ratios are target over largest proxy, half-widths as each check says."""

    name: str
    lr_rates: int
    lr_half_width: float
    params_ratio: float
    tokens_ratio: float
    compute_ratio: float
    batch_ratio: float
    forecast_half_width: float
    diverged_distance: float


PRODUCTION = Profile(
    name="production",
    lr_rates=7,  # a cubic through a U-curve needs six, and one may diverge
    lr_half_width=0.35,  # in ln lr: half an octave, which costs about 0.003 nats at a curvature of 0.046
    params_ratio=30.0,
    tokens_ratio=30.0,
    compute_ratio=100.0,
    batch_ratio=4.0,  # beyond it the square-root rule between batch and rate is not to be relied on
    forecast_half_width=0.05,
    diverged_distance=2.0,
)
PROFILES = {PRODUCTION.name: PRODUCTION}

#: Every check by name, in the table's order.
NAMES = (
    "trials_failed",
    "lr_edge",
    "lr_points",
    "lr_flat",
    "lr_convex",
    "lr_interval",
    "diverged_near_optimum",
    "extrapolation_params",
    "extrapolation_tokens",
    "extrapolation_compute",
    "extrapolation_batch",
    "forecast_interval",
    "forecast_certified",
    "batch_below_critical",
)


class Refused(Exception):
    """The gate's answer no: every check that refuses, with value, bound and remedy."""

    exit_code = 3

    def __init__(self, checks: Sequence[Check]) -> None:
        self.checks = tuple(checks)
        self.reasons = tuple(check.line() for check in checks if check.refuses)
        super().__init__(f"promotion refused by {len(self.reasons)} checks: {'; '.join(self.reasons)}")


@dataclass(frozen=True)
class Evidence:
    """What the gate looks at; losses in nats per token, ratios target over largest proxy.

    `lr_curves` maps each size to (number of rates, status of its U-curve); `lr_half_width` is that of the
    pooled optimum's 95% interval in ln lr; `diverged_ratio` is the smallest ratio (>= 1) between the promoted
    rate and one that diverged in the same parametrization, inf if none did; `token_overhead` is
    E / E_min - 1 at the promoted batch, NaN if there is no critical batch.
    """

    failed: int
    lr_curves: Mapping[int, tuple[int, str]]
    lr_status: str
    lr_half_width: float
    diverged_ratio: float
    ratios: Mapping[str, float]
    forecast_half_width: float
    forecast_certified: bool
    forecast_reasons: Sequence[str]
    batch: int
    critical_batch: float
    critical_status: str
    token_overhead: float


def table(evidence: Evidence, profile: Profile = PRODUCTION) -> tuple[Check, ...]:
    """Every check of the profile on this evidence, none overridden yet."""
    statuses = {size: status for size, (_, status) in evidence.lr_curves.items()}
    rates = min((n for n, _ in evidence.lr_curves.values()), default=0)

    def having(status: str) -> str:
        sizes = [str(size) for size, its in statuses.items() if its == status]
        joint = ["joint fit"] if evidence.lr_status == status else []
        return ", ".join([*(f"width {size}" for size in sizes), *joint])

    def curve(name: str, status: str, rule: str, remedy: str) -> Check:
        where = having(status)
        return Check(name, not where, f"`{status}` at {where}" if where else "true of all", rule, remedy)

    checks = [
        Check(
            "trials_failed",
            evidence.failed == 0,
            str(evidence.failed),
            "0 failed trials",
            "run the sweep again: finished trials stay",
        ),
        curve("lr_edge", "edge", "an optimum inside the grid", "extend the rates of stage `lr_transfer`"),
        Check(
            "lr_points",
            rates >= profile.lr_rates,
            f"{rates} rates at the size that has fewest",
            f">= {profile.lr_rates} rates a size",
            "add rates to stage `lr_transfer`",
        ),
        curve("lr_flat", "flat", "a loss that depends on the rate", "widen the grid of rates or add seeds"),
        curve(
            "lr_convex",
            "not_convex",
            "a convex curve of the loss over ln rate",
            "add seeds, or rates nearer by",
        ),
        _at_most(
            "lr_interval",
            evidence.lr_half_width,
            profile.lr_half_width,
            "in ln rate, half-width",
            "add rates",
        ),
        Check(
            "diverged_near_optimum",
            evidence.diverged_ratio > profile.diverged_distance,
            _ratio(evidence.diverged_ratio),
            f"> {_ratio(profile.diverged_distance)} between the promoted rate and one that diverged",
            "clip harder, lengthen the warmup, or promote a lower rate",
        ),
    ]
    for axis in ("params", "tokens", "compute", "batch"):
        bound = float(getattr(profile, f"{axis}_ratio"))
        value = evidence.ratios[axis]
        within = 1 / bound <= value <= bound if axis == "batch" else value <= bound
        rule = f"<= {_ratio(bound)} the largest proxy's {axis}"
        checks.append(
            Check(
                f"extrapolation_{axis}", within, _ratio(value), rule, "add larger proxies to stage `loss_law`"
            )
        )
    width = evidence.forecast_half_width
    checks += [
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
            "add sizes and horizons to stage `loss_law`",
        ),
        _batch(evidence),
    ]
    assert tuple(check.name for check in checks) == NAMES
    return tuple(checks)


def override(checks: Sequence[Check], reasons: Mapping[str, str]) -> tuple[Check, ...]:
    """The table with failed checks overridden by name; ConfigError for an unknown name or an empty reason."""
    for name, reason in reasons.items():
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(NAMES)}"
            raise ConfigError(f"an override must name a check of the gate, but got `{name}`; {hint}")
        if not reason.strip():
            raise ConfigError(
                f"an override must have a reason, but `{name}` has none; say why it may be passed over"
            )
    return tuple(
        replace(check, overridden=True, reason=reasons[check.name].strip())
        if check.name in reasons and not check.passed and check.kind == "refuse"
        else check
        for check in checks
    )


def profile_named(name: str) -> Profile:
    """The profile of this name; ConfigError if there is none."""
    if name not in PROFILES:
        raise ConfigError(f"a profile must be one of {', '.join(PROFILES)}, but got {name!r}; name one")
    return PROFILES[name]


def _at_most(name: str, value: float, bound: float, what: str, remedy: str) -> Check:
    return Check(name, value <= bound, f"{value:.2f} {what}", f"<= {bound:g} {what}", remedy)


def _ratio(value: float) -> str:
    return f"{value:.3g}×" if math.isfinite(value) else "no such trial" if value > 0 else "unknown"


def _batch(evidence: Evidence) -> Check:
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
    return Check("batch_below_critical", below, value, "at most the critical batch", remedy, kind="warn")
