"""One loop to a target of ten times the compute of any proxy, with nothing overridden: does its forecast hold?

Sweeps search_spaces/reach.py, promotes, trains the recipe and verifies the run, all by the commands that a user has, so
it resumes where it was stopped. Where the gate refuses, it says why and ends: do what the reasons say, and call it
again. Writes benchmarks/reach.md.

    python benchmarks/campaign/reach.py [--seed 0] [--out runs/reach]
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hour import HERE, froude, half_width

from froude.promote.recipe import FILE, Recipe, read
from froude.store import Location

sys.path.insert(0, str(HERE))
from _machine import commit, cpu

SPACE = HERE.parent / "search_spaces" / "reach.py"
WORKERS = ("--simulate", "2")
#: What is asked of the loop: (what, test of the recipe and of what `froude train` says of the run).
RULES: dict[str, Callable[[Recipe, dict[str, Any]], bool]] = {
    "no check overridden": lambda recipe, found: not recipe.overrides,
    "certified": lambda recipe, found: recipe.forecast.certified,
    "compute ≥ 10× the largest proxy's": lambda recipe, found: recipe.extrapolation["compute"] >= 10,
    "inside the interval": lambda recipe, found: bool(found["inside"]),
    "error ≤ 2%": lambda recipe, found: abs(found["relative_error"]) <= 0.02,
}


def beside(recipe: Recipe, actual: float) -> list[str]:
    """What others would have said, as rows of a table."""
    forecast = recipe.forecast
    said = {
        "**this forecast**": forecast.loss,
        "E + A/N^.34 + B/D^.28": forecast.comparator,
        "a line in compute": forecast.compute_line,
        "the largest proxy": forecast.naive,
    }
    head = ["| what | nats per token | error |", "|---|---|---|"]
    return head + [f"| {what} | {loss:.4f} | {math.log(loss / actual):+.2%} |" for what, loss in said.items()]


def page(recipe: Recipe, found: dict[str, Any], seconds: dict[str, float], seed: int) -> tuple[str, bool]:
    """The result as Markdown, and whether all rules hold."""
    forecast, actual = recipe.forecast, found["actual"]
    judged = {rule: holds(recipe, actual) for rule, holds in RULES.items()}
    ratios = ", ".join(f"{axis} {ratio:.2f}×" for axis, ratio in recipe.extrapolation.items())
    minutes = ", ".join(f"{what} {spent / 60:.1f}" for what, spent in seconds.items())
    checks = [f"| {check.name} | {check.value} |" for check in recipe.checks if not check.passed]
    text = [
        "# A loop to ten times the compute of its proxies",
        "",
        f"`python benchmarks/campaign/reach.py --seed {seed}` at commit {commit('../search_spaces')}, "
        f"{datetime.now(UTC):%Y-%m-%d}, on {cpu()}, Python {platform.python_version()}. Space and rules were committed "
        "before the first run.",
        "",
        f"Sealed {recipe.sha256[:12]} before step 0: **{forecast.loss:.4f}** nats per token, {forecast.level:.0%} in "
        f"[{forecast.low:.4f}, {forecast.high:.4f}] (± {half_width(forecast.to_dict()):.1%}), {forecast.status}. "
        f"Ended at **{actual['loss']:.4f}**, error {actual['relative_error']:+.2%}. One run's own noise is "
        f"{forecast.noise:.2%} by the law.",
        "",
        f"Target over largest proxy: {ratios}. All proxies cost {forecast.proxies_over_target:.1f}× the target's "
        "FLOPs: so small a target tries the method out, and saves nothing. Overridden: "
        f"{', '.join(recipe.overrides) or 'nothing'}. `froude verify-run` passed. Minutes: {minutes}.",
        "",
        "| asked | holds |",
        "|---|---|",
        *(f"| {rule} | {'yes' if holds else 'NO'} |" for rule, holds in judged.items()),
        "",
        *beside(recipe, actual["loss"]),
        "",
        *(["| check that did not pass, and does not refuse | |", "|---|---|", *checks] if checks else []),
    ]
    return "\n".join(text).rstrip() + "\n", all(judged.values())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/reach"))
    given = parser.parse_args()
    study = given.out.resolve() / f"seed{given.seed}"
    study.parent.mkdir(parents=True, exist_ok=True)
    times = study.parent / f"seconds{given.seed}.json"
    seconds: dict[str, float] = json.loads(times.read_text()) if times.exists() else {}

    def timed(what: str, *words: str) -> Any:
        """What a command says; its seconds are added to those of earlier calls."""
        began = time.monotonic()
        try:
            return froude(*words)
        finally:
            seconds[what] = seconds.get(what, 0.0) + time.monotonic() - began
            times.write_text(json.dumps(seconds))

    timed("sweep", "sweep", str(SPACE), "--out", str(study), "--seed", str(given.seed), *WORKERS)
    if not (study / FILE).exists():
        timed("promote", "promote", str(study))
    found = timed("train", "train", str(study / FILE), *WORKERS)
    timed("verify", "verify-run", str(study / FILE))
    text, good = page(read(Location.parse(study / FILE)), found, seconds, given.seed)
    (HERE / "reach.md").write_text(text)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
