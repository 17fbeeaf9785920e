"""Trials an hour: froude's sweep against Ray Tune on the same proxies, set up in three ways.

The proxy is stage lr_transfer's smallest (width 32, 170 steps). All sides train it with the same code, two trials at a
time, on one cluster of two nodes that is started before. A round has each side train the same trials, in an order that
rotates; process starts count, for all. Rounds are kept as JSON lines, so that a later call adds to them.
Writes benchmarks/sweep_overhead.md.

    python benchmarks/sweep_overhead.py [--rounds 2] [--trials 40] [--peers function,class] [--seed 0] [--table]
    python benchmarks/sweep_overhead.py --peers trainer --trials 20
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _machine import commit, cpu
from ray import tune

from froude.config import Run
from froude.launch.cluster import SimulatedCluster, simulated
from froude.launch.sweep import sweep
from froude.space import Grid, Space, Trial
from froude.store import Location
from froude.study import Study
from froude.sweep.progress import SweepProgress

HERE = Path(__file__).resolve().parent
RESULT = HERE / "sweep_overhead.md"
ROUNDS = HERE.parent / "runs" / "sweep_overhead.jsonl"
AT_ONCE = 2
LEAST_TRIALS = 40
#: Title, and how its user set it up.
PEERS = {
    "function": (
        "Tune, function",
        "function trainable, `reuse_actors=True`: a process trains trial after trial",
    ),
    "class": ("Tune, class", "`tune.Trainable` with `reset_config`, `reuse_actors=True`: the same"),
    "trainer": (
        "Tune, TorchTrainer",
        "a function on the head for each trial, which fits a TorchTrainer of one worker",
    ),
}

Round = dict[str, Any]  # what a side did in a round: `ends` of trials in seconds, and the load before


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


def final_loss(config: dict[str, Any]) -> float:
    """What every peer's trial trains, on one thread as ours do."""
    import torch

    from froude.train.trial import run_trial

    torch.set_num_threads(1)
    run = Run.from_dict(config["run"])
    (row,) = run_trial([run], trial=run.name).trials
    return float(row["loss"])


def function_trial(config: dict[str, Any]) -> None:
    tune.report({"loss": final_loss(config)})


class ClassTrial(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._config = new_config
        return True

    def step(self) -> dict[str, Any]:
        return {"loss": final_loss(self._config), "done": True}


def train_worker(config: dict[str, Any]) -> None:
    from ray import train

    train.report({"loss": final_loss(config)})


def trainer_trial(config: dict[str, Any]) -> None:
    """As Ray documents it: a function that fits a TorchTrainer and passes its metrics on."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    TorchTrainer(
        train_worker,
        train_loop_config=config,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(
            name=config["run"]["name"], storage_path=config["folder"], callbacks=[TuneReportCallback()]
        ),
    ).fit()


def trainable(peer: str) -> Any:
    """The peer's trainable with what a trial reserves; a TorchTrainer's function takes no worker's CPU."""
    if peer == "trainer":
        on_head = tune.PlacementGroupFactory([{"node:__internal_head__": 0.01}])
        return tune.with_resources(trainer_trial, on_head)
    return tune.with_resources({"function": function_trial, "class": ClassTrial}[peer], {"CPU": 1})


def run_peer(peer: str, runs: Sequence[Run]) -> tuple[list[float], list[float]]:
    """The same of Ray Tune."""
    ends: list[float] = []
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # with verbose=0: quiet
    began = time.perf_counter()

    class Clock(tune.Callback):
        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            ends.append(time.perf_counter() - began)

        def __getstate__(self) -> dict[str, Any]:
            return {}

    with tempfile.TemporaryDirectory() as folder:
        results = tune.Tuner(
            trainable(peer),
            param_space={"run": tune.grid_search([run.to_dict() for run in runs]), "folder": folder},
            tune_config=tune.TuneConfig(max_concurrent_trials=AT_ONCE, reuse_actors=peer != "trainer"),
            run_config=tune.RunConfig(
                name=peer,
                storage_path=folder,
                verbose=0,
                callbacks=[Clock()],
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        ).fit()
    if results.errors:
        raise RuntimeError(f"trials of {peer} failed: {results.errors[0]}")
    rows = sorted((result.config["run"]["name"], result.metrics["loss"]) for result in results)
    return ends, [loss for _, loss in rows]


def one_round(
    number: int, runs: Sequence[Run], peers: Sequence[str], cluster: SimulatedCluster
) -> list[Round]:
    """Each side once; RuntimeError unless all trained to the same losses."""
    sides = ["froude", *peers]
    turn = number % len(sides)
    rows, losses = [], {}
    for side in sides[turn:] + sides[:turn]:
        load = os.getloadavg()[0]
        ends, losses[side] = run_ours(runs, cluster) if side == "froude" else run_peer(side, runs)
        rows.append(
            {
                "round": number,
                "side": side,
                "ends": ends,
                "load": load,
                "commit": commit("sweep_overhead.py", "../search_spaces"),
            }
        )
        print(f"round {number}: {side} {rate(ends):.0f} trials an hour", flush=True)
    if any(found != losses["froude"] for found in losses.values()):
        raise RuntimeError(f"the sides trained different runs: {losses}")
    return rows


def rate(ends: Sequence[float]) -> float:
    """Trials an hour, from the start of the first to the end of the last."""
    return 3600 * len(ends) / ends[-1]


def summary(rows: Sequence[Round], peer: str) -> tuple[str, list[str], int]:
    """A peer's row of the first table, its rounds for the second, and its trials."""
    of = {(row["round"], row["side"]): row for row in rows}
    pairs = [(of[n, "froude"], of[n, peer]) for n in sorted({n for n, side in of if side == peer})]
    ours, other = [a for a, _ in pairs], [b for _, b in pairs]
    ratios = [rate(a["ends"]) / rate(b["ends"]) for a, b in pairs]
    count = sum(len(row["ends"]) for row in other)
    rates = [3600 * count / sum(row["ends"][-1] for row in side) for side in (ours, other)]
    title, settings = PEERS[peer]
    line = (
        f"| {title} | {settings} | {count} | {rates[0]:.0f} | {rates[1]:.0f} | **{statistics.median(ratios):.2f}** | "
        f"{min(ratios):.2f} … {max(ratios):.2f} |"
    )
    rounds = [
        f"| {title} | {a['round']} | {len(a['ends'])} | {a['ends'][-1]:.1f} s | {b['ends'][-1]:.1f} s | {ratio:.2f} "
        f"| {a['load']:.1f}, {b['load']:.1f} |"
        for (a, b), ratio in zip(pairs, ratios, strict=True)
    ]
    return line, rounds, count


def write(rows: Sequence[Round], seed: int) -> tuple[str, bool]:
    """The result as Markdown, and whether each peer has trials enough."""
    measured = [peer for peer in PEERS if any(row["side"] == peer for row in rows)]
    found = [summary(rows, peer) for peer in measured]
    text = f"""# Overhead of a sweep

Trials an hour of the quickstart's smallest proxy (width 32, 170 steps of 768 tokens), two at a time on a cluster of two
simulated nodes of one CPU each, whose start is left out. All sides train the same runs with the same code on one
thread, to the same losses. Ray Tune, with `max_concurrent_trials={AT_ONCE}`, was set up in these ways:

| peer | its trainable | trials a side | froude, an hour | peer, an hour | ratio, median | rounds |
|---|---|---|---|---|---|---|
{chr(10).join(line for line, _, _ in found)}

A sweep does not train faster than Tune with processes that are used again, and runs in the same way itself: both are at
the speed of the training. In froude's rate is what its trials do besides, each trial's rows as Parquet in the study.
A TorchTrainer for each trial starts its processes anew: it is meant for trials of several workers, not these. Against
it an earlier measurement (commit b55a442, 40 trials against 8) had a ratio of 9.9 (9.1 and 10.9 in two rounds).

Ratio: froude's rate over the peer's, by round. Loads are of all work on the machine: where they differ within a round,
or are above {AT_ONCE}, part of the ratio is other work's. Not shown: proxies of minutes, where every set-up's overhead
vanishes; trials of several workers; clusters of many machines.

| peer | round | trials a side | froude | peer | ratio | load before each |
|---|---|---|---|---|---|---|
{chr(10).join(line for _, lines, _ in found for line in lines)}

{datetime.now(UTC):%Y-%m-%d}, commit {", ".join(sorted({row["commit"] for row in rows}))}, seed {seed}; {cpu()};
Python {platform.python_version()}, ray {version("ray")}, torch {version("torch")}.
"""
    return text, all(count >= LEAST_TRIALS for _, _, count in found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=2, help="to add")
    parser.add_argument("--trials", type=int, default=40, help="of each side in a round")
    parser.add_argument("--peers", default="function,class", help=f"of {', '.join(PEERS)}, by comma")
    parser.add_argument("--results", type=Path, default=ROUNDS, help="JSON lines, added to")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.results.parent.mkdir(parents=True, exist_ok=True)
    given.results.touch()
    rows = [json.loads(line) for line in given.results.read_text().splitlines()]
    runs = proxies(given.trials, given.seed)
    if not given.table:
        with tempfile.TemporaryDirectory() as logs, simulated(AT_ONCE, log_dir=Path(logs)) as cluster:
            for _ in range(given.rounds):
                number = max((row["round"] for row in rows), default=0) + 1
                made = one_round(number, runs, given.peers.split(","), cluster)
                rows += made
                with given.results.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in made)
    text, enough = write(rows, given.seed)
    RESULT.write_text(text)
    print(text)
    return 0 if enough else 1


if __name__ == "__main__":
    raise SystemExit(main())
