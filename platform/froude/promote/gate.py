"""The promotion gate: checks and the profiles of their bounds, overrides by name with a reason, the refusal."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from froude.config import ConfigError


@dataclass(frozen=True)
class Check:
    """One row of the gate's table; `value` and `bound` are texts with units, `reason` is the override's.

    A check of kind "warn" never refuses: its remedy states what the choice costs. One of kind "unmeasured" had nothing
    to look at: it has not passed, and does not refuse.
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
    seeds: int
    drift: float
    bump: float
    leaked: float


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
    seeds=2,  # without a second one nothing tells a law from a seed
    drift=0.35,  # in ln lr: what a rate may be off (lr_half_width)
    bump=0.02,  # nats: seven times what half an octave costs
    leaked=0.05,  # text repeats itself: of 64-byte windows of the King James Bible 1.2% come twice
)
PROFILES = {PRODUCTION.name: PRODUCTION}

#: Every check by name, in the table's order.
NAMES = (
    "trials_failed",
    "largest_finished",
    "one_precision",
    "validation_leak",
    "seeds",
    "unstable_proxies",
    "lr_edge",
    "lr_points",
    "lr_flat",
    "lr_convex",
    "lr_one_minimum",
    "lr_interval",
    "lr_transfers",
    "diverged_near_optimum",
    "batch_edge",
    "extrapolation_params",
    "extrapolation_tokens",
    "extrapolation_compute",
    "extrapolation_batch",
    "sizes_agree",
    "forecast_interval",
    "forecast_certified",
    "batch_below_critical",
)


class Refused(Exception):
    """The gate's answer no: every check that refuses, with value, bound and remedy.

    `beyond` is what no override helps against: the study does not tell a number that the recipe needs.
    """

    exit_code = 3

    def __init__(self, checks: Sequence[Check], beyond: str = "") -> None:
        self.checks = tuple(checks)
        self.beyond = beyond
        self.reasons = tuple(check.line() for check in checks if check.refuses)
        super().__init__(f"promotion refused by {len(self.reasons)} checks: {'; '.join(self.reasons)}")


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
