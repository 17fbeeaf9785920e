"""Trials an hour: froude's sweep against stock Ray Tune driving a TorchTrainer per trial, on the same proxy.

The proxy is stage lr_transfer's smallest (width 32, 170 steps). Both sides train it with the same code, two trials at a
time, on one cluster of two nodes that is started before; the sides alternate. Process starts count, for both.
Writes benchmarks/sweep_overhead.md.

    python benchmarks/sweep_overhead.py [--rounds 2] [--ours 20] [--stock 4] [--seed 0]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ray
import torch
from _machine import commit, hardware
from ray import tune

from froude.config import Run
from froude.launch.cluster import SimulatedCluster, simulated
from froude.launch.progress import SweepProgress
from froude.launch.sweep import sweep
from froude.space import Grid, Space, Trial
from froude.store import Location
from froude.study import Study

HERE = Path(__file__).resolve().parent
RESULT = HERE / "sweep_overhead.md"
AT_ONCE = 2
GOAL = 5.0


def proxies(count: int, seed: int) -> list[Run]:
    """Runs of the quickstart's smallest proxy, each with a seed of its own."""
    spec = importlib.util.spec_from_file_location(
        "quickstart", HERE.parent / "search_spaces" / "quickstart.py"
    )
    assert spec is not None
    assert spec.loader is not None
    quickstart = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(quickstart)
    return [quickstart.proxy(seed + i, 32, name=f"proxy-{i:02d}") for i in range(count)]


def run_ours(runs: Sequence[Run], cluster: SimulatedCluster) -> tuple[list[float], list[float]]:
    """Seconds from the start to the end of each trial, and each trial's final loss."""
    ends: list[float] = []
    began = time.perf_counter()

    def listen(progress: SweepProgress) -> None:
        ends.extend([time.perf_counter() - began] * (progress.done - len(ends)))

    trials = [Trial(run.name, (run,)) for run in runs]
    space = Space(
        "overhead", runs[0].seed, (Grid("loss_law", lambda rows: trials, role="loss_law"),), runs[0]
    )
    with tempfile.TemporaryDirectory() as folder:
        study = Location.parse(folder) / "study"
        sweep(space, study, cluster, progress=listen, concurrency=AT_ONCE)
        losses = Study(study).trials().sort("run").collect()["loss"].to_list()
    return ends, losses


def train_stock(config: dict[str, Any]) -> None:
    """One worker of a stock trial."""
    from ray import train

    from froude.train.loop import run_trial

    torch.set_num_threads(1)
    run = Run.from_dict(config["run"])
    (row,) = run_trial([run], trial=run.name).trials
    train.report({"loss": row["loss"]})


def stock_trial(config: dict[str, Any]) -> None:
    """A Tune trial as Ray documents it: a function that fits a TorchTrainer and passes its metrics on."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    TorchTrainer(
        train_stock,
        train_loop_config=config,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(
            name=config["run"]["name"], storage_path=config["folder"], callbacks=[TuneReportCallback()]
        ),
    ).fit()


def run_stock(runs: Sequence[Run]) -> tuple[list[float], list[float]]:
    """The same of stock Ray Tune; its trial functions sit on the head, where they take no worker's CPU."""
    ends: list[float] = []
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # with verbose=0: quiet
    began = time.perf_counter()

    class Clock(tune.Callback):
        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            ends.append(time.perf_counter() - began)

        def __getstate__(self) -> dict[str, Any]:
            return {}

    with tempfile.TemporaryDirectory() as folder:
        space = {"run": tune.grid_search([run.to_dict() for run in runs]), "folder": folder}
        on_head = tune.PlacementGroupFactory([{"node:__internal_head__": 0.01}])
        results = tune.Tuner(
            tune.with_resources(stock_trial, on_head),
            param_space=space,
            tune_config=tune.TuneConfig(max_concurrent_trials=AT_ONCE),
            run_config=tune.RunConfig(name="stock", storage_path=folder, verbose=0, callbacks=[Clock()]),
        ).fit()
    if results.errors:
        raise RuntimeError(f"stock trials failed: {results.errors[0]}")
    rows = sorted((result.config["run"]["name"], result.metrics["loss"]) for result in results)
    return ends, [loss for _, loss in rows]


def rate(ends: Sequence[float]) -> float:
    """Trials an hour, from the start of the first to the end of the last."""
    return 3600 * len(ends) / ends[-1]


def interval(
    ours: Sequence[Sequence[float]], stock: Sequence[Sequence[float]], seed: int
) -> tuple[float, float]:
    """95% interval of the ratio of rates: a bootstrap over the times between ends of trials."""

    def gaps(rounds: Sequence[Sequence[float]]) -> list[float]:
        return [b - a for ends in rounds for a, b in zip([0.0, *ends], ends, strict=False)]

    chance, a, b = random.Random(seed), gaps(ours), gaps(stock)
    ratios = []
    for _ in range(4000):
        mean_ours = statistics.fmean(chance.choices(a, k=len(a)))
        ratios.append(statistics.fmean(chance.choices(b, k=len(b))) / mean_ours)
    cuts = statistics.quantiles(ratios, n=40)
    return cuts[0], cuts[-1]


def write(ours: list[list[float]], stock: list[list[float]], machine: str, seed: int) -> str:
    """The result as Markdown."""
    pairs = list(zip(ours, stock, strict=True))
    ratios = [rate(a) / rate(b) for a, b in pairs]
    counts = [sum(map(len, side)) for side in (ours, stock)]
    rates = [3600 * n / sum(ends[-1] for ends in side) for n, side in zip(counts, (ours, stock), strict=True)]
    revision = commit("sweep_overhead.py", "../search_spaces")
    ratio, (low, high) = rates[0] / rates[1], interval(ours, stock, seed)
    rows = [
        f"| {i} | {len(a)} in {a[-1]:.1f} s | {rate(a):.0f} | {len(b)} in {b[-1]:.1f} s | {rate(b):.0f} | {r:.1f} |"
        for i, ((a, b), r) in enumerate(zip(pairs, ratios, strict=True), 1)
    ]
    return f"""# Overhead of a sweep

Trials an hour of the quickstart's smallest proxy (width 32, 170 steps of 768 tokens), two at a time on a cluster of two
simulated nodes, whose start is left out. Stock: Ray Tune with a function per trial that fits a TorchTrainer of one
worker, the functions on the head. Both train with the same code, to the same losses.

| round | froude | an hour | stock | an hour | ratio |
|---|---|---|---|---|---|
{chr(10).join(rows)}
| all | {counts[0]} | {rates[0]:.0f} | {counts[1]} | {rates[1]:.0f} | **{ratio:.1f}** |

Ratio {ratio:.1f}, 95% interval [{low:.1f}, {high:.1f}] (bootstrap over the times between ends of trials), rounds
{min(ratios):.1f} to {max(ratios):.1f}. The goal of {GOAL:.0f} is {"met" if ratio >= GOAL else "missed"}.

{datetime.now(UTC):%Y-%m-%d}, commit {revision}, seed {seed}; {machine}; Python {platform.python_version()},
ray {ray.__version__}, torch {torch.__version__}.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--ours", type=int, default=20, help="trials of froude a round")
    parser.add_argument("--stock", type=int, default=4, help="trials of stock Ray a round")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    runs, machine = proxies(given.ours, given.seed), hardware()
    ours: list[list[float]] = []
    stock: list[list[float]] = []
    with tempfile.TemporaryDirectory() as logs, simulated(AT_ONCE, log_dir=Path(logs)) as cluster:
        for number in range(1, given.rounds + 1):
            ends, losses = run_ours(runs, cluster)
            others, same = run_stock(runs[: given.stock])
            if losses[: given.stock] != same:
                raise RuntimeError(f"the sides trained different runs: {losses[: given.stock]} and {same}")
            ours.append(ends)
            stock.append(others)
            print(
                f"round {number}: froude {rate(ends):.0f} trials an hour, stock {rate(others):.0f}",
                flush=True,
            )
    text = write(ours, stock, machine, given.seed)
    RESULT.write_text(text)
    print(text)
    return 0 if sum(map(len, ours)) >= 40 and sum(map(len, stock)) >= 8 else 1


if __name__ == "__main__":
    raise SystemExit(main())
