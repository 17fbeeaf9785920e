"""How long the target's steps take on a cluster: a few at two batches, by its fewest workers and by its most."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from froude.config import ConfigError, Run
from froude.launch import ray_internals
from froude.launch.elastic import device_of, torch_backend
from froude.launch.threads import check_nodes, worker_resources
from froude.promote.choice.step_time import Timed
from froude.promote.choice.worth import with_batch

WARM, STEPS = 3, 12  # steps before the clock runs, and those that it counts: their median is taken


def time_steps(
    run: Run, batches: Sequence[int], *, trust: bool = False, progress: Callable[[str], None] | None = None
) -> list[Timed]:
    """Median seconds of a step at each batch (tokens) by the run's fewest workers and by its most, on this cluster.

    Nothing is saved of what is trained. ConfigError where the cluster can't hold the most workers at once.
    """
    import ray

    from froude.train.api import check_trust

    check_trust(run, trust)
    if run.trainer.command:
        raise ConfigError(
            f"froude's own steps are timed, but {run.name} has a trainer of its own; leave --time-steps out"
        )
    have = ray.cluster_resources()
    check_nodes([run])
    resources = worker_resources(run.device, have, run.compute.threads)
    room = int(min(have.get(unit, 0) / number for unit, number in resources.items()))
    if room < run.max_workers:
        raise ConfigError(
            f"steps are timed with as many workers as the target may have, {run.max_workers}, but the cluster has room "
            f"for {room}; add nodes, or lower the target's `workers`"
        )
    found: list[Timed] = []
    for workers in sorted({run.min_workers, run.max_workers}):
        if progress:
            progress(
                f"timing {WARM + STEPS} steps of {workers} worker{'s' * (workers > 1)}, a batch after another"
            )
        seconds = _fit(run, batches, workers, resources)
        found += [Timed(workers, batch, each) for batch, each in zip(batches, seconds, strict=True)]
    return found


def _fit(run: Run, batches: Sequence[int], workers: int, resources: dict[str, float]) -> list[float]:
    ray_internals.prepare_driver()
    import ray.train
    from ray.train.torch import TorchTrainer

    from froude.launch.hosts.interfaces import NodeInterface

    api: Any = ray.train
    scratch = tempfile.mkdtemp(prefix="froude-steps-")
    try:
        trainer: Any = TorchTrainer(
            train_loop_per_worker=_work,  # type: ignore[arg-type]
            train_loop_config={
                "run": run.to_dict(),
                "batches": list(batches),
                "device": device_of(resources),
            },
            torch_config=NodeInterface(backend=torch_backend(resources)),
            scaling_config=api.ScalingConfig(
                num_workers=workers, use_gpu="GPU" in resources, resources_per_worker=resources
            ),
            run_config=api.RunConfig(name=f"steps-of-{workers}", storage_path=scratch),
        )
        found: Any = trainer.fit()
        return [float(each) for each in found.return_value]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _work(order: dict[str, Any]) -> list[float]:
    """Time the steps of each batch as one rank; ranks wait for one another in a step, so any one's clock is right."""
    import torch

    from froude.launch.worker import use_own_cores
    from froude.train.parallel import World, resolve_device
    from froude.train.trainer import Trainer

    run, device = Run.from_dict(order["run"]), resolve_device(order["device"])
    use_own_cores(run.compute.threads)
    found = []
    for batch in order["batches"]:
        short = {"tokens": batch * (WARM + STEPS), "schedule.warmup_tokens": 0, "schedule.ramp": ()}
        trainer = Trainer(
            with_batch(run, batch).replace({**short, "batch": batch, "eval_windows": 1}),
            World.current(device),
        )
        seconds = []
        for step in range(WARM + STEPS):
            began = time.perf_counter()
            trainer.step(trainer.run, step)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - began)
        found.append(statistics.median(seconds[WARM:]))
    return found
