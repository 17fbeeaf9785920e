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
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from froude.config import ConfigError, Run
from froude.parametrizations import DEFAULT, PARAMETRIZATIONS, STANDARD, Parametrization
from froude.train import api, optimizers, parallel
from froude.train.data.documents import inputs
from froude.train.data.order import Batches
from froude.train.exact.reduce import Fast
from froude.train.parallel import World
from froude.train.precision.products import autocast
from froude.train.step import train_step

Over = Literal["width", "depth"]
Verdict = Literal["passed", "failed", "inconclusive"]
Row = dict[str, Any]

TIMES, SEEDS = (1, 3, 10), 3
#: Of a run's batch at most this many are used: what is measured is a mean over them.
TOKENS = 1024
#: Slopes over width of a block and of logits, and the last block's over depth, where averages over random branches
#: shrink: bounds from 2-layer and 2- to 16-layer GPTs, where muP had -0.04 to 0.00, and depth scaling -0.32 to +0.14.
BLOCK, LOGITS, LAST_BLOCK = (-0.05, 0.05), (-0.05, 0.05), (-0.45, 0.15)
#: Slopes of logits and of blocks where logits start at random: the rule above with the same margin; and blocks, which
#: follow the gradient of such logits. At rates .001 to .02, widths 64 to 1024, tied tables of sd .1 to 1 had -0.46 to
#: -0.08 (blocks -0.16 to +0.09), untied ones of sd .5 and .02 -0.42 to -0.01 (blocks -0.21 to +0.06).
RANDOM_LOGITS, RANDOM_BLOCK = (-0.55, 0.05), (-0.30, 0.10)
#: Their slope as built where they are divided by m: -1/2, or -1 where the table shrinks as 1/sqrt(width) by itself. The
#: upper bound is half-way to that of a multiplier of 1/sqrt(m), which the moves don't show. Measured: -0.49 to -0.47;
#: with that multiplier +0.03.
AS_BUILT, BUILT = "logits as built", (-1.1, -0.25)
#: A check without power passes anything: under SP some block, or the logits, must reach this slope over width.
CONTROL = 0.5
NOISE = 0.15  # standard error of a slope from which on it says nothing
SCATTER = 0.2  # between seeds, relative, where a single one does not show it


@dataclass(frozen=True)
class Slope:
    """Of ln delta over ln size for one block or the logits after t updates; `top`: over the three largest sizes only.

    At t = 0, as built, that of ln mean|x_0| of logits. NaN where a size did not move, or diverged. `se` is the standard
    error from the seeds, `low` and `high` the bounds.
    """

    parametrization: str
    name: str
    t: int
    slope: float
    se: float
    top: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """failed: more than two standard errors off the bounds; inconclusive: nearer, but they are too large to say."""
        if not (self.low <= self.slope + 2 * self.se and self.slope - 2 * self.se <= self.high):
            return "failed"
        return "inconclusive" if self.se > NOISE else "passed"

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"

    def line(self) -> str:
        """The slope, its standard error and the bounds, in words."""
        where = f"{self.name} of {self.parametrization} at t = {self.t}"
        off = "outside" if self.verdict == "failed" else "too uncertain to place in"
        return (
            f"{where}: slope {self.slope:+.3f} (se {self.se:.3f}) {off} {self.low:+.2f} to {self.high:+.2f}"
        )


@dataclass(frozen=True)
class CoordinateCheck:
    """What was measured over `over` (one row a run, block and t), the slopes that are judged, and the verdict."""

    over: Over
    rows: tuple[Row, ...]
    slopes: tuple[Slope, ...]
    verdict: Verdict
    reasons: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        slopes = [
            {**asdict(slope), "passed": slope.passed, "verdict": slope.verdict} for slope in self.slopes
        ]
        head = {"over": self.over, "passed": self.passed, "verdict": self.verdict}
        return {**head, "reasons": list(self.reasons), "slopes": slopes, "rows": list(self.rows)}

    def lines(self) -> list[str]:
        """The slopes as a table, and the verdict."""
        times = sorted({slope.t for slope in self.slopes})
        found = {(s.parametrization, s.name, s.t): s for s in self.slopes}
        text = [f"{'slope of ln delta':<20}" + "".join(f"{f't = {t}':>15}" for t in times) + "   bounds"]
        for p, name in dict.fromkeys((s.parametrization, s.name) for s in self.slopes):
            row = [found.get((p, name, t)) for t in times]
            cells = "".join(f"{'-' if s is None else f'{s.slope:+.2f} ± {2 * s.se:.2f}':>15}" for s in row)
            (low, high) = next((s.low, s.high) for s in row if s is not None)
            control = self.over == "width" and not _transfers(p)
            rule = "control" if control else f"{low:+.2f} to {high:+.2f}"
            text.append(f"{p + ' ' + name:<20}{cells}   {rule}")
        why = f": {'; '.join(self.reasons)}" if self.reasons else ""
        return [*text, f"coordinate check over {self.over} {self.verdict}{why}"]


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
    for run in {run.model.width: run for run in runs if run.model.width % run.model.head_dim}.values():
        _try(run)
    rows = measure(runs, times=times, device=device, progress=progress)
    return judge(over, rows, control=control_of(runs[0]))


def checked(run: Run) -> Parametrization:
    """The run's parametrization if the best rate is to stay under it, else muP."""
    return run.width_rules if run.width_rules.transfers else DEFAULT


def control_of(run: Run) -> Literal["blocks", "logits"]:
    """What moves as many times further as a model is wider under SP: blocks, but logits where updates have one norm."""
    return "blocks" if checked(run).powers("hidden", run.optimizer.family()).lr == -1 else "logits"


def _transfers(parametrization: str) -> bool:
    return PARAMETRIZATIONS[parametrization].transfers


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
    """Train each run on one batch for max(times) steps; delta and scale = mean|x_t| of blocks and logits as rows."""
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


def judge(
    over: Over, rows: Sequence[Row], *, control: Literal["blocks", "logits"] = "blocks"
) -> CoordinateCheck:
    """Slopes of what `measure` found, their bounds and the verdict; SP's blocks or logits must be seen to move."""
    slopes = tuple(_slopes(over, rows))
    level = [slope for slope in slopes if _transfers(slope.parametrization)]
    failed = [slope.line() for slope in level if slope.verdict == "failed"]
    if not level:
        failed.append("nothing moved")
    if failed:
        return CoordinateCheck(over, tuple(rows), slopes, "failed", tuple(failed))
    unclear = [slope for slope in level if slope.verdict == "inconclusive"]
    reasons = [slope.line() for slope in unclear]
    if unclear:
        seeds = len({row["seed"] for row in rows})
        enough = seeds * (max(slope.se for slope in unclear) / NOISE) ** 2
        reasons[-1] += f"; add --seeds {max(2 * seeds, math.ceil(enough))}"
    seen = [
        s.slope
        for s in slopes
        if not _transfers(s.parametrization) and (s.name == "logits") == (control == "logits")
    ]
    if seen and not any(slope >= CONTROL or math.isnan(slope) for slope in seen):
        reached = f"the control, {STANDARD.label}, reaches only {max(seen):+.3f} instead of {CONTROL:+.1f}"
        reasons.append(f"{reached}, so the check has no power; add wider --widths, or raise the rate")
    return CoordinateCheck(over, tuple(rows), slopes, "inconclusive" if reasons else "passed", tuple(reasons))


def _slopes(over: Over, rows: Sequence[Row]) -> Iterator[Slope]:
    random = any(row["name"] == "logits" and row["t"] == 0 and row["scale"] for row in rows)
    bounds = {"logits": RANDOM_LOGITS if random else LOGITS, "last block": LAST_BLOCK}
    if over == "depth":
        rows = [{**row, "name": "last block"} for row in rows if row["name"] == f"blocks.{row['depth'] - 1}"]
    for p, name, t in dict.fromkeys((row["parametrization"], row["name"], row["t"]) for row in rows):
        here = [row for row in rows if (row["parametrization"], row["name"], row["t"]) == (p, name, t)]
        sizes = sorted({row[over] for row in here})
        deltas = [[row["delta"] for row in here if row[over] == size] for size in sizes]
        # With a readout of zeros the first gradient is zero except for its own: decay alone moves the blocks.
        if any(map(any, deltas)) and (random or t > 1 or name == "logits"):
            (slope, se), (top, _) = _fit(sizes, deltas), _fit(sizes[-3:], deltas[-3:])
            low, high = bounds.get(name, RANDOM_BLOCK if random else BLOCK)
            yield Slope(p, name, t, slope, se, top, low, high)
        elif random and t == 0 and name == "logits" and _transfers(p):
            built = [[row["scale"] for row in here if row[over] == size] for size in sizes]
            (slope, se), (top, _) = _fit(sizes, built), _fit(sizes[-3:], built[-3:])
            higher = PARAMETRIZATIONS[p].logits + 1
            yield Slope(p, AS_BUILT, t, slope, se, top, *(bound + higher for bound in BUILT))


def _fit(sizes: Sequence[int], deltas: Sequence[Sequence[float]]) -> tuple[float, float]:
    """OLS slope of ln mean delta over ln size, and its standard error from the scatter of each size's seeds."""
    means = np.array([np.mean(each) for each in deltas])
    if not (np.isfinite(means).all() and (means > 0).all()):
        return math.nan, 0.0
    x = np.log(sizes) - np.log(sizes).mean()
    weights = x / (x @ x)
    errors = [
        np.std(each, ddof=1) / np.mean(each) / len(each) ** 0.5 if len(each) > 1 else SCATTER
        for each in deltas
    ]
    return float(weights @ np.log(means)), float(np.linalg.norm(weights * errors))
