"""What a search space's plan says already about its promotion: each check of the gate, what it lacks, what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from froude.laws.loss.reach import RATIO
from froude.promote import checks
from froude.promote.gate import Check, Profile
from froude.promote.planned import Planned
from froude.space import Space
from froude.train.size import is_sized

#: Without a stage of each of these roles there is nothing to promote.
NEEDED = ("search", "lr_transfer", "loss_law")


@dataclass(frozen=True)
class Foretold:
    """Reach of the target over the largest proxy of the loss law, by axis ({} without that stage); what fails.

    A failed check of kind "refuse" is one by which promote would refuse the study as it is planned. `close` are checks
    that pass by less than a tenth of their bounds, `unknown` the names of those that only running can decide.
    """

    reach: Mapping[str, float]
    warnings: tuple[Check, ...]
    close: tuple[Check, ...]
    unknown: tuple[str, ...]

    def lines(self) -> list[str]:
        """Each check that fails or is close in a line, and one for the others."""
        return [
            *(
                f"{'promote would refuse' if c.refuses else 'worth knowing'}: {c.line()}"
                for c in self.warnings
            ),
            *(f"close: {c.name}: must be {c.bound}, and is {c.value}; {c.remedy}" for c in self.close),
            f"unknown until they have run: {', '.join(self.unknown)}",
        ]


def foretell(space: Space, profile: Profile, *, proxies: float, target: float) -> Foretold:
    """Look at the planned runs; `proxies` and `target` are FLOPs. The runs' code has been trusted."""
    plan = Planned(space)
    if not all(is_sized(run) for run in (*plan.runs, plan.target)):
        missing = [check for check in _roles(space) if not check.passed]
        return Foretold({}, tuple(missing), (), tuple(rule.name for rule in checks.RULES))
    failed, close, unknown = [], [], []
    for rule in checks.rules(space.target):
        value, bound = rule.foresee(plan), profile.bound(rule)
        if value is None:
            unknown.append(rule.name)
        elif not (check := rule.judge(value, bound)).passed:
            failed.append(check)
        elif rule.is_close(value, bound):
            close.append(check)
    more = [*_roles(space), *_ratio(plan.ladder), _cost(proxies / target)]
    failed += [check for check in more if not check.passed]
    return Foretold(plan.reach, tuple(failed), tuple(close), tuple(unknown))


def _roles(space: Space) -> list[Check]:
    have = {stage.role for stage in space.stages}
    missing = [role for role in NEEDED if role not in have]
    return [
        Check(
            "roles",
            not missing,
            f"without {', '.join(missing)}" if missing else "all",
            f"a study with stages of the roles {', '.join(NEEDED)}",
            "add them here, or sweep another space into the same study",
        )
    ]


def _ratio(law: pl.DataFrame) -> list[Check]:
    if not law.height:
        return []
    ratio = law["tokens"] / law["params"]
    low, high = float(ratio.min()), float(ratio.max())  # type: ignore[arg-type]
    return [
        Check(
            "tokens_per_parameter",
            RATIO[0] <= low and high <= RATIO[1],
            f"{low:.3g} to {high:.3g} in stage `loss_law`",
            f"{RATIO[0]:g} to {RATIO[1]:g}, where the law's form is tested",
            "move its sizes or horizons into that range",
            kind="warn",
        )
    ]


def _cost(ratio: float) -> Check:
    return Check(
        "proxies_cost",
        ratio <= 1,
        f"{ratio:.2g}×",
        "at most 1× the target's FLOPs for all proxies",
        "such a small target tries the method out, and saves nothing",
        kind="warn",
    )
