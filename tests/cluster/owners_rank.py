"""One rank of test_owners: `owners_rank.py RANK FOLDER`; one of four, then of three and of two, then rank 0 alone.

At each number of ranks it writes WORLD-RANK.json, with what it found of each case.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from exact_rank import hashes

from froude.config import Run
from froude.train import optimizers, parallel
from froude.train.optimizers.composed import Composed
from froude.train.parallel import World
from froude.train.trainer import Trainer

sys.path.append(str(Path(__file__).parents[1] / "data"))
from odd_tensors import Tensors, drawn, like_ours, lone, odd
from step_cost import sent_bytes, tensor_bytes

STEPS = 3
OPTIONS: dict[str, dict[str, Any]] = {
    "adafactor": {},
    "adamw8bit": {},
    "muon": {"heads": True},
    "normuon": {},
    "shampoo": {"every": 2},
    "soap": {"every": 2},
}
TRAINED = Run(
    name="odd",
    tokens=64 * 4 * STEPS,
    batch=64 * 4,
    slots=4,
    seed=1,
    parametrization="sp",
    eval_windows=8,
    model={"width": 12, "context": 16, "factory": "odd_tensors:Used"},
)


def stepped(name: str, model: Tensors) -> dict[str, Any]:
    """Weights and states after some steps, and the dtypes of the states."""
    optimizer = sharded(name, model)
    for step in range(STEPS):
        give_gradients(model, step)
        optimizer.step()
    state = optimizer.state()
    return {
        "bits": hashes({**{n: p.detach() for n, p in model.named_parameters()}, **state}),
        "dtypes": {key: str(parallel.local(tensor).dtype) for key, tensor in state.items()},
    }


def sharded(name: str, model: Tensors) -> Composed:
    """The optimizer of a model that is divided among the ranks, with its state."""
    world = World.current()
    parallel.shard(model, [], world)
    settings = {"name": name, "options": OPTIONS[name]}
    run = Run(tokens=768, parametrization="sp", reduction="exact", optimizer=settings)
    optimizer = optimizers.build(run, model, world)
    optimizer.state()
    return optimizer


def give_gradients(model: Tensors, step: int) -> None:
    """This rank's rows of a gradient that depends on nothing but the parameter's name and the step."""
    world = World.current()
    for name, parameter in model.named_parameters():
        rows = parallel.rows_of(parameter, world.rank, world.size)
        local = drawn(f"{name} {step}", *parameter.shape)[rows.start : rows.stop]
        parameter.grad = local if world.size == 1 else parallel.like(parameter, local)


def trained(how: str, name: str, reduction: str) -> dict[str, Any]:
    """A run's losses, its state, and which parameters have stayed as they were; sharded block by block."""
    parallel.KEEP_GATHERED = 0
    settings = {"optimizer.name": name, "optimizer.lr": 1e-2, "reduction": reduction}
    run = TRAINED.replace({"model.options": {"how": how}, **settings})
    trainer = Trainer(run, World.current())
    trainer.state()
    before = hashes(trainer.snapshot())
    losses = [trainer.step(run, step).loss for step in range(run.steps)]
    after = hashes(trainer.state())
    still = [key for key in after if key.startswith("model.") and after[key] == before[key]]
    return {"losses": losses, "bits": after, "still": still}


def cost() -> dict[str, int]:
    """Of a step of muon: what this rank sends, what it has in memory beyond weights, gradients and states.

    The least of five: on a busy machine gloo's thread lets a collective's tensors go after the step has gone on.
    """
    model = like_ours()
    optimizer = sharded("muon", model)
    give_gradients(model, 0)
    optimizer.step()
    memory = min(tensor_bytes(optimizer.step) for _ in range(5))
    return {"sent": sent_bytes(optimizer.step), "memory": memory}


def found(world: int) -> dict[str, Any]:
    cases: dict[str, Any] = {f"odd, {name}": stepped(name, odd()) for name in OPTIONS}
    cases |= {f"lone, {name}": stepped(name, lone()) for name in OPTIONS}
    cases["cost"] = cost()
    if world < 3:
        for how in ("tied", "shared", "repeated", "frozen", "rare", "unused"):
            cases |= {f"{how}, {name}": trained(how, name, "exact") for name in ("adamw", "muon")}
        cases["rare, fast"] = trained("rare", "muon", "fast")
    return cases


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    for world in range(4, rank, -1):
        if world > 1:
            place, limit = f"file://{folder}/group-{world}", timedelta(seconds=120)
            dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world, timeout=limit)
        (folder / f"{world}-{rank}.json").write_text(json.dumps(found(world)))
        if world > 1:
            dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # torch's own threads sometimes abort an ordinary exit


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
