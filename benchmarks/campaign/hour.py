"""A study of an hour from nothing to a scored forecast, its proxies chosen by the planner: is it as good as it says?

Sweeps search_spaces/hour.py, then asks `froude plan --next` for a set of runs and sweeps that, until the forecast of
the large run is certified, as narrow as asked, and the gate has no more to say about the law; promotes; trains. All by
the commands that a user has, so it resumes where it was stopped. Writes benchmarks/hour.md.

    python benchmarks/campaign/hour.py [--seed 0] [--out runs/hour] [--half-width 0.014] [--budget 2e13]
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from froude.promote.recipe import FILE, read
from froude.store import Location

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))
from _machine import commit, cpu  # noqa: E402

SPACE = HERE.parent / "search_spaces" / "hour.py"
ROUNDS = 12
#: Name of what is done, and the work: what it returns, its seconds noted.
Timed = Callable[[str, Callable[[], Any]], Any]
#: What the gate may refuse here, and why it is promoted all the same; both are in the recipe.
OVERRIDES = {
    "seeds": "the planner spreads runs over sizes, and repeats those that are worth it",
    "lr_transfers": "the law is fitted to proxies of every width at one rate, near the promoted one",
}
#: What the large run's forecast must be: (name, test of what was found).
CHECKS = {
    "certified": lambda found: found["forecast"]["certified"],
    "half-width ≤ 1.5%": lambda found: half_width(found["forecast"]) <= 0.015,
    "error ≤ 1%": lambda found: abs(found["actual"]["relative_error"]) <= 0.01,
    "inside": lambda found: found["actual"]["inside"],
    "better than naive": lambda found: found["actual"]["better_than_naive"],
    "≤ 90 minutes": lambda found: sum(found["seconds"].values()) <= 90 * 60,
}


def froude(*words: str) -> Any:
    """What a command says as JSON."""
    command = [str(Path(sys.executable).with_name("froude")), *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {done.returncode}: {done.stdout[-2000:]}")
    return json.loads(done.stdout)


def half_width(forecast: dict[str, Any]) -> float:
    """Of the interval, relative to the forecast."""
    return float((forecast["high"] - forecast["low"]) / 2 / forecast["loss"])


def planned(place: Path, study: Path, budget: float, target: float, timed: Timed) -> list[dict[str, Any]]:
    """Plan and sweep until the forecast is what is asked; each round's plan, the last with nothing left to run.

    Plans are kept in `place`, since a study's directory holds nothing else.
    """
    rounds: list[dict[str, Any]] = []
    for number in range(1, ROUNDS + 1):
        file, kept = place / f"next{number}.py", place / f"next{number}.json"
        if kept.exists():
            plan = json.loads(kept.read_text())
        else:
            to = ("--per", "flops", "--budget", f"{budget:g}", "--write", str(file))
            plan = timed("planned runs", lambda to=to: froude("plan", "--next", str(study), *to))
            now = plan["forecast"]
            if now["certified"] and now["half_width"] <= target and not plan["failing"]:
                plan["chosen"] = []
            kept.write_text(json.dumps(plan))
        rounds.append(plan)
        print(f"round {number}: {said(plan)}; next {len(plan['chosen'])} runs", flush=True)
        if not plan["chosen"]:
            break
        sweep = ("sweep", str(file), "--out", str(study), "--simulate", "2")
        timed("planned runs", lambda sweep=sweep: froude(*sweep))
    return rounds


def said(plan: dict[str, Any]) -> str:
    """A plan's forecast in a line."""
    now, failing = plan["forecast"], ", ".join(plan["failing"])
    return (
        f"{now['loss']:.4f} ± {now['half_width']:.2%}, {'certified' if now['certified'] else 'not certified'}"
        + (f", fails {failing}" if failing else "")
    )


def page(found: dict[str, Any], seed: int) -> list[str]:
    """The result as Markdown."""
    forecast, actual = found["forecast"], found["actual"]
    target = found["rounds"][0]["target"]
    lines = [
        "# A study of an hour, its proxies chosen by the planner",
        "",
        f"`python benchmarks/campaign/hour.py --seed {seed}` at commit {found['commit']}, "
        f"{datetime.now(UTC):%Y-%m-%d}, on {cpu()} (shared, so times vary), Python {platform.python_version()}. "
        f"The large run has {target['params']:,.0f} parameters and {target['tokens']:,.0f} tokens.",
        "",
        "| round | forecast before it | runs added: width × steps (seed) |",
        "|---|---|---|",
    ]
    for number, plan in enumerate(found["rounds"], 1):
        runs = ", ".join(
            f"{run['width']} × {run['tokens'] / found['batch']:.0f} ({run['seed']})" for run in plan["chosen"]
        )
        lines.append(f"| {number} | {said(plan)} | {runs or 'none: as asked'} |")
    lines += [
        "",
        f"Forecast, sealed {forecast['sha256'][:12]} before step 0: **{forecast['loss']:.4f}** nats per token, "
        f"{forecast['level']:.0%} in [{forecast['low']:.4f}, {forecast['high']:.4f}] (± {half_width(forecast):.2%}), "
        f"{'certified' if forecast['certified'] else 'not certified'}; naive {forecast['naive']:.4f}. Overridden: "
        f"{', '.join(found['overridden']) or 'nothing'}.",
        f"Actual: **{actual['loss']:.4f}**, error {actual['relative_error']:+.2%}, "
        f"{'inside' if actual['inside'] else 'OUTSIDE'}.",
        f"Extrapolation: {', '.join(f'{name} {ratio:.2f}×' for name, ratio in found['extrapolation'].items())}. "
        f"Minutes: {', '.join(f'{name} {seconds / 60:.1f}' for name, seconds in found['seconds'].items())}.",
        "",
        "| check | holds |",
        "|---|---|",
    ]
    return lines + [f"| {name} | {'yes' if test(found) else 'NO'} |" for name, test in CHECKS.items()] + [""]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/hour"))
    parser.add_argument("--half-width", type=float, default=0.014, help="at which to stop, a proportion")
    parser.add_argument("--budget", type=float, default=2e13, help="FLOPs of a round")
    arguments = parser.parse_args()
    place: Path = arguments.out.resolve()
    place.mkdir(parents=True, exist_ok=True)
    study, times = place / "study", place / "seconds.json"
    seconds: dict[str, float] = json.loads(times.read_text()) if times.exists() else {}

    def timed(what: str, work: Callable[[], Any]) -> Any:
        """What the work returns; its seconds are added to those of earlier calls."""
        began = time.monotonic()
        try:
            return work()
        finally:
            seconds[what] = seconds.get(what, 0.0) + time.monotonic() - began
            times.write_text(json.dumps(seconds))

    simulated = ("--simulate", "2")
    timed(
        "first runs",
        lambda: froude("sweep", str(SPACE), "--out", str(study), "--seed", str(arguments.seed), *simulated),
    )
    rounds = planned(place, study, arguments.budget, arguments.half_width, timed)
    recipe = study / FILE
    if not recipe.exists():
        said = [word for check, why in OVERRIDES.items() for word in ("--override", check, "--reason", why)]
        timed("promotion", lambda: froude("promote", str(study), *said))
    trained = timed("large run", lambda: froude("train", str(recipe), *simulated))
    sealed = read(Location.parse(recipe))
    found = {
        "rounds": rounds,
        "forecast": sealed.forecast.to_dict() | {"sha256": sealed.sha256},
        "overridden": list(sealed.overrides),
        "extrapolation": dict(sealed.extrapolation),
        "actual": trained["actual"],
        "batch": sealed.run.batch,
        "seconds": seconds,
        "commit": commit(),
    }
    lines = page(found, arguments.seed)
    print("\n".join(lines))
    (HERE / "hour.md").write_text("\n".join(lines))
    return 0 if all(test(found) for test in CHECKS.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
