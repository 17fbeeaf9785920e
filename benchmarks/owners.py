"""What a step costs where whole matrices have owners: bytes sent, memory, and time against a replica on every rank.

Our own model over FSDP2, made-up gradients, and nothing but the optimizer's part for matrices in what is measured. A
replica gathers every weight and gradient on every rank and makes all updates there. Both sides alternate, each pair
gives one ratio of times, and their weights must be the same bits at the end. Writes benchmarks/owners.md.

    python benchmarks/owners.py [--pairs 9] [--width 256] [--depth 4]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from _machine import commit, cpu
from exact_cost import join

HERE = Path(__file__).resolve().parent
RESULT = HERE / "owners.md"
WORLDS, OPTIMIZERS = (2, 3), ("muon", "soap", "adafactor")
#: Of bytes over the formula, and of the wrapper's own memory in units of the largest matrix.
MOST_SENT, MOST_MEMORY = 1.1, 6.0


def rank_main(order: dict[str, Any]) -> None:
    """One rank of one setting; prints what it sent, held and took."""
    import torch
    import torch.distributed as dist

    from froude.config import Run
    from froude.train import api, optimizers, parallel
    from froude.train.optimizers.owners import Owned, Owners
    from froude.train.parallel import World

    sys.path.append(str(HERE.parent / "tests" / "data"))
    from step_cost import allocated_bytes, sent_bytes, tensor_bytes

    torch.set_num_threads(1)
    join(order)
    world = World.current("cpu")
    run = Run(
        tokens=768,
        seed=order["seed"],
        reduction="exact",
        parametrization="sp",
        model={"width": order["width"], "depth": order["depth"], "readout_sd": 1.0},
        optimizer={"name": order["optimizer"]},
    )

    def built() -> tuple[Any, Owners]:
        model = api.build_model(run)
        parallel.shard(model, model.blocks(), world)  # type: ignore[operator]
        part = optimizers.build(run, model, world).parts[0]
        assert isinstance(part, Owners)
        part.state()
        return model, part

    (model, owners), (other, dealt) = built(), built()
    matrices = sorted((m for row in dealt.rounds for m in row if m), key=lambda matrix: matrix.name)
    replicas = [Owned(matrix, run.optimizer) for matrix in matrices]

    @torch.no_grad()
    def replicated() -> None:
        for parameter in dict.fromkeys(matrix.parameter for matrix in matrices):
            weight, gradient = parameter.full_tensor(), parameter.grad.full_tensor()  # type: ignore[union-attr,operator]
            for each in replicas:
                if each.matrix.parameter is parameter:
                    rows = slice(each.matrix.rows.start, each.matrix.rows.stop)
                    each.step(weight[rows].view(each.matrix.shape), gradient[rows].view(each.matrix.shape))
            mine = parallel.rows_of(parameter, world.rank, world.size)
            parallel.local(parameter).copy_(weight[mine.start : mine.stop])

    def give_gradients(step: int) -> None:
        generator = torch.Generator().manual_seed(step)
        for one, two in zip(model.parameters(), other.parameters(), strict=True):
            rows = parallel.rows_of(one, world.rank, world.size)
            local = torch.randn(*one.shape, generator=generator)[rows.start : rows.stop]
            one.grad = two.grad = parallel.like(one, local)

    def took(step: Callable[[], None]) -> float:
        dist.barrier()
        began = time.perf_counter()
        step()
        dist.barrier()
        return time.perf_counter() - began

    sides: dict[str, Callable[[], None]] = {"owners": owners.step, "replicas": replicated}
    for number in range(2):
        give_gradients(number)
        for step in sides.values():
            step()
    times = []
    for number in range(order["pairs"]):
        give_gradients(2 + number)
        names = list(sides) if number % 2 else list(sides)[::-1]
        times.append({name: took(sides[name]) for name in names})
    same = all(
        torch.equal(parallel.local(one), parallel.local(two))
        for one, two in zip(model.parameters(), other.parameters(), strict=True)
    )
    found = {
        "times": times,
        "same": same,
        "owned": sum(4 * m.shape[0] * m.shape[1] for m in matrices),
        "largest": max(4 * m.shape[0] * m.shape[1] for m in matrices),
        "sent": sent_bytes(owners.step),
        "sent by replicas": sent_bytes(replicated),
        "tensors": tensor_bytes(owners.step),
        "allocated": allocated_bytes(owners.step),
    }
    for each in owners.owned:
        each.step = lambda weight, gradient: None  # type: ignore[method-assign]
    found["buffers"] = tensor_bytes(owners.step)
    Path(order["folder"], f"{order['rank']}.json").write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)  # torch's own threads sometimes abort an ordinary exit


def measure(**order: Any) -> list[dict[str, Any]]:
    """What each rank found."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", json.dumps({**order, "rank": rank, "folder": folder})],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stderr=subprocess.PIPE,
            )
            for rank in range(order["world"])
        ]
        errors = [rank.communicate()[1].decode() for rank in ranks]
        if any(rank.returncode for rank in ranks):
            raise SystemExit(f"a rank of {order} failed:\n{errors[0]}")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(order["world"])]


def line(name: str, world: int, ranks: list[dict[str, Any]]) -> tuple[str, bool]:
    """A row of the table, and whether the bounds hold and both sides have the same bits."""
    owned, largest = ranks[0]["owned"], ranks[0]["largest"]
    due = 3 * owned * (world - 1) / world**2
    sent = [rank["sent"] / due for rank in ranks]
    held = {what: max(rank[what] for rank in ranks) / largest for what in ("buffers", "tensors", "allocated")}
    ratios = [pair["owners"] / pair["replicas"] for pair in ranks[0]["times"]]
    low, middle, high = statistics.quantiles(ratios, n=4)
    wall = statistics.median(pair["owners"] for pair in ranks[0]["times"])
    more = statistics.fmean(rank["sent by replicas"] for rank in ranks) / due
    good = statistics.fmean(sent) <= MOST_SENT and held["buffers"] <= MOST_MEMORY
    good = good and all(rank["same"] for rank in ranks)
    return (
        f"| {name} | {world} | {owned / 2**20:.1f} | {statistics.fmean(sent):.3f} | {max(sent):.3f} | {more:.2f} "
        f"| {held['buffers']:.1f} | {held['tensors']:.1f} | {held['allocated']:.1f} "
        f"| {1e3 * wall:.0f} | {middle:.2f} | {low:.2f} … {high:.2f} |",
        good,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank_main(json.loads(arguments.rank))
        return 0
    settings = {key: value for key, value in vars(arguments).items() if key != "rank"}
    load = os.getloadavg()[0]
    lines = [
        "# What a step costs where whole matrices have owners",
        "",
        f"`python benchmarks/owners.py {' '.join(f'--{key} {value}' for key, value in settings.items())}` at commit "
        f"{commit('owners.py')}, {datetime.now(UTC):%Y-%m-%d}, on {cpu()} (shared, load {load:.0f} at the start), one "
        "thread a rank, gloo.",
        "",
        "P: weights that are updated whole, MiB. Sent: by a rank in a step, over 3 P (W - 1) / W², mean and most of",
        "the ranks, counted at the collectives; less than 1 where ranks own what they have rows of; by replicas: the",
        "same for a rank that gathers all. Memory: the most that a rank has above weights, gradients and states, in",
        "units of the largest matrix: buffers are tensors of a step whose updates do nothing, tensors those of a whole",
        "step, allocated all that torch's allocator gave out, scratch of kernels too. gloo's threads let go of buffers",
        "a little later than the step does, which varies. Time: a step in ms, and its ratio to the replicas' in pairs,",
        "median and quartiles.",
        "",
        "**What it does not show.** gloo on one machine whose two cores do three ranks' work at W = 3, and others'. No",
        "network, no GPU. SOAP's own temporaries are in its tensors, those of steps that make new bases are not.",
        "",
        "| optimizer | W | P | sent | most | by replicas | buffers | tensors | allocated | ms | time | quartiles |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    good = True
    for name in OPTIMIZERS:
        for world in WORLDS:
            text, fine = line(name, world, measure(optimizer=name, world=world, **settings))
            print(text, flush=True)
            lines.append(text)
            good = good and fine
    RESULT.write_text("\n".join([*lines, ""]))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
