"""Does the planner, at half the cost of a uniform grid, forecast a larger run as well as the grid does?

A replay has a target, a uniform grid of smaller runs, and a few cheap runs to begin with. The planner, as `froude plan
--next` uses it (`next_runs` on the study's fits), buys in rounds until half of the grid's cost, in FLOPs, is spent; its
forecast of the target is held against the forecast from the whole grid. Replays are of synthetic worlds, where it may
buy any run, of published runs, and of the bank's proxies, where each run on offer can be bought once. Writes
benchmarks/planner.md. What is done is kept in --out, and a second call goes on from there.

    FROUDE_REFERENCE_DATA=… python benchmarks/campaign/planner.py [--worlds 30] [--published 20] [--bank 40]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from _planner_oracles import Replay, bank, flops, published, world
from _planner_tables import tables
from _worlds import KINDS

from froude import schemas
from froude.config import ConfigError
from froude.promote.fits import Fits, fit_trials
from froude.promote.planner.next_runs import next_runs

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))
from _machine import commit, cpu  # noqa: E402

RESULT = HERE / "planner.md"
SHARE = 0.5  # of the grid's cost, that the planner may spend
ROUNDS = (0.25, 0.5, 1.0)  # of what is left of it, in each round
FIRST = 1000  # seeds below were looked at while the planner and this script were made
COLUMNS = ["trial", "params", "tokens", "loss"]
ROW = {"stage": "ladder", "status": "finished", "fingerprint": ""}


def fits_of(runs: pl.DataFrame) -> Fits:
    """Fit a study of these runs (`trial, params, tokens, loss`), as `froude fit` does."""
    empty = pl.DataFrame(pl.from_arrow(schemas.TRIALS.empty_table()))
    rows = runs.select(COLUMNS).with_columns(
        pl.col("params", "tokens").round(),
        run=pl.format("{}-{}", "trial", pl.int_range(pl.len())),
        **{name: pl.lit(value) for name, value in ROW.items()},
    )
    rows = rows.cast({name: empty.schema[name] for name in rows.columns})  # type: ignore[arg-type]
    trials = pl.concat([empty, rows], how="diagonal")
    return fit_trials(trials, stages={"ladder": {"role": "loss_law"}}, target=None)


def state(fits: Fits, runs: pl.DataFrame, replay: Replay) -> dict[str, Any]:
    """What is bought, and the forecast from it."""
    seen = fits.predict(params=replay.target[0], tokens=replay.target[1])
    return {
        "runs": runs.height,
        "sizes": runs["params"].n_unique(),
        "points": runs.select("params", "tokens").n_unique(),
        "cost": float(flops(runs).sum() / flops(replay.grid).sum()),
        "largest": float(flops(runs).max() / flops(replay.grid).max()),
        "loss": seen.loss,
        "low": seen.low,
        "high": seen.high,
        "certified": seen.certified,
    }


def planned(replay: Replay) -> list[dict[str, Any]]:
    """The planner's states: at the start, and after each round."""
    budget = SHARE * float(flops(replay.grid).sum())
    have, offers = replay.start.select(COLUMNS), replay.offers
    fits = fits_of(have)
    states = [state(fits, have, replay)]
    for part in ROUNDS:
        left = part * (budget - float(flops(have).sum()))
        try:
            chosen = next_runs(
                fits,
                params=replay.target[0],
                tokens=replay.target[1],
                unit="flops",
                budget=left,
                offers=offers.drop("loss") if offers is not None else None,
            ).chosen
        except ConfigError:  # nothing on offer is left
            break
        if not chosen.height:
            continue
        if offers is not None:
            bought = offers.filter(pl.col("place").is_in(chosen["place"].to_list()))
            offers = offers.filter(~pl.col("place").is_in(chosen["place"].to_list()))
        else:
            assert replay.loss is not None
            numbers = range(1000 + have.height, 1000 + have.height + chosen.height)
            points = list(zip(chosen["params"], chosen["tokens"], strict=True))
            losses = [replay.loss(*point, number) for point, number in zip(points, numbers, strict=True)]
            bought = chosen.with_columns(
                loss=pl.Series(losses), trial=pl.Series([f"bought-{number}" for number in numbers])
            )
        have = pl.concat([have, bought.select(COLUMNS)])
        fits = fits_of(have)
        states.append(state(fits, have, replay))
    return states


def half(replay: Replay) -> dict[str, Any]:
    """The state with the planner's start and, up to the same cost, runs of the grid by chance."""
    rows = pl.concat([replay.start.select(COLUMNS), replay.grid.select(COLUMNS)]).unique(maintain_order=True)
    cost, budget = flops(rows), SHARE * float(flops(replay.grid).sum())
    taken, spent = list(range(replay.start.height)), float(flops(replay.start).sum())
    later = np.arange(replay.start.height, rows.height)
    for place in np.random.default_rng(0).permutation(later):
        if spent + cost[place] <= budget:
            taken.append(int(place))
            spent += float(cost[place])
    return state(fits_of(rows[taken]), rows[taken], replay)


def replayed(replay: Replay) -> dict[str, Any]:
    """Both forecasts of one replay, in plain types."""
    top = float(flops(replay.grid).max())
    return {
        "name": replay.name,
        "kind": replay.kind,
        "source": replay.source,
        "cluster": replay.cluster,
        "reach": 6 * replay.target[0] * replay.target[1] / top,
        "actual": replay.actual,
        "grid": state(fits_of(replay.grid), replay.grid, replay),
        "planner": planned(replay),
        "half": half(replay),
    }


def replays(given: argparse.Namespace) -> list[Replay]:
    """All that were asked for, kinds interleaved so that a part of them has some of each."""
    first = given.first
    found = [
        [world(seed, kind) for seed in range(first, first + given.worlds) for kind in KINDS],
        list(bank(range(first, first + given.bank))),
    ]
    folder = os.environ.get("FROUDE_REFERENCE_DATA", "")
    if given.published and not folder:
        raise SystemExit(
            "FROUDE_REFERENCE_DATA names no folder: the published runs are not in this repository"
        )
    if given.published:
        found.append(list(published(Path(folder), range(first, first + given.published))))
    order = [((place + 0.5) / len(own), replay) for own in found for place, replay in enumerate(own)]
    return [replay for _, replay in sorted(order, key=lambda each: each[0])]


def run(wanted: list[Replay], kept: Path, seconds: float) -> list[dict[str, Any]]:
    """Replay all that the file `kept` does not hold, until `seconds` have passed (0: all), and return all there are."""
    done = {}
    if kept.exists():
        done = {entry["name"]: entry for entry in map(json.loads, kept.read_text().splitlines())}
    left = [replay for replay in wanted if replay.name not in done]
    print(f"{len(wanted)} replays, {len(wanted) - len(left)} of them done before", flush=True)
    began = time.perf_counter()
    with kept.open("a") as file:
        for number, replay in enumerate(left, 1):
            done[replay.name] = replayed(replay)
            file.write(json.dumps(done[replay.name]) + "\n")
            file.flush()
            spent = time.perf_counter() - began
            if number % 10 == 0 or number == len(left):
                rest = spent / number * (len(left) - number)
                print(f"{number} of {len(left)}, {spent:.0f} s, ~{rest:.0f} s left", flush=True)
            if seconds and spent > seconds:
                print("what follows is left; the same command goes on")
                break
    return [done[replay.name] for replay in wanted if replay.name in done]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--worlds", type=int, default=30, help=f"seeds, each a world of {len(KINDS)} kinds")
    parser.add_argument("--published", type=int, default=20, help="seeds of each published set")
    parser.add_argument("--bank", type=int, default=40, help="seeds of each corpus of the bank")
    parser.add_argument("--first", type=int, default=FIRST, help="the first seed")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="stop after a replay past so long; 0: never"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/campaign/planner"))
    parser.add_argument("--page", type=Path, default=RESULT)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    wanted = replays(given)
    found = run(wanted, given.out / f"replays-{given.first}.jsonl", given.seconds)
    body, good = tables(found, len(wanted), SHARE, FIRST, given.first)
    text = f"""# The planner at half the cost of a uniform grid

{body}

`python benchmarks/campaign/planner.py --worlds {given.worlds} --published {given.published} --bank {given.bank}
--first {given.first}`, {datetime.now(UTC):%Y-%m-%d}, commit {commit("campaign", "bank")}; {cpu()} (shared; no number
here is a time); Python {platform.python_version()}, numpy {np.__version__}.
"""
    given.page.write_text(text)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
