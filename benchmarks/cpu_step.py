"""A training step on a CPU: `compute.kernels` "fast" and "plain" against a plain PyTorch loop of the same model.

The peer is the package's model with torch's fused attention in a loop as one writes it: its windows lie ready, loss,
backward, `clip_grad_norm_`, torch's AdamW (fused; as quick as foreach or quicker here), with the same groups and rates.
A second one compiles that model whole; ours by blocks, as `compute.compile` does.
Sides train the same windows from the same weights, and take turns step by step; each turn gives a ratio. At one thread
times are CPU seconds of that thread, so that other processes disturb little. Then the same step at one and two threads
by the wall clock, which needs a quiet machine. And a step's matrix products alone, by the quicker of torch's libraries:
whatever is around them, no step is faster than that. Writes benchmarks/cpu_step.md.

    python benchmarks/cpu_step.py [--turns 60] [--widths 64 128 256] [--head-dim 32] [--one-thread] [--out FILE]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch
from _machine import commit, hardware

from froude import schedules
from froude.config import ConfigError, Run
from froude.train import kernels
from froude.train.api import build_model
from froude.train.objective import summed_loss
from froude.train.parametrization import parameter_groups
from froude.train.trainer import Trainer

RESULT = Path(__file__).resolve().parent / "cpu_step.md"
CONTEXT, BATCH, WARM = 64, 1024, 3
PEER = "plain PyTorch, fp32"
Step = Callable[[int], tuple[float, float]]


def run_of(width: int, head_dim: int, precision: str, kind: str, compiled: bool = False) -> Run:
    return Run(
        tokens=BATCH * 1000,
        batch=BATCH,
        precision=precision,
        eval_windows=1,
        model={"width": width, "depth": 2, "context": CONTEXT, "head_dim": head_dim},
        compute={"kernels": kind, "compile": "blocks" if compiled else "none"},
    )


def ours(run: Run, clock: Callable[[], float]) -> Step:
    """Seconds and loss of a step of the package, its drawing of data and its checks included."""
    trainer = Trainer(run)

    def step(number: int) -> tuple[float, float]:
        before = clock()
        result = trainer.step(run, number)
        return clock() - before, result.loss

    return step


def peer(run: Run, clock: Callable[[], float], compiled: bool = False) -> Step:
    """Seconds and loss of a step of a plain loop; drawing its data takes no time."""
    trainer = Trainer(run)
    model = trainer.model
    if compiled:
        model.compile(dynamic=False)
    optimizer = torch.optim.AdamW(
        parameter_groups(run, model), betas=(run.optimizer.beta1, run.optimizer.beta2), fused=True
    )

    def step(number: int) -> tuple[float, float]:
        windows = trainer.draw(number).windows
        share = schedules.at_step(run, number)
        before = clock()
        loss = summed_loss(model, windows, run) / BATCH
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), run.optimizer.clip)
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * share
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = float(loss.detach())
        return clock() - before, value

    return step


def sides_of(width: int, head_dim: int, clock: Callable[[], float]) -> dict[str, Step]:
    found: dict[str, Step] = {}
    for precision in ("fp32", "bf16"):
        plain = run_of(width, head_dim, precision, "plain")
        found[f"plain PyTorch, {precision}"] = peer(plain, clock)
        found[f"plain PyTorch compiled, {precision}"] = peer(plain, clock, compiled=True)
    for precision in ("fp32", "bf16"):
        for kind in ("plain", "fast", "fast and compiled"):
            run = run_of(width, head_dim, precision, kind.split()[0], compiled="compiled" in kind)
            try:
                found[f"{kind}, {precision}"] = ours(run, clock)
            except ConfigError as error:
                print(error, flush=True)
    return found


def timed(sides: dict[str, Step], turns: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds and losses by side; who begins a turn changes, so that nobody always follows the same one."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(WARM + turns):
        for i in range(len(names)):
            name = names[(number + i) % len(names)]
            found[name].append(sides[name](number))
    return {name: rows[WARM:] for name, rows in found.items()}


def ratios(slow: list[tuple[float, float]], quick: list[tuple[float, float]]) -> str:
    """Median of the turns' ratios with their quartiles, and the ratio of the least times."""
    turns = [a[0] / b[0] for a, b in zip(slow, quick, strict=True)]
    low, _, high = statistics.quantiles(turns, n=4)
    least = min(slow)[0] / min(quick)[0]
    return f"{statistics.median(turns):.2f} [{low:.2f}, {high:.2f}] | {least:.2f}"


def one_thread(widths: list[int], head_dim: int, turns: int) -> tuple[list[str], dict[int, float]]:
    """The table, and the peer's least seconds by width."""
    torch.set_num_threads(1)
    lines = [
        "| width | side | least ms | times as fast as the peer: median [quartiles] | by least times | loss off by |",
        "|---|---|---|---|---|---|",
    ]
    least = {}
    for width in widths:
        found = timed(sides_of(width, head_dim, time.thread_time), turns)
        least[width] = min(found[PEER])[0]
        for name, rows in found.items():
            apart = max(abs(a[1] - b[1]) / b[1] for a, b in zip(rows, found[PEER], strict=True))
            lines.append(
                f"| {width} | {name} | {min(rows)[0] * 1e3:.1f} | {ratios(found[PEER], rows)} | {apart:.0e} |"
            )
            print(lines[-1], flush=True)
    return lines, least


def least_seconds(
    left: torch.Tensor, right: torch.Tensor, settings: tuple[str, ...], repeats: int = 30
) -> float:
    """Least CPU seconds of their product, by the quickest setting."""
    found, before = [], torch.get_float32_matmul_precision()
    for setting in settings:
        torch.set_float32_matmul_precision(setting)
        for _ in range(repeats):
            began = time.thread_time()
            left @ right
            found.append(time.thread_time() - began)
    torch.set_float32_matmul_precision(before)
    return min(found)


def libraries() -> str:
    """What each library multiplies fp32 matrices of 1024 a side with, on one thread."""
    torch.set_num_threads(1)
    square = torch.randn(1024, 1024)
    of = {"MKL": ("highest",), "oneDNN": ("medium",)}
    return ", ".join(
        f"{name} {2 * 1024**3 / least_seconds(square, square, setting) / 1e9:.0f} GFLOP/s"
        for name, setting in of.items()
    )


def products_with_weights(run: Run, settings: tuple[str, ...]) -> tuple[float, float]:
    """Least CPU seconds of all products of a step with weights, and their FLOPs."""
    seconds = flops = 0.0
    for name, weight in build_model(run).named_parameters():
        if weight.ndim != 2 or "embed" in name:
            continue
        w = weight.detach().to(dtype_of(run))
        y, x = (torch.randn(BATCH, size).to(dtype_of(run)) for size in w.shape)
        # Forward; the gradients of what came in, and of the weight.
        seconds += sum(least_seconds(*pair, settings) for pair in ((x, w.T), (y, w), (y.T, x)))
        flops += 3 * 2.0 * BATCH * w.numel()
    return seconds, flops


def products_of_attention(run: Run, settings: tuple[str, ...]) -> float:
    """Least CPU seconds of a step's products of tokens with one another, as batched ones over all pairs of a window."""
    heads = BATCH // CONTEXT * run.model.width // run.model.head_dim
    each = torch.randn(heads, CONTEXT, run.model.head_dim).to(dtype_of(run))
    pairs = torch.randn(heads, CONTEXT, CONTEXT).to(dtype_of(run))
    # Scores and weighted values; then, backward, the gradients of weights, of values, queries and keys.
    kinds = ((each, each.mT), 2), ((pairs, each), 2), ((pairs.mT, each), 2)
    return run.model.depth * sum(times * least_seconds(*kind, settings) for kind, times in kinds)


def dtype_of(run: Run) -> torch.dtype:
    return torch.bfloat16 if run.precision == "bf16" else torch.float32


def bounds(widths: list[int], head_dim: int, turns: int, before: dict[int, float]) -> list[str]:
    """What a step could gain at most: the peer's least time, now and `before`, over that of its products."""
    torch.set_num_threads(1)
    lines = [
        "## What any kernels could gain",
        "",
        "A step's products, each by the quicker of MKL and oneDNN: if all else (norms, softmax, loss, optimizer,",
        "autograd) took no time, a step would be so many times as fast as the peer. Attention's are batched ones over",
        "all pairs of a window. The peer's least time here and that in the table above are of different moments,",
        "so the bound is a range between both.",
        "",
        "| width | precision | peer, least ms | products with weights, ms | GFLOP/s in them | those of attention, ms "
        "| at most, by weights | at most, by both |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for width in widths:
        step = peer(run_of(width, head_dim, "fp32", "plain"), time.thread_time)
        least = min(step(number)[0] for number in range(WARM + turns))
        for precision, settings in (("fp32", ("highest", "medium")), ("bf16", ("highest",))):
            run = run_of(width, head_dim, precision, "plain")
            weights, flops = products_with_weights(run, settings)
            attention = products_of_attention(run, settings)
            lines.append(
                f"| {width} | {precision} | {least * 1e3:.1f} | {weights * 1e3:.1f} | {flops / weights / 1e9:.0f} | "
                f"{attention * 1e3:.1f} | {at_most(weights, before[width], least)} | "
                f"{at_most(weights + attention, before[width], least)} |"
            )
            print(lines[-1], flush=True)
    return [*lines, ""]


def at_most(alone: float, *least: float) -> str:
    """The range of what a step could gain at most."""
    return f"{min(least) / alone:.2f} to {max(least) / alone:.2f}"


def two_threads(widths: list[int], head_dim: int, turns: int) -> list[str]:
    lines = [
        "## Two threads in one worker, wall clock",
        "",
        "| width | side | two threads, times as fast as one: median [quartiles] | by least times |",
        "|---|---|---|---|",
    ]
    for width in widths:
        for name, step in sides_of(width, head_dim, time.perf_counter).items():
            if name.startswith("plain PyTorch") or "compiled" in name:
                continue
            rows: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
            for number in range(WARM + turns):
                for threads in (1, 2):
                    torch.set_num_threads(threads)
                    rows[threads].append(step(2 * number + threads))
            lines.append(f"| {width} | {name} | {ratios(rows[1][WARM:], rows[2][WARM:])} |")
            print(lines[-1], flush=True)
    torch.set_num_threads(1)
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--head-dim", type=int, default=32)
    parser.add_argument("--one-thread", action="store_true", help="leave out the part for a quiet machine")
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    about = hardware()
    table, least = one_thread(asked.widths, asked.head_dim, asked.turns)
    text = [
        "# A training step on a CPU",
        "",
        f"{about}; torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}; commit "
        f"{commit('cpu_step.py')}, {datetime.now(UTC):%Y-%m-%d}. {asked.turns} turns, 2 blocks, heads of "
        f"{asked.head_dim}, context {CONTEXT}, {BATCH} tokens a step. Relative error of a matrix product of "
        f"fast kernels in fp32: {kernels.matmul_error():.1e}, at most {kernels.BOUND:.0e} is allowed. "
        f"Products of fp32 on one thread: {libraries()}.",
        "",
        "Made by `python benchmarks/cpu_step.py`, whose head says what is compared.",
        "",
        "## One thread, CPU seconds",
        "",
        *table,
        "",
        *bounds(asked.widths, asked.head_dim, asked.turns, least),
        *([] if asked.one_thread else two_threads(asked.widths, asked.head_dim, asked.turns // 2)),
        "## What it does not show",
        "",
        "- Compiled blocks in exact runs, which refuse those that change a bit, or in most proxies: a process takes",
        "  5 to 17 seconds to compile, longer than these train. The rows without them are theirs.",
        "- Models by a factory of one's own: of fast kernels they have the matrix products only, and torch's fused",
        "  attention is slow beside those at short windows.",
        "- Windows beyond 64 tokens. Beyond 512 attention is torch's own in both.",
        "- Another processor. In fp32 fast kernels gain what oneDNN is faster than MKL at products of matrices,",
        "  and little where the two are alike (`cpu_step_zen4.md`). `froude plan` times both where it runs.",
        "",
    ]
    asked.out.write_text("\n".join(text))


if __name__ == "__main__":
    main()
