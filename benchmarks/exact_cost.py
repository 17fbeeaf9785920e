"""What bitwise exactness costs: step time and memory of `reduction = "exact"` against `fast`, in the same processes.

Both sides train the same model with the same micro-batches of one slot; they alternate step by step, and each pair
gives one ratio of step times. `fast` synchronises once a step. Memory is what a step of each adds to the peak of the
process, of a model large enough to see it. Writes benchmarks/exact_cost.md.

    python benchmarks/exact_cost.py [--pairs 40] [--width 256] [--seed 0]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from _machine import commit, cpu

HERE = Path(__file__).resolve().parent
RESULT = HERE / "exact_cost.md"
#: Workers, slots, schedule, and the bound on the ratio, where there is one.
TIMED = (
    (4, 4, "cyclic", 1.15),
    (2, 12, "cyclic", 1.25),
    (3, 12, "cyclic", 1.25),
    (2, 12, "block", None),
    (3, 12, "block", None),
)
WEIGHED = ((1, 16, "cyclic"), (2, 16, "cyclic"), (3, 16, "cyclic"), (4, 16, "cyclic"), (4, 4, "cyclic"))
CONTEXT = 64
WINDOWS = {"time": 8, "memory": 1}  # of a slot; activations would hide what a gradient takes


def run(slots: int, schedule: str, reduction: str, order: dict[str, Any]) -> Any:
    from froude.config import Run

    slot = WINDOWS[order["what"]] * CONTEXT
    return Run(
        tokens=slot * slots * 1000,
        batch=slot * slots,
        slots=slots,
        micro_batch=slot,
        reduction=reduction,
        slot_schedule=schedule,
        seed=order["seed"],
        eval_windows=1,
        model={"width": order["width"], "depth": order["depth"], "context": CONTEXT},
        optimizer={"implementation": "foreach"},
    )


def peak_after(work: Any) -> int:
    """Bytes by which the resident memory of this process rises above its present level while it works."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


def join(order: dict[str, Any]) -> None:
    """Make this process a rank of its group."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=f"file://{order['folder']}/group",
        rank=order["rank"],
        world_size=order["world"],
        timeout=timedelta(seconds=300),
    )


def rank_main(order: dict[str, Any]) -> None:
    """One rank of one setting: prints its ratios, or its bytes, if it is rank 0."""
    import torch
    import torch.distributed as dist

    from froude.train.parallel import World
    from froude.train.trainer import Trainer

    torch.set_num_threads(1)
    rank, world = order["rank"], order["world"]
    if world > 1:
        join(order)
    settings = (order["slots"], order["schedule"])
    runs = {name: run(*settings, name, order) for name in ("fast", "exact")}
    trainers = {name: Trainer(each, World.current("cpu")) for name, each in runs.items()}
    for trainer in trainers.values():
        trainer.state()

    def step(name: str, number: int) -> float:
        if world > 1:
            dist.barrier()
        began = time.perf_counter()
        trainers[name].step(runs[name], number)
        if world > 1:
            dist.barrier()
        return time.perf_counter() - began

    for number in range(2):
        for name in trainers:
            step(name, number)
    if order["what"] == "time":
        times = []
        for number in range(2, 2 + order["pairs"]):
            names = ("fast", "exact") if number % 2 else ("exact", "fast")
            times.append({name: step(name, number) for name in names})
        found: Any = times
    else:
        gradient = 4 * sum(p.numel() for p in trainers["fast"].model.parameters() if p.requires_grad)
        found = {"gradient": gradient}
        for name in trainers:
            found[name] = min(peak_after(lambda name=name: step(name, 3)) for _ in range(3))
    if rank == 0:
        print(json.dumps(found), flush=True)
    if world > 1:
        dist.barrier()
    os._exit(0)  # torch's own threads sometimes abort an ordinary exit


def measure(**order: Any) -> Any:
    """What rank 0 of a group of processes prints."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", json.dumps({**order, "rank": rank, "folder": folder})],
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "262144"},
            )
            for rank in range(order["world"])
        ]
        out = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"a rank of {order} failed")
    return json.loads(out[0])


def formula(slots: int, world: int) -> float:
    """Extra memory of cyclic in units of the gradient: (k - 1) / W, k the most nodes that wait after a whole round."""
    rounds = -(-slots // world)
    waiting = max((i * world).bit_count() for i in range(rounds))
    return max(0, waiting - 1) / world


def rows(pairs: int, width: int, seed: int) -> Iterator[tuple[str, bool]]:
    yield "| workers | slots | schedule | exact / fast | quartiles | bound |\n|---|---|---|---|---|---|", True
    for world, slots, schedule, bound in TIMED:
        times = measure(
            what="time",
            world=world,
            slots=slots,
            schedule=schedule,
            width=width,
            depth=2,
            seed=seed,
            pairs=pairs,
        )
        ratios = [pair["exact"] / pair["fast"] for pair in times]
        low, middle, high = statistics.quantiles(ratios, n=4)
        fine = bound is None or middle <= bound
        limit = f"≤ {bound}" if bound else "–"
        yield f"| {world} | {slots} | {schedule} | {middle:.2f} | {low:.2f} … {high:.2f} | {limit} |", fine
    yield (
        "\n| workers | slots | extra memory, in gradients | formula | difference |\n|---|---|---|---|---|",
        True,
    )
    for world, slots, schedule in WEIGHED:
        found = measure(
            what="memory", world=world, slots=slots, schedule=schedule, width=512, depth=6, seed=seed, pairs=0
        )
        extra, due = (found["exact"] - found["fast"]) / found["gradient"], formula(slots, world)
        yield f"| {world} | {slots} | {extra:.2f} | {due:.2f} | {extra - due:+.2f} |", extra <= due + 0.15


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank_main(json.loads(arguments.rank))
        return 0
    lines = [
        '# What `reduction = "exact"` costs',
        "",
        f"`python benchmarks/exact_cost.py --pairs {arguments.pairs} --width {arguments.width} --seed "
        f"{arguments.seed}` at commit {commit()}, {datetime.now(UTC):%Y-%m-%d}, on {cpu()} "
        f"(shared), one thread a worker, gloo. Width {arguments.width}, 2 layers, 512 tokens a slot; the ratio is the "
        f"median of {arguments.pairs} interleaved pairs of steps. Memory: width 512, 6 layers, 64 tokens "
        "a slot, least of 3 steps.",
        "",
        "**What it does not show.** Gloo on one machine, two cores, one thread a worker; four workers share two cores. "
        "No GPU, no network.",
        "",
    ]
    good = True
    for line, fine in rows(arguments.pairs, arguments.width, arguments.seed):
        print(line, flush=True)
        lines.append(line)
        good = good and fine
    lines += [
        "",
        "The formula is over a `fast` that synchronises at each slot. This one does so once a step and holds whole",
        "gradients until then, so with several slots a worker the difference is probably below 0 for that; that at one",
        "worker is not explained.",
    ]
    RESULT.write_text("\n".join([*lines, ""]))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
