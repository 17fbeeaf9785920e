"""How long steps take here: a short timing of the real models, kept for the next time."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from froude.config import ConfigError, Run

SHAPES = 3  # timed, from the cheapest step to the most expensive that is affordable
#: FLOPs of a step, a second or two of one thread: the models of a GPU study are not run on a CPU to plan it.
AFFORDABLE = 3e10
SECONDS = 0.4  # of timing per shape
INSTEAD = ", by the package's own model, as yours can't be made small enough"


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def step_flops(run: Run) -> float:
    """FLOPs of one optimizer step at the run's `batch`, what estimates of the curvature take included."""
    passes = 1.0 if run.trainer.command else run.optimizer.spec.passes(run.optimizer)
    return model_size(run)[0] * run.batch * passes


_sizes: dict[str, tuple[float, int, int]] = {}


def model_size(run: Run) -> tuple[float, int, int]:
    """FLOPs of a token, parameters with embeddings, bytes of optimizer state; a shape is built once, without memory."""
    from froude.train.api import build_model, count_parameters
    from froude.train.optimizers import state_bytes
    from froude.train.size import size_of

    if run.trainer.command:
        size = size_of(run)
        return size.flops_per_token, size.params_with_embeddings or size.params, 0
    optimizer = [run.optimizer.name, run.optimizer.options, sorted(run.optimizer.multipliers)]
    shape = json.dumps([run.to_dict()["model"], optimizer, run.parametrization], sort_keys=True)
    if shape not in _sizes:
        model = build_model(run, "meta")
        flops = float(model.flops_per_token())  # type: ignore[operator]
        _sizes[shape] = flops, count_parameters(model).params_with_embeddings, state_bytes(run, model)
    return _sizes[shape]


class Speed:
    """CPU seconds of a step here, on its run's threads, interpolated between a few shapes by their FLOPs.

    `instead` says that these are of another model than the runs', else empty.
    """

    def __init__(self, points: Sequence[tuple[float, float]], instead: str = "") -> None:
        self.points, self.instead = sorted(points), instead

    def seconds(self, flops: float) -> float:
        """Seconds of a step of `flops` FLOPs: piecewise a power of the FLOPs, beyond the ends proportional to them."""
        below = [point for point in self.points if point[0] <= flops]
        above = [point for point in self.points if point[0] >= flops]
        if not below or not above:
            at, seconds = self.points[0] if not below else self.points[-1]
            return seconds * flops / at
        (x0, y0), (x1, y1) = below[-1], above[0]
        share = 0.0 if x0 == x1 else math.log(flops / x0) / math.log(x1 / x0)
        return math.exp(math.log(y0) + share * math.log(y1 / y0))


def measure(runs: Sequence[Run]) -> Speed:
    """Time a few of these runs' steps on the CPU, or read what an earlier call of this machine and torch found."""
    ranked = sorted(
        {run.fingerprint: (step_flops(run), run) for run in runs}.values(), key=lambda item: item[0]
    )
    cheap = [item for item in ranked if item[0] <= AFFORDABLE] or [_stand_in(ranked[0][1])]
    factories = {run.model.factory for _, run in ranked}
    instead = "" if cheap[0][1].model.factory in factories else INSTEAD
    chosen = [cheap[round(i * (len(cheap) - 1) / (SHAPES - 1))] for i in range(SHAPES)]
    shapes = dict(chosen)
    file = _cache(list(shapes.values()))
    try:
        return Speed([(float(x), float(y)) for x, y in json.loads(file.read_text())], instead)
    except (OSError, ValueError, TypeError):
        points = [(flops, _time(run)) for flops, run in shapes.items()]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(points))
    except OSError:
        pass  # a plan without a cache is only slower
    return Speed(points, instead)


def _stand_in(run: Run) -> tuple[float, Run]:
    """A step of one window through one narrow layer in fp32 (on a CPU bf16 can be ten times as slow), and its FLOPs.

    A model that cannot be so small is stood for by the package's own.
    """
    shape = run.model
    context = min(256, shape.context)
    small = {"model.width": 2 * shape.head_dim, "model.depth": 1, "model.context": context}
    own = {"model": {"context": context, "vocab": shape.vocab, "depth": 1}}
    short = {
        "batch": context,
        "tokens": context,
        "slots": 1,
        "workers": 1,
        "micro_batch": 0,
        "precision": "fp32",
    }
    flat = {"schedule.warmup_tokens": 0, "schedule.ramp": ()}
    try:
        made = run.pinned().replace({**small, **short, **flat})
        return step_flops(made), made
    except ConfigError:
        made = run.pinned().replace({**own, **short, **flat})
        return step_flops(made), made


def as_timed(run: Run) -> Run:
    """The run without what only a GPU can do, or what takes minutes to compile."""
    changes: dict[str, str] = {}
    if run.precision in ("tf32", "fp8"):
        changes["precision"] = "fp32"
    if run.compute.compile != "none":
        changes["compute.compile"] = "none"
    return run.replace(changes) if changes else run


def _cache(runs: Sequence[Run]) -> Path:
    import torch

    known = json.dumps(
        [
            torch.__version__,
            platform.node(),
            platform.processor(),
            sorted(r.fingerprint + r.compute.model_dump_json() for r in runs),
        ]
    )
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "froude"
    return folder / f"speed-{hashlib.sha256(known.encode()).hexdigest()[:16]}.json"


def _time(run: Run) -> float:
    from froude.train.trainer import Trainer

    run = as_timed(run)
    with clock(run) as now:
        trainer = Trainer(run.replace(eval_windows=1))
        trainer.step(run, 0)
        times: list[float] = []
        while not times or (sum(times) < SECONDS and len(times) < 50):
            before = now()
            trainer.step(run, 1 + len(times))
            times.append(now() - before)
    return statistics.median(times)


@contextmanager
def clock(run: Run) -> Iterator[Callable[[], float]]:
    """Inside, torch computes with the run's threads; yields what tells CPU seconds, those of idle threads included."""
    import torch

    threads, had = threads_of(run), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield time.thread_time if threads == 1 else lambda: threads * time.perf_counter()
    finally:
        torch.set_num_threads(had)


def threads_of(run: Run) -> int:
    """Threads of a worker that this machine has cores for."""
    return min(run.compute.threads or 1, cores())
