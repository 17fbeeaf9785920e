"""What each worker of an elastic run does: open an attempt, train, pause when asked."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from froude.config import ConfigError, Run
from froude.launch.control_channel import Beat, ControlChannel
from froude.launch.hosts.admission import admit
from froude.store import Location
from froude.sweep.outage import outage_in

if TYPE_CHECKING:
    from froude.launch.observers.metrics import RayMetrics
    from froude.train.api import Request

BEAT_SECONDS = 0.2
SPARE_AFTER = 10  # steps of an attempt, so that starting spares does not slow its start
WAIT_SECONDS = 0.1
ASK_SECONDS = 1.0  # between two questions whether to hold, or a step where that takes longer


class Fatal(RuntimeError):
    """An error that no restart gets past: the name of its class, and its text."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self.kind, self.text = kind, text


@dataclass(frozen=True)
class Order:
    """What the driver hands to each worker."""

    run: dict[str, Any]
    study: str
    recipe: str
    run_id: str
    device: str
    other_build: bool = False
    spares_after: float | None = None
    evaluate: str = ""
    material: Mapping[str, Any] = field(default_factory=dict)
    marked: str = ""  # name of the file that this driver has marked the run's folder with


def agree(*values: int) -> tuple[int, ...]:
    """Rank 0's answers, on every rank."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized() or dist.get_world_size() == 1:
        return values
    answers = torch.tensor(values)
    dist.broadcast(answers, src=0)
    return tuple(answers.tolist())


@dataclass
class RaySupervisor:
    """Steers the training loop inside a Ray Train worker.

    Rank 0 leaves a beat on the head, and asks there every few steps whether the group shall pause; the answer is
    broadcast, so that all ranks stop after the same step, and with it after how many more it asks again. Ray gets the
    newest metrics at each checkpoint, as copies.
    """

    attempt: int
    run: Run
    channel: ControlChannel
    rank: int
    world: int
    step: int = 0
    holding: bool = False
    steps: int = 0  # of this attempt
    spares_after: float | None = None  # seconds of this attempt
    metrics: RayMetrics | None = None
    _beaten: float = -math.inf
    _began: float = field(default_factory=time.monotonic)
    _polled: float = field(default_factory=time.monotonic)
    _asks_after: int = 0  # so many polls, for steps may go back

    def poll(self, step: int) -> Request:
        self.step, self.steps = step, self.steps + 1
        now = time.monotonic()  # a wall clock that is set back would silence the run for as long
        if self.rank == 0 and now - self._beaten >= BEAT_SECONDS:
            self.channel.write_beat(Beat(self.attempt, self.world, step, time.time()))
            self._beaten = now
        if (
            self.rank == 0
            and self.spares_after is not None
            and self.steps >= SPARE_AFTER
            and now - self._began >= self.spares_after
        ):
            from froude.launch.ray_internals.spares import own_template

            self.channel.offer_template(self.attempt, own_template())
            self.spares_after = None
        if self.metrics and (step % self.run.checkpoint_every == 0 or step == self.run.steps):
            self.metrics.report()
        if self._asks_after <= self.steps and step < self.run.steps:
            pace = max(now - self._polled, 1e-6)
            wait = min(max(1, int(ASK_SECONDS / pace)), max(1, self.run.checkpoint_every // 10))
            asked, wait = agree(self.rank == 0 and self.channel.asked_to_hold(self.attempt), wait)
            self.holding, self._asks_after = bool(asked), self.steps + wait
        self._polled = now
        return "stop" if self.holding else "none"

    def hold(self) -> None:
        """Wait, with what was trained committed, until the group is replaced or told to go on."""
        if self.rank == 0:
            self.channel.write_beat(Beat(self.attempt, self.world, self.step, time.time()))
        while any(agree(self.rank == 0 and self.channel.confirm_held(self.attempt))):
            time.sleep(WAIT_SECONDS)
        self.holding = False


def warm() -> None:
    """Import what every worker needs; Ray calls it in each process that it starts for one, also in a spare."""
    try:
        import pyarrow.parquet  # noqa: F401
        import ray
        import ray.train.torch
        import torch._dynamo
        import torch.distributed.fsdp  # noqa: F401

        import froude.checkpoint.run_store
        import froude.train.worker  # noqa: F401
    except ImportError:  # `work` meets it again, where a user sees it
        return
    if ray.is_initialized():
        from froude.launch.ray_internals.spares import confirm_warm

        confirm_warm()


def use_own_cores(threads: int = 0) -> None:
    """Let torch use so many threads (0: as OMP_NUM_THREADS says, or as this worker has CPUs), in the thread that calls.

    Ray sets OMP_NUM_THREADS when an actor begins. A spare has imported torch by then, which took all of the cores:
    workers then wait for each other's, and bits depend on whether a worker was a spare.
    """
    import ray
    import torch

    cpus = ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # "4,2": of nested loops too
    told = int(asked) if asked.isdecimal() else 0
    torch.set_num_threads(threads or told or max(1, int(cpus)))


def work(order: dict[str, Any]) -> None:
    """Train the ordered run to its end as one rank of Ray Train's current worker group."""
    from ray import train

    from froude.checkpoint.commit import Fenced, Finished
    from froude.checkpoint.parts import Corrupt
    from froude.checkpoint.retention import Keep
    from froude.checkpoint.run_store import RunStore
    from froude.launch.observers.forecast import forecast_monitors
    from froude.launch.observers.metrics import RayMetrics
    from froude.launch.observers.spike_news import PolicyNews
    from froude.train import api, kernels, parallel
    from froude.train.loop import Diverged
    from froude.train.observers import Observer, trackers
    from froude.train.observers.downstream import downstream
    from froude.train.precision import measured, products
    from froude.train.stability import spikes
    from froude.train.worker import run_worker

    given = Order(**order)
    run = Run.from_dict(given.run)
    use_own_cores(run.compute.threads)
    study = Location.parse(given.study)
    location = study / "runs" / run.name
    context = train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    channel = ControlChannel(location.url)
    # The next rollback may follow at once, and count from where this one went back to.
    keep = Keep(run.keep_checkpoints, run.keep_every, 2 * spikes.reach(run))
    store = RunStore(location, run.name, keep)
    before = channel.beat() if rank == 0 else None
    alive = before.time if before else 0.0
    # Not below: a node that has lost its GPU is a failure, not the user's error.
    device = parallel.resolve_device(given.device)
    try:
        found: dict[str, Any] = {}

        def suits() -> None:
            products.check(run, device)
            kernels.check(run, device)
            material = api.material_of(run).required(given.material)
            if library := run.optimizer.spec.library:
                material.same_library(library, given.material, "the driver's")
            found["material"] = material.to_dict()
            found["matmul_error"] = {"precision": run.precision, "relative": measured.error(run, device)}

        here = admit(run, store, device, suits, other_build=given.other_build, marked=given.marked)
        versions = {name: version(name) for name in ("froude", "ray")}
        meta = {"run_id": given.run_id, "alive": str(alive), "build": here, "versions": versions, **found}
        attempt = store.open_attempt(given.recipe, meta)
        if rank == 0:
            channel.write_beat(Beat(attempt, world, before.step if before else 0, alive))
        metrics = RayMetrics()
        watching: list[Observer] = [metrics, PolicyNews(channel)]
        if rank == 0:
            watching += forecast_monitors(run, study, given.recipe, channel)
        supervisor = RaySupervisor(
            attempt, run, channel, rank, world, spares_after=given.spares_after, metrics=metrics
        )

        def own() -> list[Observer]:
            return [*watching, *downstream(given.evaluate), *trackers()]

        run_worker(run, store, supervisor, device=given.device, observers=own())
        while supervisor.holding:
            supervisor.hold()
            run_worker(run, store, supervisor, device=given.device, observers=own())
    except Finished:
        return
    except (ConfigError, Corrupt, Diverged, Fenced) as error:
        if away := outage_in(error):  # no setting is wrong, and the run is restarted
            raise away from error
        raise Fatal(
            "ConfigError" if isinstance(error, ConfigError) else type(error).__name__, str(error)
        ) from None
