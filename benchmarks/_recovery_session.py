"""One session of recovery.py: a cluster, one run on it by one of the sides, and failures that it recovers from.

Run as `python _recovery_session.py SIDE EVENTS SECONDS FOLDER SEED`; prints one JSON object a line: first the process
that owns the cluster, then each event's measures. No event begins when SECONDS have passed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from froude.config import Run
from froude.launch.cluster import NodeHandle, SimulatedCluster, simulated
from froude.launch.ray_internals import DRIVER_SETTINGS, FAST_KNOBS
from froude.runlog import LogReader
from froude.store import Location
from froude.study import Study

NODES = 3
CHECKPOINT_EVERY = 20
SETTLE_SECONDS = 6.0
WARM_TIMEOUT = 60.0
IMPORT_SECONDS = 2.0  # of CPU: a process that has used less has not imported what a worker needs
EVENT_TIMEOUT = 150.0
NOTICE_SECONDS = 20

RUN = Run(
    name="recovery",
    model={"width": 32},
    tokens=768 * 100_000,
    checkpoint_every=CHECKPOINT_EVERY,
    workers=(1, NODES),
    eval_windows=64,
)


@dataclass(frozen=True)
class Side:
    """`spares` is None for stock Ray Train; `resize` is how often it looks for nodes, in seconds (None: default)."""

    title: str
    knobs: Mapping[str, str]
    spares: bool | None
    resize: float | None


SIDES = {
    "spares": Side("froude, spares", FAST_KNOBS, True, 1.0),
    "ours": Side("froude, no spares", FAST_KNOBS, False, 1.0),
    "knobs": Side("stock, same knobs", FAST_KNOBS, None, 1.0),
    "defaults": Side("stock, defaults", {}, None, None),
}


@dataclass(frozen=True)
class Row:
    """A step that ended at `time`, seconds since the epoch."""

    time: float
    attempt: int
    step: int
    world: int


class Watched(Protocol):
    """A run that trains beside this thread; `exact` rows need what it has written by then."""

    def rows(self, *, exact: bool = False) -> list[Row]: ...
    def began(self, attempt: int) -> float: ...
    def error(self) -> BaseException | None: ...


def beside(work: Callable[[], Any]) -> list[BaseException]:
    """Run `work` in a thread; what it raises, or a RuntimeError if it returns, ends up in the list."""
    ends: list[BaseException] = []

    def call() -> None:
        try:
            work()
            ends.append(RuntimeError("the run ended"))
        except BaseException as error:  # noqa: BLE001  reported by whoever waits for the run
            ends.append(error)

    threading.Thread(target=call, daemon=True).start()
    return ends


@dataclass
class Ours:
    """Rows are committed steps, and the beats of those that were lost (every 0.2 s)."""

    side: Side
    cluster: SimulatedCluster
    study: Location
    _beats: dict[tuple[int, int], Row] = field(default_factory=dict)
    _seen: set[float] = field(default_factory=set)

    def __post_init__(self) -> None:
        from froude.launch.elastic import train

        self._ends = beside(
            lambda: train(
                RUN,
                self.study,
                cluster=self.cluster,
                spares=self.side.spares,
                resize_seconds=self.side.resize,
            )
        )
        self._watching = beside(self._watch)

    def _watch(self) -> None:
        from froude.launch.notes import Notes

        notes = Notes((self.study / "runs" / RUN.name).url)
        while True:
            beat = notes.beat()
            if beat is not None and beat.time > 0 and beat.time not in self._seen:
                self._seen.add(beat.time)  # a new attempt begins with the time of the last one
                self._beats.setdefault(
                    (beat.attempt, beat.step), Row(beat.time, beat.attempt, beat.step, beat.world)
                )
            time.sleep(0.05)

    def rows(self, *, exact: bool = False) -> list[Row]:
        rows = dict(self._beats)
        if exact:
            steps = Study(self.study).steps().select("time", "attempt", "step", "world").collect()
            for at, attempt, step, world in steps.iter_rows():
                rows[attempt, step] = Row(at.timestamp(), attempt, step, world)
        return sorted(rows.values(), key=lambda row: row.time)

    def began(self, attempt: int) -> float:
        records = LogReader(self.study / "runs" / RUN.name).records()
        return next(r.time.timestamp() for r in records if r.kind == "attempt" and r.attempt == attempt)

    def error(self) -> BaseException | None:
        return next(iter([*self._ends, *self._watching]), None)


def train_stock(config: dict[str, Any]) -> None:
    """The training loop as Ray and PyTorch document it: plain DCP, each rank's files uploaded by `report`."""
    import torch.distributed.checkpoint as dcp
    from ray import train

    from froude.train.parallel import World, resolve_device
    from froude.train.trainer import Trainer

    began = time.time()
    run = Run.from_dict(config["run"])
    trainer = Trainer(run, World.current(resolve_device("cpu")))
    step = 0
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            dcp.load(trainer.state(), checkpoint_id=folder)
            step = json.loads((Path(folder) / "step.json").read_text())
    with open(config["trace"], "a", encoding="utf-8", buffering=1) as trace:
        while step < run.steps:
            loss = trainer.step(run, step).loss
            step += 1
            if trainer.world.rank == 0:
                trace.write(f"{time.time()} {began} {step} {trainer.world.size}\n")
            if step % run.checkpoint_every == 0:
                with tempfile.TemporaryDirectory() as folder:
                    dcp.save(trainer.state(), checkpoint_id=folder)
                    (Path(folder) / "step.json").write_text(json.dumps(step))
                    train.report({"loss": loss}, checkpoint=train.Checkpoint.from_directory(folder))


@dataclass
class Stock:
    """Stock TorchTrainer; rows are a trace that its rank 0 writes."""

    side: Side
    folder: Path

    def __post_init__(self) -> None:
        for name in DRIVER_SETTINGS.keys() - self.side.knobs.keys():
            os.environ.pop(name, None)  # froude's own; a user of stock Ray has none
        import ray.train
        from ray.train.torch import TorchConfig, TorchTrainer

        api: Any = ray.train
        pace = {} if self.side.resize is None else {"elastic_resize_monitor_interval_s": self.side.resize}
        many = api.FailureConfig(max_failures=1000, controller_failure_limit=1000)
        trainer = TorchTrainer(
            train_stock,
            train_loop_config={"run": RUN.to_dict(), "trace": str(self.trace)},
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=api.ScalingConfig(num_workers=(1, NODES), resources_per_worker={"CPU": 1}, **pace),
            run_config=api.RunConfig(
                name=RUN.name, storage_path=str(self.folder / "storage"), failure_config=many
            ),
        )
        self._ends = beside(trainer.fit)

    @property
    def trace(self) -> Path:
        return self.folder / "trace.txt"

    def rows(self, *, exact: bool = False) -> list[Row]:
        if not self.trace.exists():
            return []
        lines = [line.split() for line in self.trace.read_text().splitlines()]
        self._starts = sorted({float(line[1]) for line in lines})
        return [
            Row(float(at), self._starts.index(float(began)) + 1, int(step), int(world))
            for at, began, step, world in lines
        ]

    def began(self, attempt: int) -> float:
        return self._starts[attempt - 1]

    def error(self) -> BaseException | None:
        return next(iter(self._ends), None)


def measure(rows: list[Row], at: float) -> dict[str, float | int | None]:
    """What an event cost; `seconds` is None while no step is new."""
    old = max(row.attempt for row in rows if row.time <= at)
    before = [row for row in rows if row.attempt <= old]
    after = [row for row in rows if row.attempt > old]
    reached = max(row.step for row in before)
    new = [row for row in after if row.step > reached]
    if not new:
        return {"seconds": None}
    return {
        "seconds": min(row.time for row in new) - at,
        "still": min(row.time for row in after) - max(row.time for row in before),
        "repeated": reached + 1 - min(row.step for row in after),
        "attempt": new[0].attempt,
        "world": new[0].world,
    }


def family(node: NodeHandle) -> list[psutil.Process]:
    raylet = psutil.Process(node.raylet_pid)
    return [raylet, *raylet.children(recursive=True)]


def titled(node: NodeHandle, title: str) -> list[psutil.Process]:
    found = []
    for process in family(node):
        try:
            if title in " ".join(process.cmdline()):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def drain(cluster: SimulatedCluster, node: NodeHandle) -> None:
    """Notice that the node will end, as a cloud gives it of a spot machine."""
    from ray._raylet import GcsClient
    from ray.core.generated import autoscaler_pb2

    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    deadline = int(1000 * (time.time() + NOTICE_SECONDS))
    accepted, why = GcsClient(address=cluster.address).drain_node(node.node_id, reason, "notice", deadline)
    if not accepted:
        raise RuntimeError(f"the drain was refused: {why}")


def strike(cluster: SimulatedCluster, event: str) -> float:
    """Let the event happen to the newest node; the time at which it did."""
    if event == "added":
        cluster.add_node()
        return time.time()
    node = cluster.nodes[-1]
    victims = family(node)
    workers = titled(node, "RayTrainWorker")
    at = time.time()
    if event == "worker":
        workers[0].kill()
    elif event == "node":
        cluster.kill_node(node)
    elif event == "silent":
        for victim in victims:
            victim.send_signal(signal.SIGSTOP)
    elif event == "drain":
        drain(cluster, node)
    return at


def wait(ready: Callable[[], bool], watched: Watched, seconds: float) -> bool:
    """Whether it became ready in time; raises what ended the run."""
    until = time.monotonic() + seconds
    while not ready():
        if (error := watched.error()) is not None:
            raise RuntimeError("the run ended") from error
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def settle(cluster: SimulatedCluster, side: Side, watched: Watched, seconds: float = EVENT_TIMEOUT) -> None:
    """Wait until all nodes train, have written a checkpoint, and hold idle spares where there are some."""

    def trains() -> bool:
        rows = watched.rows()
        newest = [row for row in rows if row.attempt == rows[-1].attempt]
        return (
            bool(newest)
            and newest[-1].world == len(cluster.nodes)
            and newest[-1].step - newest[0].step > CHECKPOINT_EVERY
            and newest[-1].time - newest[0].time > SETTLE_SECONDS
        )

    if not wait(lambda: bool(watched.rows()) and trains(), watched, seconds):
        raise RuntimeError(f"no settled run within {seconds} s; the newest rows: {watched.rows()[-3:]}")
    until = time.monotonic() + WARM_TIMEOUT
    while side.spares and time.monotonic() < until:
        spares = [titled(node, "ray::IDLE") for node in cluster.nodes]
        used = [max((sum(p.cpu_times()[:2]) for p in idle), default=0.0) for idle in spares]
        time.sleep(1.0)
        again = [max((sum(p.cpu_times()[:2]) for p in idle), default=0.0) for idle in spares]
        if all(b - a < 0.1 and b > IMPORT_SECONDS for a, b in zip(used, again, strict=True)):
            return


def observe(cluster: SimulatedCluster, side: Side, watched: Watched, event: str) -> dict[str, Any]:
    at = strike(cluster, event)
    recovered = wait(
        lambda: measure(watched.rows(), at)["seconds"] is not None, watched, EVENT_TIMEOUT + at - time.time()
    )
    if event in ("silent", "drain"):
        cluster.kill_node(cluster.nodes[-1])  # its time is up
    if not recovered:
        return {"event": event, "seconds": None}
    settle(cluster, side, watched)  # until then the first steps are committed
    rows = watched.rows(exact=True)
    found = measure(rows, at)
    return {"event": event, **found, "loop": watched.began(int(found["attempt"] or 0)) - at}


def main() -> None:
    side, events = SIDES[sys.argv[1]], json.loads(sys.argv[2])
    until, folder, chance = (
        time.monotonic() + float(sys.argv[3]),
        Path(sys.argv[4]),
        random.Random(sys.argv[5]),
    )
    with simulated(NODES, log_dir=folder / "logs", knobs=side.knobs) as cluster:
        print(json.dumps({"host": cluster.host_pid}), flush=True)
        watched: Watched = (
            Stock(side, folder)
            if side.spares is None
            else Ours(side, cluster, Location.parse(folder) / "study")
        )
        settle(cluster, side, watched)
        for event in events:
            if event != "added" and len(cluster.nodes) < NODES:
                if side.resize is None:
                    break  # growth takes longer than another cluster
                cluster.add_node()
                settle(cluster, side, watched)
            if time.monotonic() > until:
                break
            time.sleep(chance.uniform(0, 2))  # at any place between two checkpoints
            row = observe(cluster, side, watched, event)
            print(json.dumps(row), flush=True)
            if row["seconds"] is None:
                break
        shutil.rmtree(folder / "storage", ignore_errors=True)
        os._exit(0)  # the cluster ends with this process; a run in mid-flight would hold up a quiet end


if __name__ == "__main__":
    main()
