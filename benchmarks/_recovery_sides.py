"""The sides of recovery.py: froude's elastic run, and stock Ray Train on the same model; each tells its steps."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from froude.config import Run
from froude.launch.cluster import SimulatedCluster
from froude.launch.ray_internals import DRIVER_SETTINGS, FAST_KNOBS
from froude.runlog import LogReader
from froude.store import Location
from froude.study import Study

NODES = 3
START_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"


def run_of(steps: int, **changes: Any) -> Run:
    return Run(
        name="recovery",
        checkpoint_every=steps,
        workers=(1, NODES),
        eval_windows=64,
        stability="off",  # going back before a spike is no recovery
        **changes,
    )


#: By the size of the state (parameters and two moments of AdamW, fp32). Of the large one a step takes seconds, so its
#: checkpoints come after fewer, and its batch is as small as three workers allow.
RUNS = {
    "small": run_of(20, model={"width": 32}, tokens=768 * 100_000),
    "large": run_of(
        5, model={"width": 768, "depth": 12, "context": 16}, batch=96, tokens=96 * 100_000, norms_every=0
    ),
}
STATES = {"small": "0.5 MiB", "large": "1 GiB"}


@dataclass(frozen=True)
class Side:
    """`spares` is None for Ray Train alone; `resize` is how often it looks for nodes, in seconds (None: default)."""

    title: str
    knobs: Mapping[str, str]
    spares: bool | None
    resize: float | None


SIDES = {
    "ours": Side("froude, no spares", FAST_KNOBS, False, 1.0),
    "spares": Side("froude, spares", FAST_KNOBS, True, 1.0),
    "tuned": Side("Ray, tuned", {**FAST_KNOBS, START_TIMEOUT: "10"}, None, 1.0),
    "knobs": Side("Ray, tuned but for the start", FAST_KNOBS, None, 1.0),
    "defaults": Side("Ray, defaults", {}, None, None),
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

    run: Run

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
    run: Run
    cluster: SimulatedCluster
    study: Location
    _beats: dict[tuple[int, int], Row] = field(default_factory=dict)
    _seen: set[float] = field(default_factory=set)

    def __post_init__(self) -> None:
        from froude.launch.elastic import train

        self._ends = beside(
            lambda: train(
                self.run,
                self.study,
                cluster=self.cluster,
                spares=self.side.spares,
                resize_seconds=self.side.resize,
            )
        )
        self._watching = beside(self._watch)

    def _watch(self) -> None:
        from froude.launch.control_channel import ControlChannel

        channel = ControlChannel((self.study / "runs" / self.run.name).url)
        while True:
            beat = channel.beat()
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
        records = LogReader(self.study / "runs" / self.run.name).records()
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
    run: Run
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
            train_loop_config={"run": self.run.to_dict(), "trace": str(self.trace)},
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=api.ScalingConfig(num_workers=(1, NODES), resources_per_worker={"CPU": 1}, **pace),
            run_config=api.RunConfig(
                name=self.run.name,
                storage_path=str(self.folder / "storage"),
                failure_config=many,
                checkpoint_config=api.CheckpointConfig(num_to_keep=self.run.keep_checkpoints),
            ),
        )
        self._ends = beside(trainer.fit)

    @property
    def trace(self) -> Path:
        return self.folder / "trace.txt"

    def rows(self, *, exact: bool = False) -> list[Row]:
        if not self.trace.exists():
            return []
        # A worker that is killed, or not yet done, leaves a line in pieces.
        whole, _, _ = self.trace.read_text().rpartition("\n")
        lines = [words for line in whole.splitlines() if len(words := line.split()) == 4]
        self._starts = sorted({float(line[1]) for line in lines})
        return [
            Row(float(at), self._starts.index(float(began)) + 1, int(step), int(world))
            for at, began, step, world in lines
        ]

    def began(self, attempt: int) -> float:
        return self._starts[attempt - 1]

    def error(self) -> BaseException | None:
        return next(iter(self._ends), None)
