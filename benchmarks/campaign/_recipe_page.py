"""Tables of the campaign whole_recipe: regrets of the promoted recipe, and the search at the target's size."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _machine import commit
from _recipe_noise import (
    Bottom,
    Losses,
    Regret,
    Verdict,
    bottom,
    compute,
    diverged,
    near,
    regret,
    searched,
    verdict,
)

SETTINGS = ("rate", "batch", "half-life", "warmup", "tail", "decay")
COSTS = (1, 4, 16)  # of the search, in targets


@dataclass(frozen=True)
class Studied:
    """A study: what it promoted, its losses, and the sd of a run's loss by its seed, nats."""

    name: str
    content: dict[str, Any]
    losses: Losses
    noise: float

    @property
    def efold(self) -> float:
        """What an e-fold of compute is worth, nats."""
        return float(self.content["nats_per_efold"])

    def regret(self, *settings: str) -> Regret:
        return regret(self.losses, near(self.losses, *settings), self.noise)

    def searched(self, cost: int) -> Regret:
        return searched(self.losses, cost, self.noise)

    def compute(self, nats: float) -> float:
        return float(compute(nats, self.efold))


def verdicts(studies: list[Studied]) -> list[Verdict]:
    """What is asked of the recipe, by the studies that have all of their runs."""
    efolds = np.array([study.efold for study in studies])
    whole = [study.regret(*SETTINGS) for study in studies]
    own_cost = np.median([study.content["proxies_over_target"] for study in studies])
    cost = min((cost for cost in COSTS if cost >= own_cost), default=COSTS[-1])
    return [
        *(
            verdict(
                f"regret of compute, {name}: ≤ {most:.0%}",
                whole,
                lambda nats, over=over: over(compute(nats, efolds), axis=-1),  # type: ignore[misc]
                lambda value, most=most: value <= most,  # type: ignore[misc]
                "{:+.1%}".format,
            )
            for name, over, most in (("median of studies", np.median, 0.05), ("worst study", np.max, 0.15))
        ),
        verdict(
            f"search at {cost} targets minus the recipe, nats, median: ≥ 0",
            [study.searched(cost) for study in studies],
            lambda nats: -np.median(nats, axis=-1),
            lambda value: value >= 0,
            "{:+.4f}".format,
        ),
    ]


def page(
    studies: list[Studied], judged: list[Verdict], missing: str, about: str, rules: str, ran_on: Iterable[str]
) -> str:
    """The campaign's page; `missing` are the studies that are not in it and what they lack, `ran_on` devices.

    `rules` says under which rules the runs were trained.
    """
    open_ = f"not known: of {len(studies)} studies only" if missing else ""
    noise = studies[0].noise
    lines = [
        "# The promoted recipe against its neighbours and against a search at the target's size",
        "",
        about,
        "",
        "| asked | measured | another seed, 90% | equal runs would give, 90%; miss | holds |",
        "|---|---|---|---|---|",
        *(each.row(open_) for each in judged),
        "",
        "Another seed: what other seeds for scoring would make of the same choices, by the noise of "
        f"{noise:.4f} nats that a seed gives to a run; not what other studies would, nor what is not known of the "
        "worth of compute. Equal runs: if all runs of a study had the same loss but for that noise, the regret of the "
        "one that looks best would lie there, and miss what is asked so often.",
        "",
        *_whole(studies),
        "",
        "One setting at a time, in nats, on the seeds for scoring that both have (the best by the seed that chooses; "
        "nothing where it is the recipe's):",
        "",
        *_settings(studies),
        "",
        "What the rate costs against the lowest point of a cubic through five rates on two seeds, with 90% (where it "
        "costs nothing the estimate is above 0, and the interval's lower end below it):",
        "",
        *_rates(studies),
        "",
        "A random search at the target's size, its best by the seed that chooses scored on another (minus the "
        "recipe's), on average over all subsets of that many draws:",
        "",
        *_search(studies),
        "",
        *(
            f"Diverged, {study.name}: {', '.join(bad)}.\n"
            for study in studies
            if (bad := diverged(study.losses))
        ),
        f"Missing: {missing}." if missing else "All studies are in the tables.",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, page written at commit {commit('campaign')}; runs on {' and '.join(ran_on)}. "
        + rules,
        "",
    ]
    return "\n".join(lines)


def _whole(studies: list[Studied]) -> list[str]:
    """A row a study: what it promoted, at which commit, and what it costs against the best neighbour."""
    head = (
        "| study | promoted at | batch | recipe: chosen by, scored by | set by you | best neighbour | regret, nats "
        "| of compute |"
    )
    rows = [head, "|" + "---|" * 8]
    for study in studies:
        mine, yours = (_each(study.losses[name]) for name in ("recipe", "set by you"))
        found = study.regret(*SETTINGS)
        rows.append(
            f"| {study.name} | {study.content['commit']} | {study.content['run']['batch']} | {mine} | {yours} | "
            f"{found.best} | {found.nats:+.4f} | {study.compute(found.nats):+.1%} |"
        )
    return rows


def _each(losses: Iterable[float]) -> str:
    """Losses of a run on the seeds that it was trained on."""
    return ", ".join(f"{loss:.4f}" for loss in losses if not math.isnan(loss))


def _settings(studies: list[Studied]) -> list[str]:
    rows = ["| study | " + " | ".join(SETTINGS) + " |", "|" + "---|" * (len(SETTINGS) + 1)]
    for study in studies:
        found = {name: study.regret(name) for name in SETTINGS}
        cells = (f"{each.nats:+.4f} ({each.best.removeprefix(name).strip()})" for name, each in found.items())
        rows.append(f"| {study.name} | " + " | ".join(cells) + " |")
    medians = (np.median([study.compute(study.regret(name).nats) for study in studies]) for name in SETTINGS)
    return [*rows, "| median of compute | " + " | ".join(f"{each:+.1%}" for each in medians) + " |"]


def _rates(studies: list[Studied]) -> list[str]:
    rows = ["| study | nats | of compute |", "|---|---|---|"]
    found = ((study, bottom(study.losses, number)) for number, study in enumerate(studies))
    return [*rows, *(f"| {study.name} | {bottom_words(each, study.efold)} |" for study, each in found)]


def bottom_words(found: Bottom | None, efold: float | None) -> str:
    """Two cells of a table: nats and compute; `efold` is None where no law says what an e-fold is worth."""
    if found is None:
        return "too few rates did not diverge | –"
    nats = f"{found.cost:.4f} [{found.low:.4f}, {found.high:.4f}]"
    if efold is None:
        return f"{nats} | no loss law yet"
    share, low, high = (float(compute(each, efold)) for each in found[:3])
    return f"{nats} | {share:.1%} [{low:.1%}, {high:.1%}]"


def _search(studies: list[Studied]) -> list[str]:
    rows = [
        "| study | recipe | its proxies cost, targets | search, "
        + " | ".join(f"{cost}" for cost in COSTS)
        + " |",
        "|" + "---|" * (3 + len(COSTS)),
    ]
    for study in studies:
        found = [study.searched(cost) for cost in COSTS]
        mine, cost = study.losses["recipe"][1], study.content["proxies_over_target"]
        cells = (
            f"{mine - each.nats:.4f} ({-each.nats:+.4f})" if each.nats < math.inf else "–" for each in found
        )
        rows.append(f"| {study.name} | {mine:.4f} | {cost:.1f} | " + " | ".join(cells) + " |")
    ahead = (-np.median([study.searched(cost).nats for study in studies]) for cost in COSTS)
    paid = np.median([study.content["proxies_over_target"] for study in studies])
    medians = " | ".join(f"{each:+.4f}" for each in ahead)
    return [*rows, f"| median minus the recipe's | | {paid:.1f} | {medians} |"]
