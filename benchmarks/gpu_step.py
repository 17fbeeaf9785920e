"""A step on a GPU, ours against a plain compiled loop of the same model, in pairs; and its share of the peak.

The peer is what its users would write: the same model in bf16 autocast, torch's fused AdamW and clip_grad_norm_, losses
left on the device. It compiles model and loss as one, or block by block with the loss as it is: first each is timed
alone on the device, and the quicker one is the peer. Ours is a Run with `compute.compile = "blocks"` and all that a run
does. Both begin with the same weights, take the same windows, and alternate in blocks of steps; each pair of blocks
gives one ratio of times. Writes benchmarks/gpu_step.md on a GPU, and nothing elsewhere.

    python benchmarks/gpu_step.py [--pairs 7] [--steps 10] [--sizes 124M,350M,1B]
    python benchmarks/gpu_step.py --tiny        # on a CPU, traced, not compiled: only whether it runs
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _machine import commit, cpu

from froude.config import Run
from froude.train import api
from froude.train.parallel import World
from froude.train.parametrization import parameter_groups
from froude.train.speed.peak import peak_flops
from froude.train.trainer import Trainer

RESULT = Path(__file__).resolve().parent / "gpu_step.md"
#: Width, depth, tokens of a pass: GPT-2's small and medium shapes, and GPT-3 XL's.
SIZES = {"124M": (768, 12, 2**14), "350M": (1024, 24, 2**14), "1B": (2048, 24, 2**13)}
PASSES, CONTEXT, VOCAB = 4, 1024, 50304
#: Relative difference of the two sides' first losses, in bf16.
ALIKE = 0.01
LEAST_RATIO, LEAST_MFU = 1.0, 0.45
#: How a peer compiles, and how many blocks of steps decide between the two.
HOW, TRIED = ("whole", "blocks"), 3


def run_of(name: str, tiny: bool, steps: int) -> Run:
    width, depth, tokens = (32, 2, 128) if tiny else SIZES[name]
    batch = PASSES * tokens
    return Run(
        name=name,
        tokens=batch * steps,
        batch=batch,
        micro_batch=tokens,
        precision="bf16",
        eval_windows=1,
        seed=1,
        schedule={"warmup_tokens": 0},
        model={
            "width": width,
            "depth": depth,
            "head_dim": 16 if tiny else 64,
            "context": 32 if tiny else CONTEXT,
            "vocab": 256 if tiny else VOCAB,
            "tied": True,
            "mlp_ratio": 2.75,  # SwiGLU at nearly the parameters of their MLPs, in multiples of 64
        },
        compute={} if tiny else {"compile": "blocks"},
    )


class Peer:
    """The plain loop; its optimizer has the groups of ours, so that both make the same updates."""

    def __init__(self, run: Run, device: torch.device, how: str) -> None:
        self.run, self.device = run, device
        self.model = api.build_model(run, device)
        self.loss: Callable[[torch.Tensor], torch.Tensor] = self.plain_loss
        # Without a GPU only the tracing: a C++ compiler need not be there.
        backend = "inductor" if device.type == "cuda" else "eager"
        if how == "whole":
            self.loss = torch.compile(self.plain_loss, fullgraph=True, dynamic=False, backend=backend)
        else:
            for block in self.model.blocks():  # type: ignore[operator]
                block.compile(dynamic=False, backend=backend)
        settings = run.optimizer
        self.optimizer = torch.optim.AdamW(
            parameter_groups(run, self.model, set()), betas=(settings.beta1, settings.beta2), fused=True
        )

    def plain_loss(self, part: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device.type, torch.bfloat16):
            logits = self.model(part[:, :-1])
        summed = F.cross_entropy(logits.float().flatten(0, 1), part[:, 1:].flatten(), reduction="sum")
        return summed / self.run.batch

    def step(self, windows: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), device=self.device)
        for part in windows.split(self.run.micro_batch // self.run.model.context):
            loss = self.loss(part)
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.run.optimizer.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total


def seconds_of(how: str, run: Run, device: torch.device, steps: int) -> float:
    """A step of the peer that compiles so, alone on the device: median over blocks of steps, of any tokens."""
    peer = Peer(run, device, how)
    windows = torch.randint(run.model.vocab, (run.windows, run.model.context + 1), device=device)
    took(lambda: peer.step(windows), 2, device)
    return statistics.median(took(lambda: peer.step(windows), steps, device) for _ in range(TRIED))


def took(step: Callable[[], object], steps: int, device: torch.device) -> float:
    """Seconds of one of so many steps."""
    _wait(device)
    began = time.perf_counter()
    for _ in range(steps):
        step()
    _wait(device)
    return (time.perf_counter() - began) / steps


def measure(name: str, *, tiny: bool, pairs: int, steps: int) -> dict[str, Any]:
    """Times of both sides, and what the first losses were."""
    device = torch.device("cpu" if tiny else "cuda")
    run = run_of(name, tiny, 2 + pairs * steps)
    peers = {how: seconds_of(how, run, device, steps) for how in HOW}
    how = min(peers, key=lambda each: peers[each])
    if not tiny:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    ours, peer = Trainer(run, World(device=device)), Peer(run, device, how)
    made = {"ours": 0, "peer": 0}

    def our_step() -> float:
        made["ours"] += 1
        return ours.step(run, made["ours"] - 1).loss

    def peer_step() -> torch.Tensor:
        windows = ours.draw(made["peer"]).windows
        made["peer"] += 1
        return peer.step(windows)

    first = our_step(), float(peer_step())
    our_step()
    peer_step()
    times = []
    for number in range(pairs):
        order = [("ours", our_step), ("peer", peer_step)]
        order = order if number % 2 else order[::-1]
        times.append({side: took(step, steps, device) for side, step in order})
    seconds = {side: statistics.median(pair[side] for pair in times) for side in made}
    peak = peak_flops(device, run.precision)
    speed = run.batch / seconds["ours"]
    return {
        "name": name,
        "seconds": seconds,
        "peer": f"{how} ({', '.join(f'{each} {1e3 * peers[each]:.1f}' for each in HOW)})",
        "ratios": [pair["peer"] / pair["ours"] for pair in times],
        "tokens_per_second": speed,
        "mfu": None if peak is None else speed * ours.flops_per_token / peak,
        "peak_gib": 0.0 if tiny else torch.cuda.max_memory_allocated() / 2**30,
        "alike": abs(first[0] - first[1]) / first[1],
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def line(found: dict[str, Any]) -> str:
    low, middle, high = statistics.quantiles(found["ratios"], n=4)
    mfu = "not known" if found["mfu"] is None else f"{found['mfu']:.1%}"
    ours, peer = (1e3 * found["seconds"][side] for side in ("ours", "peer"))
    return (
        f"| {found['name']} | {ours:.1f} | {peer:.1f} | {found['peer']} | {middle:.3f} | {low:.3f} … {high:.3f} "
        f"| {found['tokens_per_second']:,.0f} | {mfu} | {found['peak_gib']:.1f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--tiny", action="store_true", help="a small model on the CPU, once; writes nothing")
    arguments = parser.parse_args()
    if not arguments.tiny and not torch.cuda.is_available():
        print("no GPU here: nothing is measured; --tiny runs the same code on the CPU")
        return 0
    pairs, steps = (3, 2) if arguments.tiny else (arguments.pairs, arguments.steps)
    where = cpu() if arguments.tiny else torch.cuda.get_device_name()
    lines = [
        "# A step on a GPU against a plain compiled loop",
        "",
        f"`python benchmarks/gpu_step.py --pairs {pairs} --steps {steps}` at commit {commit('gpu_step.py')}, "
        f"{datetime.now(UTC):%Y-%m-%d}, on one {where}, torch {torch.__version__}, bf16, seed 1.",
        "",
        "Same model, weights and windows. The peer is a plain loop that compiles model and loss as a whole, or its",
        "blocks alone, whichever is quicker: in brackets both in ms, each alone on the device. Ratio: the peer's time",
        "over ours, median and quartiles over pairs of blocks of steps. MFU counts 6 FLOPs a matrix entry and",
        "attention's in full, over the data sheet's dense bf16 peak.",
        "",
        "**What it does not show.** One GPU, no sharding, no data to wait for, no checkpoints, contexts of 1024.",
        "",
        "| model | ours, ms | peer, ms | compiled | ratio | quartiles | tokens/s | MFU | both sides' peak, GiB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    good = True
    for name in ["tiny"] if arguments.tiny else arguments.sizes.split(","):
        found = measure(name, tiny=arguments.tiny, pairs=pairs, steps=steps)
        print(text := line(found), flush=True)
        lines.append(text)
        good = good and found["alike"] <= ALIKE
        if not arguments.tiny:
            low = "H100" in where and found["mfu"] is not None and found["mfu"] < LEAST_MFU
            good = good and statistics.median(found["ratios"]) >= LEAST_RATIO and not low
    if not arguments.tiny:
        RESULT.write_text("\n".join([*lines, ""]))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
