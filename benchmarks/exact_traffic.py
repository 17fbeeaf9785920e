"""What a step of `reduction = "exact"` and of `fast` sends: bytes on the wire, against the guide's formula.

The ranks of a group run in a network namespace of their own (root on Linux), whose loopback device counts what gloo
sends, with TCP's headers and acknowledgements; nothing else is in it. Writes benchmarks/exact_traffic.md.

    python benchmarks/exact_traffic.py [--width 256] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from _machine import commit, cpu
from exact_cost import join, run

RESULT = Path(__file__).with_suffix(".md")
#: Workers, slots, reduction, schedule.
GROUPS = tuple(
    (world, slots, *how)
    for world, slots in ((2, 2), (4, 4), (2, 12), (3, 12), (4, 12))
    for how in (("fast", "cyclic"), ("exact", "cyclic"), ("exact", "block"))
)
STEPS = 4


def sent() -> int:
    """Bytes that the loopback device of this network namespace has sent."""
    (line,) = (
        line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:")
    )
    return int(line.split()[9])


def rank_main(order: dict[str, Any]) -> None:
    """One rank; rank 0 prints bytes a step over all ranks, and those of the model's gradient."""
    import torch
    import torch.distributed as dist

    from froude.train.parallel import World
    from froude.train.trainer import Trainer

    torch.set_num_threads(1)
    join(order)
    made = run(order["slots"], order["schedule"], order["reduction"], order | {"what": "memory"})
    trainer = Trainer(made, World.current("cpu"))
    trainer.step(made, 0)
    dist.barrier()
    before = sent()
    dist.barrier()  # nobody goes on before all have read
    for number in range(STEPS):
        trainer.step(made, number + 1)
    dist.barrier()
    if order["rank"] == 0:
        gradient = 4 * sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
        print(json.dumps({"gradient": gradient, "sent": (sent() - before) / STEPS}), flush=True)
    dist.barrier()
    os._exit(0)  # torch's own threads sometimes abort an ordinary exit


def group_main(order: dict[str, Any]) -> None:
    """Start the ranks, in the namespace that this process is in."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--rank"]
        ranks = [
            subprocess.Popen(
                [*command, json.dumps({**order, "rank": rank, "folder": folder})],
                env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            )
            for rank in range(order["world"])
        ]
        codes = [rank.wait() for rank in ranks]
        if any(codes):
            raise SystemExit(f"a rank of {order} failed")


def measure(**order: Any) -> dict[str, float]:
    inside = f"ip link set lo up && exec {sys.executable} {__file__} --group '{json.dumps(order)}'"
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", inside], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def most(world: int, slots: int, reduction: str, schedule: str) -> float:
    """Gradients that all ranks send in a step at most: those of the guide, and the weights gathered once.

    gloo's reduce-scatter is an all-reduce of which each rank keeps a part, so `fast` sends each gradient twice.
    """
    rounds = -(-slots // world)
    if reduction == "fast":
        gradients = 2.0
    elif schedule == "cyclic":
        gradients = float(rounds)
    else:  # complete subtrees over a rank's consecutive slots
        from froude.train.exact.slots import Rounds, subtrees

        per_rank = (Rounds(slots, rank, world, schedule).mine for rank in range(world))
        gradients = float(max(len(subtrees(slots, mine)) for mine in per_rank))
    return (world - 1) * (gradients + 1.0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--group", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for text, work in ((arguments.rank, rank_main), (arguments.group, group_main)):
        if text:
            work(json.loads(text))
            return 0
    lines = [
        '# What a step of `reduction = "exact"` and of `fast` sends',
        "",
        f"`python benchmarks/exact_traffic.py --width {arguments.width}` at commit {commit()}, "
        f"{datetime.now(UTC):%Y-%m-%d}, on {cpu()}, gloo. Width {arguments.width}, 2 layers, 64 tokens a slot. In "
        "units of the fp32 gradient, all ranks together, TCP's overhead in it; weights are gathered in it as well.",
        "",
        "| workers | slots | reduction | sent | at most, by the guide |",
        "|---|---|---|---|---|",
    ]
    good = True
    for world, slots, reduction, schedule in GROUPS:
        found = measure(
            world=world,
            slots=slots,
            reduction=reduction,
            schedule=schedule,
            width=arguments.width,
            depth=2,
            seed=arguments.seed,
        )
        times, bound = found["sent"] / found["gradient"], most(world, slots, reduction, schedule)
        name = reduction if reduction == "fast" else f"{reduction}, {schedule}"
        lines.append(f"| {world} | {slots} | {name} | {times:.2f} | {bound:.2f} |")
        print(lines[-1], flush=True)
        good = good and times <= 1.02 * bound
    RESULT.write_text("\n".join([*lines, ""]))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
