"""The target run: trained by as many workers as the cluster has, through failures and growth, to its end."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from typing import Any

from froude.config import ConfigError, Run
from froude.launch import ray_internals, worker
from froude.launch.cluster import ConnectedCluster, SimulatedCluster
from froude.launch.control_channel import ControlChannel
from froude.launch.hosts.admission import Unfit, mark
from froude.launch.readiness import spares_after
from froude.launch.threads import check_nodes, worker_resources
from froude.launch.worker import Fatal, Order, work
from froude.runlog import LogReader, Record
from froude.store import Location

WATCH_SECONDS = 0.25
ABORT_SECONDS = 10.0


class RunFailed(RuntimeError):
    """The run ended before its last step; what was committed stays, and the same call goes on from there.

    `kind` names the class of the error, where it is one that no restart can get past (Diverged, Corrupt, Fenced).
    """

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind


class NoProgress(RunFailed):
    """Restarts in a row committed nothing."""

    exit_code = 4


@dataclass(frozen=True)
class ElasticResult:
    """What a run went through, and its final validation loss in nats per token (None unless it is finished).

    `world_sizes` are those of the attempts that made a step which was kept, in order; `recovery_seconds` go from the
    last step before a restart to the first one after it.
    """

    run: str
    finished: bool
    step: int
    world_sizes: list[int]
    restarts: int
    recovery_seconds: list[float]
    loss: float | None


@dataclass(frozen=True)
class Limits:
    """When a run gives up, and how often it looks for new nodes."""

    no_progress: int
    resize_seconds: float


@dataclass(frozen=True)
class Progress:
    """Where a run is: steps done of `steps`, by how many workers, in which attempt; 0 workers until it has begun.

    `alarms` say how the run has left its forecast, if it has, `said` what its spike policy has done; `left_out` which
    hosts it does without, and why.
    """

    step: int
    steps: int
    world: int
    attempt: int
    alarms: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def device_of(resources: Mapping[str, float]) -> str:
    """Where a worker with these resources computes."""
    return "cuda" if resources.get("GPU") else "cpu"


def torch_backend(resources: Mapping[str, float]) -> str:
    """Process-group backend for workers with these resources; CPU tensors (control messages) always go over gloo."""
    return "cpu:gloo,cuda:nccl" if resources.get("GPU") else "gloo"


def train(
    run: Run,
    study: Location,
    *,
    cluster: SimulatedCluster | ConnectedCluster,
    recipe: str = "",
    material: Mapping[str, Any] | None = None,
    trust: bool = False,
    other_build: bool = False,
    spares: bool | None = None,
    evaluate: str = "",
    progress: Callable[[Progress], None] | None = None,
    no_progress: int = 3,
    resize_seconds: float | None = None,
) -> ElasticResult:
    """Train the run to its end below `study`, from its newest committed checkpoint; at once if it is finished.

    `recipe` names what the log must be of (the run's fingerprint if empty), `material` what corpus and code must be.
    `progress` is called about four times a second, from this thread. `other_build` lets an exact run go on with another
    library, processor or number of threads than it had. `spares` keeps a process ready on each node for a quicker
    restart (None: as `spares_after` says); `evaluate` names a function to call at checkpoints. New nodes are looked for
    every `resize_seconds` (1 on a simulated cluster, else 10). Raises NoProgress when more than `no_progress` failures
    in a row commit nothing, RunFailed for any other end before the last step (by a failure that no restart can get
    past), ConfigError for what the user can correct. While restarts commit something, there may be any number.
    """
    location = study / "runs" / run.name
    log = LogReader(location)
    recipe = recipe or run.fingerprint
    head = log.head_under(recipe)
    if head is not None and head.kind == "finished":
        return result_of(run, study)
    import ray

    from froude.train.api import check_trust, material_of

    check_trust(run, trust)
    here, before = material_of(run), head.meta.get("material") if head else None
    for expected, whose in ((material, "those of the recipe's study"), (before, "those of the run so far")):
        if expected:
            here.required(expected, whose)
    if before and (library := run.optimizer.spec.library):
        here.same_library(library, before, "the checkpoint's")
    check_nodes([run])
    resources = worker_resources(run.device, ray.cluster_resources(), run.compute.threads)
    channel = ControlChannel(location.url)
    channel.clear(head.attempt if head else 0)
    # That of a driver which was killed before its first record is in the channel alone.
    for dead in {str(head.meta.get("run_id", "")) if head else "", channel.reservation()} - {""}:
        ray_internals.cancel_reservation(dead)
    if resize_seconds is None:
        resize_seconds = 1.0 if isinstance(cluster, SimulatedCluster) else 10.0
    limits = Limits(no_progress, resize_seconds)
    order = Order(
        run.to_dict(),
        study.url,
        recipe,
        run_id="",
        device=device_of(resources),
        other_build=other_build,
        spares_after=spares_after(run, cluster, spares),
        evaluate=evaluate,
        material=here.to_dict(),
    )
    notes = tempfile.TemporaryDirectory(prefix="froude-train-", ignore_cleanup_errors=True)
    with notes as scratch, mark(location) as marked:
        trainer, run_id = _trainer(replace(order, marked=marked), run, channel, resources, scratch, limits)
        channel.note_reservation(run_id)
        error = _fit(
            trainer, run_id, lambda: progress(_position(run, log, channel, head)) if progress else None
        )
    if error is not None:
        raise _explain(error, run, log, channel, limits) from error
    result = result_of(run, study)
    if not result.finished:
        raise RunFailed(
            f"run {run.name}: Ray ended it without an error at step {result.step} of {run.steps}; start it again"
        )
    return result


def result_of(run: Run, study: Location) -> ElasticResult:
    """The result of a run according to its commit log and metrics, also before its end."""
    from froude.attempts import history
    from froude.study import Study

    past = history(Study(study), run.name)
    if past is None:
        return ElasticResult(run.name, False, 0, [], 0, [], None)
    return ElasticResult(
        run=run.name,
        finished=past.finished,
        step=past.step,
        world_sizes=past.world_sizes,
        restarts=past.restarts,
        recovery_seconds=past.recovery_seconds,
        loss=past.loss,
    )


def _trainer(
    order: Order, run: Run, channel: ControlChannel, resources: dict[str, float], scratch: str, limits: Limits
) -> tuple[Any, str]:
    """Ray's trainer, and the id under which it reserves resources."""
    ray_internals.prepare_driver()
    import ray.train
    from ray.train.torch import TorchTrainer

    from froude.launch.hosts.interfaces import NodeInterface

    api: Any = ray.train  # its names are those of Train V2 or of V1, as an environment variable says
    scaling = api.ScalingConfig(
        num_workers=(run.min_workers, run.max_workers),
        use_gpu="GPU" in resources,
        resources_per_worker=resources,
        elastic_resize_monitor_interval_s=limits.resize_seconds,
    )
    arguments: dict[str, Any] = {
        "train_loop_per_worker": work,
        "train_loop_config": asdict(order),
        "torch_config": NodeInterface(backend=torch_backend(resources)),
        "scaling_config": scaling,
        # Ray keeps a note of metrics there; checkpoints and their log are ours.
        "run_config": api.RunConfig(
            name=run.name,
            storage_path=scratch,
            worker_runtime_env=None if order.spares_after is None else ray_internals.run_first(worker.warm),
        ),
    }
    if not ray_internals.supported():
        # Nobody asks there whether the restarts make progress, so few are allowed.
        arguments["run_config"].failure_config = api.FailureConfig(max_failures=limits.no_progress)
        return TorchTrainer(**arguments), ""
    from froude.launch.ray_internals.failures import BoundedFailures
    from froude.launch.ray_internals.resizing import PlannedResize
    from froude.launch.ray_internals.spares import Spares
    from froude.launch.ray_internals.trainer import ElasticTrainer

    place = Location.parse(order.study) / "runs" / run.name
    failures = BoundedFailures(channel, place, limits.no_progress, Fatal, resources)
    arguments["run_config"].failure_config = failures.failure_config
    trainer: Any = ElasticTrainer(**arguments)
    ready = None if order.spares_after is None else Spares(channel, early=order.spares_after == 0)
    trainer.use(PlannedResize(scaling, channel, ready), failures)
    run_id = str(trainer.train_run_context.run_id)
    trainer.train_loop_config["run_id"] = run_id
    return trainer, run_id


def _fit(trainer: Any, run_id: str, watch: Callable[[], None]) -> Exception | None:
    """Run the trainer in another thread, so that this one can watch and be interrupted; its error, if any."""
    outcome: list[Exception] = []

    def fit() -> None:
        try:
            trainer.fit()
        except Exception as error:  # noqa: BLE001  this thread's end is all that the other one would see
            outcome.append(error)

    if not run_id:  # nothing of Ray's internals to end it by: as Ray does it, here
        fit()
        return outcome[0] if outcome else None
    thread = threading.Thread(target=fit, name="ray-train", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(WATCH_SECONDS)
            watch()
    except BaseException:
        trainer.abort()
        ray_internals.cancel_reservation(run_id)
        thread.join(ABORT_SECONDS)  # it must not wait for Ray when the connection ends
        raise
    return outcome[0] if outcome else None


def _position(run: Run, log: LogReader, channel: ControlChannel, before: Record | None) -> Progress:
    """Where this driver's attempt is; what `before`, the newest record when it began, says until there is one."""
    old = before.attempt if before else 0
    beat, left_out = channel.beat(), tuple(channel.left_out().values())
    if beat is not None and beat.attempt > old:
        return Progress(
            beat.step, run.steps, beat.world, beat.attempt, channel.alarms(), channel.said(), left_out
        )
    head = before if ray_internals.supported() else log.head()
    if head is None:
        return Progress(0, run.steps, 0, 0, left_out=left_out)
    world = head.world if head.attempt > old else 0
    return Progress(head.step, run.steps, world, head.attempt, left_out=left_out)


def _fruitless(log: LogReader) -> int:
    """How many of the newest attempts committed nothing; 0 where the store can't be read."""
    with suppress(OSError):
        return sum(1 for _ in takewhile(lambda record: record.kind == "attempt", reversed(log.records())))
    return 0


def _explain(
    error: Exception, run: Run, log: LogReader, channel: ControlChannel, limits: Limits
) -> Exception:
    """The error that a user sees for a failed run."""
    from froude.launch.ray_internals.failures import find_cause

    if ray_internals.supported():
        fatal, unfit = find_cause(error, Fatal), find_cause(error, Unfit)
        if isinstance(fatal, Fatal):
            return (
                ConfigError(fatal.text) if fatal.kind == "ConfigError" else RunFailed(fatal.text, fatal.kind)
            )
        if isinstance(unfit, Unfit):
            return ConfigError(f"run {run.name}: {unfit.text}")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = lines[-1] if lines else type(error).__name__
    if channel.given_up() or _fruitless(log) > limits.no_progress:
        times = "1 restart" if limits.no_progress == 1 else f"{limits.no_progress} restarts"
        return NoProgress(
            f"run {run.name}: {times} in a row committed nothing; the last failed with: {cause}"
        )
    return RunFailed(f"run {run.name} failed: {cause}")
