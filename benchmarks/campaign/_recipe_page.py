"""Tables of the campaign whole_recipe: regrets of the promoted recipe, and the search at the target's size."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _machine import commit
from _recipe_noise import Bottom, Pairs, Regret, Verdict, bottom, compute, diverged, noise, regret, verdict

SETTINGS = ("rate", "batch", "half-life", "warmup", "tail", "decay")
COSTS = (1, 4, 16)  # of the search, in targets


@dataclass(frozen=True)
class Studied:
    """A study: what it promoted, and losses by run's name on the seed that chooses and the one that scores."""

    name: str
    content: dict[str, Any]
    losses: Pairs

    @cached_property
    def noise(self) -> float:
        """Sd of the recipe's and its neighbours' losses by their seed, nats."""
        return noise({name: self.losses[name] for name in ("recipe", *self.near(*SETTINGS))})

    @property
    def efold(self) -> float:
        """What an e-fold of compute is worth, nats."""
        return float(self.content["nats_per_efold"])

    def near(self, *settings: str) -> list[str]:
        """The neighbours that differ in one of these settings."""
        return [name for name in self.losses if name.startswith(settings)]

    def regret(self, *settings: str) -> Regret:
        return regret(self.losses, self.near(*settings), self.noise)

    def searched(self, cost: int) -> Regret:
        """What the recipe costs against the best of so many random settings."""
        return regret(self.losses, [f"search {i}" for i in range(cost)], self.noise, among=False)

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
    studies: list[Studied], judged: list[Verdict], missing: str, about: str, ran_on: Iterable[str]
) -> str:
    """The campaign's page; `missing` are the studies that are not in it and what they lack, `ran_on` devices."""
    open_ = f"not known: of {len(studies)} studies only" if missing else ""
    lines = [
        "# The promoted recipe against its neighbours and against a search at the target's size",
        "",
        about,
        "",
        "| asked | measured | another seed, 90% | equal runs would give, 90%; miss | holds |",
        "|---|---|---|---|---|",
        *(each.row(open_) for each in judged),
        "",
        "Another seed: what another seed for scoring would make of the same choices, by the noise of each study below; "
        "not what other studies would. Equal runs: if all runs of a study had the same loss but for that noise, the "
        "regret of the one that looks best would lie there, and miss what is asked so often.",
        "",
        *_whole(studies),
        "",
        "One setting at a time, in nats (the best by the first seed; nothing where it is the recipe's):",
        "",
        *_settings(studies),
        "",
        "What the rate costs against the lowest point of a cubic through five rates on both seeds, with 90%:",
        "",
        *_rates(studies),
        "",
        "A random search at the target's size, its best by the first seed scored on the second (minus the recipe's):",
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
        f"{datetime.now(UTC):%Y-%m-%d}, page written at commit {commit('campaign')}; runs on {' and '.join(ran_on)}.",
        "",
    ]
    return "\n".join(lines)


def _whole(studies: list[Studied]) -> list[str]:
    """A row a study: what it promoted, at which commit, and what it costs against the best neighbour."""
    head = (
        "| study | promoted at | batch | recipe, two seeds | set by you | noise | best neighbour | regret, nats "
        "| of compute |"
    )
    rows = [head, "|" + "---|" * 9]
    for study in studies:
        mine, yours, found = study.losses["recipe"], study.losses["set by you"], study.regret(*SETTINGS)
        rows.append(
            f"| {study.name} | {study.content['commit']} | {study.content['run']['batch']} | {mine[0]:.4f}, "
            f"{mine[1]:.4f} | {yours[0]:.4f}, {yours[1]:.4f} | {study.noise:.4f} | {found.best} | {found.nats:+.4f} | "
            f"{study.compute(found.nats):+.1%} |"
        )
    return rows


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
        cells = (f"{study.losses[each.best][1]:.4f} ({-each.nats:+.4f})" for each in found)
        cost = study.content["proxies_over_target"]
        rows.append(
            f"| {study.name} | {study.losses['recipe'][1]:.4f} | {cost:.1f} | " + " | ".join(cells) + " |"
        )
    ahead = (-np.median([study.searched(cost).nats for study in studies]) for cost in COSTS)
    paid = np.median([study.content["proxies_over_target"] for study in studies])
    medians = " | ".join(f"{each:+.4f}" for each in ahead)
    return [*rows, f"| median minus the recipe's | | {paid:.1f} | {medians} |"]
