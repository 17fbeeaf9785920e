"""Coordinate check: whether a few updates move what each block puts out equally far at every width, or depth.

A rate found on a small model holds for a larger one only if they do (Yang et al. 2203.03466, appendix D.1). The same
batch again and again, the run's own optimizer and rate, no warmup; per block and for the logits delta =
mean|x_t - x_0|, averaged over seeds; the slope of ln delta over ln width is to be near zero. At a production rate seeds
differ by a fifth after ten steps, so a slope fails when it is outside its bounds by two standard errors, and says
nothing when they are too large.

Logits of tables that start at random, tied or not, are another matter. As built they are sums of `width` random terms
over m, so they shrink as width^(-1/2); so does what the table as built makes of the blocks' moves, while what follows
the gradient, the table's own moves among it, adds up over the width and stays. The slope is between those of the two,
-1/2 and 0: nearer -1/2 the larger the table is against its moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from froude.config import ConfigError, Run
from froude.parametrizations import DEFAULT, STANDARD, Parametrization
from froude.train import api, optimizers, parallel
from froude.train.data.documents import inputs
from froude.train.data.order import Batches
from froude.train.exact.reduce import Fast
from froude.train.parallel import World
from froude.train.precision.products import autocast
from froude.train.probe.roles import miscalled
from froude.train.probe.slopes import DOWNHILL, CoordinateCheck, Over, Row, judge
from froude.train.step import train_step

TIMES, SEEDS = (1, 3, 10), 3
#: Of a run's batch at most this many are used: what is measured is a mean over them.
TOKENS = 1024


def check(
    run: Run,
    over: Over,
    sizes: Sequence[int],
    *,
    seeds: int = SEEDS,
    times: Sequence[int] = TIMES,
    device: str = "cpu",
    progress: Callable[[float, str], None] | None = None,
) -> CoordinateCheck:
    """Check a run's model, optimizer and rate as `checked` says, over width with SP as a control that must fail.

    `progress` is told the share that is done, and of what. ConfigError for fewer than three sizes, a run that can't be
    in muP, or a width that the model does not take.
    """
    if len(set(sizes)) < 3 or seeds < 1 or not times or min(times) < 1:
        raise ConfigError(
            f"a coordinate check needs three sizes, a seed and times from 1 on, but got {over} {list(sizes)}, "
            f"{seeds} seeds and times {list(times)}; add some"
        )
    under = [run.replace(parametrization=checked(run).name)]
    if over == "width":
        under.append(run.replace({"parametrization": STANDARD.name, "optimizer.decay_width": "constant"}))
    runs = [
        each.replace({f"model.{over}": size, "seed": run.seed + seed})
        for each in under
        for size in sorted(set(sizes))
        for seed in range(seeds)
    ]
    if len({each.model.architecture for each in runs}) > 1:
        raise ConfigError(
            f"sizes of a coordinate check must differ in nothing else, but {over} {list(sizes)} give other shares of "
            f"KV heads; use multiples of {run.model.unit}"
        )
    for run in {run.model.width: run for run in runs if run.model.width % run.model.head_dim}.values():
        _try(run)
    rows = measure(runs, times=times, device=device, progress=progress)
    ends = [max(runs, key=lambda run: sign * getattr(run.model, over)) for sign in (-1, 1)]
    wrong = miscalled(ends) if over == "width" else []
    return judge(over, rows, control=control_of(runs[0]), broken=wrong)


def checked(run: Run) -> Parametrization:
    """The run's parametrization if the best rate is to stay under it, else muP."""
    return run.width_rules if run.width_rules.transfers else DEFAULT


def control_of(run: Run) -> Literal["blocks", "logits"]:
    """What moves as many times further as a model is wider under SP: blocks, but logits where updates have one norm."""
    return "blocks" if checked(run).powers("hidden", run.optimizer.family()).lr == -1 else "logits"


def _try(run: Run) -> None:
    """Raise a ConfigError unless a model of one's own takes a width that is no multiple of `head_dim`."""
    try:
        with torch.no_grad():
            api.build_model(run)(torch.zeros(1, run.model.context, dtype=torch.int64))
    except Exception as error:
        says = " ".join(str(error).split())
        raise ConfigError(
            f"a model must work at each width of the check, but {run.model.factory} at {run.model.width} says: "
            f"{says}; take multiples of `model.head_dim` = {run.model.head_dim}"
        ) from error


def sizes_of(run: Run) -> list[int]:
    """Doublings of the width from 64 on, or from the next multiple of the head, or of heads that share keys.

    Five of them; three from widths on that only shared keys ask for.
    """
    first = -(-64 // run.model.unit) * run.model.unit
    return [first << i for i in range(5 if first <= 256 else 3)]


def short(run: Run, steps: int) -> Run:
    """The run as `steps` steps on at most TOKENS tokens: constant rate, no warmup, one worker."""
    batch = min(run.windows, max(1, TOKENS // run.model.context)) * run.model.context
    few = {"batch": batch, "tokens": batch * steps, "slots": 1, "workers": 1, "micro_batch": 0}
    return run.pinned().replace({"schedule": {"name": "constant"}, "reduction": "fast", **few}, name=run.name)


def first_batch(run: Run, device: torch.device) -> Tensor:
    """The run's first windows, int64 [windows, context + 1]."""
    source = api.build_source(run, "train")
    batches = Batches(source, run.seed, run.windows, 1, documented=run.model.documents)
    return torch.from_numpy(batches.slot(0, 0).windows).to(device)


def measure(
    runs: Sequence[Run],
    *,
    times: Sequence[int] = TIMES,
    device: str = "cpu",
    progress: Callable[[float, str], None] | None = None,
) -> list[Row]:
    """Train each run on one batch for max(times) steps; delta and scale = mean|x_t| of blocks and logits as rows.

    Where logits start at zero, one more row: delta is how far the first update moves them along the loss's gradient,
    the mean over targets of the target's logit less the mean logit, and scale their mean|x_1|.
    """
    runs = [short(run, max(times)) for run in runs]
    world = World(device=parallel.resolve_device(device))
    costs = [api.build_model(run, "meta").flops_per_token() * run.tokens for run in runs]  # type: ignore[operator]
    rows: list[Row] = []
    for number, run in enumerate(runs):
        done = sum(costs[:number])
        model = api.build_model(run, world.device)
        optimizer, reduction = optimizers.build(run, model, world), Fast(run, model, world)
        windows = first_batch(run, world.device)
        start = outputs(model, windows, run)
        rows += [_row(run, name, 0, torch.zeros_like(x), x, True) for name, x in start.items()]
        for step in range(run.steps):
            finite = train_step(model, optimizer, reduction, windows, run, step).finite
            if step + 1 in times:
                now = outputs(model, windows, run)
                rows += [_row(run, name, step + 1, x - start[name], x, finite) for name, x in now.items()]
            if step == 0 and not start["logits"].any():
                moved = now["logits"] if 1 in times else outputs(model, windows, run)["logits"]
                target = moved.gather(-1, windows[:, 1:, None]).squeeze(-1)
                rows.append(_row(run, DOWNHILL, 1, (target - moved.mean(-1)).mean(), moved, finite))
            if progress:
                share = (done + costs[number] * (step + 1) / run.steps) / sum(costs)
                size = f"width {run.model.width}, depth {run.model.depth}"
                progress(share, f"{run.parametrization}, {size}, seed {run.seed}")
    return rows


def _row(run: Run, name: str, t: int, moved: Tensor, now: Tensor, finite: bool) -> Row:
    sizes = {"width": run.model.width, "depth": run.model.depth}
    delta, scale = (float(x.abs().double().mean()) if finite else math.nan for x in (moved, now))
    where = {"parametrization": run.parametrization, **sizes, "seed": run.seed, "name": name, "t": t}
    return {**where, "delta": delta, "scale": scale}


@torch.no_grad()
def outputs(model: nn.Module, windows: Tensor, run: Run) -> dict[str, Tensor]:
    """What each block and the whole model put out for a batch, without dropout, in fp32."""
    seen: dict[str, Tensor] = {}
    with _watching(model, seen):
        model.eval()
        with autocast(run, windows.device):
            seen["logits"] = model(*inputs(windows))
        model.train()
    return {name: x.float() for name, x in seen.items()}


@contextmanager
def _watching(model: nn.Module, seen: dict[str, Tensor]) -> Iterator[None]:
    def keep(name: str, module: nn.Module, arguments: Any, output: Any) -> None:
        seen[name] = (output if isinstance(output, Tensor) else output[0]).detach().clone()

    blocks = model.blocks()  # type: ignore[operator]
    hooks = [block.register_forward_hook(partial(keep, f"blocks.{i}")) for i, block in enumerate(blocks)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
