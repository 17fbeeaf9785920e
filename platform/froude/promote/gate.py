"""The promotion gate: rules, the checks that they make, profiles of bounds, overrides with a reason, the refusal."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from froude.config import ConfigError

if TYPE_CHECKING:
    from froude.promote.case import Case
    from froude.promote.planned import Planned

Value = TypeVar("Value")
CLOSE = 0.1  # of a bound: what passes by less is worth a word before anything has run


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


class Finding(NamedTuple):
    """Whether a value passes, and the value in words; a `remedy` of its own where the rule's does not fit it."""

    passed: bool
    value: str
    remedy: str = ""
    kind: str = "refuse"


@dataclass(frozen=True)
class Rule(Generic[Value]):
    """All of one check: what it measures of a study, what it asks of that, and what helps where it does not hold.

    `asks` are words with {bound} in them, or {percent} for a hundred times it. `find` holds a value against a bound;
    `bound` is production's, NaN where there is no number. `foresee` has the value that a plan decides, None where only
    running decides.
    """

    name: str
    asks: str
    remedy: str
    measure: Callable[[Case], Value]
    find: Callable[[Value, float], Finding]
    bound: float = math.nan
    foresee: Callable[[Planned], Value | None] = lambda plan: None

    def asked(self, bound: float) -> str:
        """What must hold, in words, with this bound."""
        return self.asks.format(bound=bound, percent=100 * bound)

    def judge(self, value: Value, bound: float) -> Check:
        """The row of the gate's table for a value."""
        found = self.find(value, bound)
        remedy = found.remedy or self.remedy
        return Check(self.name, found.passed, found.value, self.asked(bound), remedy, kind=found.kind)

    def is_close(self, value: Value, bound: float) -> bool:
        """Whether a value passes by less than a tenth of the bound, whichever side of it is the right one."""
        stricter = (self.find(value, bound * (1 + by)).passed for by in (-CLOSE, CLOSE))
        return self.find(value, bound).passed and not all(stricter)


@dataclass(frozen=True)
class Profile:
    """Bounds of the gate, by a rule's name, where they are not the rules' own."""

    name: str
    bounds: Mapping[str, float] = field(default_factory=dict)

    def bound(self, rule: Rule[Any]) -> float:
        """The bound that a rule judges by."""
        return self.bounds.get(rule.name, rule.bound)


PRODUCTION = Profile("production")
PROFILES = {PRODUCTION.name: PRODUCTION}


class Refused(Exception):
    """The gate's answer no: every check that refuses, with value, bound and remedy.

    `beyond` is what no override helps against: the study lacks a number that the recipe needs.
    """

    exit_code = 3

    def __init__(self, checks: Sequence[Check], beyond: str = "") -> None:
        self.checks = tuple(checks)
        self.beyond = beyond
        self.reasons = tuple(check.line() for check in checks if check.refuses)
        super().__init__(f"promotion refused by {len(self.reasons)} checks: {'; '.join(self.reasons)}")


def override(checks: Sequence[Check], reasons: Mapping[str, str]) -> tuple[Check, ...]:
    """The table with failed checks overridden by name; ConfigError for an unknown name or an empty reason."""
    names = [check.name for check in checks]
    for name, reason in reasons.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(names)}"
            raise ConfigError(f"an override must name a check of the gate, but got `{name}`; {hint}")
        if not reason.strip():
            raise ConfigError(
                f"an override must have a reason, but `{name}` has none; say why the check may fail"
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
