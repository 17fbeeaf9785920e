"""Tables of the campaign whole_recipe: regrets of the promoted recipe, and the search at the target's size."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _machine import commit, cpu

ROOT = 2**0.5
Pairs = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Studied:
    """A study: what it promoted, and losses by run's name on the seed that chooses and the one that scores."""

    name: str
    content: dict[str, Any]
    losses: Pairs


def regret(own: Pairs, names: list[str]) -> tuple[str, float]:
    """Which of the runs is best by the first seed, and what the recipe costs against it on the second, in nats."""
    best = min(["recipe", *names], key=lambda name: own[name][0])
    return best, own["recipe"][1] - own[best][1]


def bottom(own: Pairs, seed: int) -> tuple[float, float, float]:
    """What the recipe's rate costs against the lowest point of a cubic in ln rate, nats, with 90% (both seeds)."""
    factors = {"rate 1/2": 0.5, "rate 1/√2": 1 / ROOT, "recipe": 1.0, "rate √2": ROOT, "rate 2": 2.0}
    x = np.log(np.repeat([factors[name] for name in factors], 2))
    y = np.array([own[name] for name in factors]).ravel()
    design = np.column_stack([np.tile([1.0, 0.0], 5), np.tile([0.0, 1.0], 5), x, x**2, x**3])
    fine = np.linspace(x.min(), x.max(), 201)
    curve = np.column_stack([fine, fine**2, fine**3])
    theta, *_ = np.linalg.lstsq(design, y, rcond=None)
    sd = math.sqrt(float(((y - design @ theta) ** 2).sum()) / (y.size - 5))
    rng = np.random.default_rng(seed)
    drawn = rng.multivariate_normal(theta, sd**2 * np.linalg.inv(design.T @ design), 4000)
    costs = -(drawn[:, 2:] @ curve.T).min(axis=1)
    low, high = np.quantile(costs, [0.05, 0.95])
    return -float((curve @ theta[2:]).min()), float(low), float(high)


def compute(nats: float, content: dict[str, Any]) -> float:
    """Nats as a proportion of compute, by the study's law, params and tokens growing alike."""
    return math.expm1(nats / content["nats_per_efold"])


SETTINGS = ("rate", "batch", "half-life", "warmup", "tail", "decay")


def page(studies: list[Studied], waiting: list[str], about: str) -> str:
    """The campaign's page; `waiting` are studies whose runs have not all ended."""
    head = "| study | batch | recipe, two seeds | set by you | best neighbour | regret, nats | of compute |"
    rows, parts, rates, peers = [head, "|" + "---|" * 7], [], [], []
    totals: dict[str, list[float]] = {name: [] for name in ("all", *SETTINGS)}
    ahead: dict[int, list[float]] = {1: [], 4: [], 16: []}
    costs = []
    for number, study in enumerate(studies):
        content, own = study.content, study.losses
        near = [name for name in own if name.startswith(SETTINGS)]
        best, nats = regret(own, near)
        totals["all"].append(compute(nats, content))
        mine, yours = own["recipe"], own["set by you"]
        rows.append(
            f"| {study.name} | {content['run']['batch']} | {mine[0]:.4f}, {mine[1]:.4f} | {yours[0]:.4f}, "
            f"{yours[1]:.4f} | {best} | {nats:+.4f} | {compute(nats, content):+.1%} |"
        )
        cells = []
        for name in SETTINGS:
            which, cost = regret(own, [each for each in near if each.startswith(name)])
            totals[name].append(compute(cost, content))
            cells.append(f"{cost:+.4f} ({which.removeprefix(name).strip()})")
        parts.append(f"| {study.name} | " + " | ".join(cells) + " |")
        middle, low, high = bottom(own, number)
        rates.append(
            f"| {study.name} | {middle:.4f} [{low:.4f}, {high:.4f}] | {compute(middle, content):.1%} "
            f"[{compute(low, content):.1%}, {compute(high, content):.1%}] |"
        )
        found = []
        for cost in ahead:
            drawn = [f"search {number}" for number in range(cost)]
            winner = min(drawn, key=lambda name: own[name][0])
            ahead[cost].append(own[winner][1] - mine[1])
            found.append(f"{own[winner][1]:.4f} ({own[winner][1] - mine[1]:+.4f})")
        costs.append(content["proxies_over_target"])
        peers.append(f"| {study.name} | {mine[1]:.4f} | {costs[-1]:.1f} | " + " | ".join(found) + " |")
    own_cost = min((cost for cost in ahead if cost >= np.median(costs)), default=16)
    whole = totals["all"]
    lines = [
        "# The promoted recipe against its neighbours and against a search at the target's size",
        "",
        about,
        "",
        "| asked | measured | holds |",
        "|---|---|---|",
        f"| regret of compute, median: ≤ 5% | {np.median(whole):.1%} | {_yes(np.median(whole) <= 0.05)} |",
        f"| of no study: > 15% | {max(whole):.1%} | {_yes(max(whole) <= 0.15)} |",
        f"| search at {own_cost} targets minus the recipe, median: ≥ 0 | {np.median(ahead[own_cost]):+.4f} nats | "
        f"{_yes(np.median(ahead[own_cost]) >= 0)} |",
        "",
        *rows,
        "",
        "One setting at a time, in nats (the best by the first seed; nothing where it is the recipe's):",
        "",
        "| study | " + " | ".join(SETTINGS) + " |",
        "|" + "---|" * (len(SETTINGS) + 1),
        *parts,
        "| median of compute | " + " | ".join(f"{np.median(totals[name]):+.1%}" for name in SETTINGS) + " |",
        "",
        "What the rate costs against the lowest point of a cubic through five rates on both seeds, with 90%:",
        "",
        "| study | nats | of compute |",
        "|---|---|---|",
        *rates,
        "",
        "A random search at the target's size, its best by the first seed scored on the second (minus the recipe's):",
        "",
        "| study | recipe | its proxies cost, targets | search, 1 | 4 | 16 |",
        "|---|---|---|---|---|---|",
        *peers,
        "| median minus the recipe's | | "
        + f"{np.median(costs):.1f} | "
        + " | ".join(f"{np.median(ahead[cost]):+.4f}" for cost in ahead)
        + " |",
        "",
        f"Not finished: {', '.join(waiting)}."
        if waiting
        else "All studies that were begun are in the tables.",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, commit {commit('campaign')}; {cpu()}.",
        "",
    ]
    return "\n".join(lines)


def _yes(holds: Any) -> str:
    return "yes" if holds else "NO"
