"""One rank of test_owners: `owners_rank.py RANK FOLDER`; one of four, then of three and of two, then rank 0 alone.

At each number of ranks it writes WORLD-RANK.json, with what it found of each case.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from exact_rank import hashes

from froude.config import ConfigError, Run
from froude.train import optimizers, parallel
from froude.train.optimizers.composed import Composed
from froude.train.parallel import World
from froude.train.trainer import Trainer

sys.path.append(str(Path(__file__).parents[1] / "data"))
from odd_tensors import Tensors, drawn, lone, measured, odd
from step_cost import peak_bytes, sent_bytes

STEPS = 4
SETTINGS = {
    "adafactor": {},
    "adamw8bit": {},
    "lion": {},
    "muon": {"heads": True},
    "normuon": {},
    "shampoo": {"every": 2},
    "soap": {"every": 2},
}
#: How models use their parameters, trained with each of these optimizers.
USES, USED_WITH = ("tied", "shared", "repeated", "frozen", "rare", "unused"), ("adamw", "muon")
TRAINED = Run(
    name="odd",
    tokens=64 * 4 * 3,
    batch=64 * 4,
    slots=4,
    reduction="exact",
    parametrization="sp",
    eval_windows=8,
    model={"width": 12, "context": 16, "factory": "odd_tensors:Used"},
)


def optimizer(name: str, model: Tensors) -> Composed:
    """Over a model that is sharded among the ranks."""
    world = World.current()
    parallel.shard(model, [], world)
    run = Run(
        tokens=768,
        parametrization="sp",
        reduction="exact",
        optimizer={"name": name, "options": SETTINGS[name]},
    )
    return optimizers.build(run, model, world)


def give_gradients(model: Tensors, step: int) -> None:
    """This rank's rows of a gradient that depends on nothing but the parameter's name and the step."""
    world = World.current()
    for name, parameter in model.named_parameters():
        rows = parallel.rows_of(parameter, world.rank, world.size)
        local = drawn(f"{name} {step}", *parameter.shape)[rows.start : rows.stop]
        parameter.grad = local if world.size == 1 else parallel.like(parameter, local)


def stepped(name: str, model: Tensors) -> dict[str, Any]:
    """Weights and states after some steps, and the dtypes of the states."""
    found = optimizer(name, model)
    found.state()
    for step in range(STEPS):
        give_gradients(model, step)
        found.step()
    state = found.state()
    return {
        "bits": hashes({**{n: p.detach() for n, p in model.named_parameters()}, **state}),
        "dtypes": {key: str(parallel.local(tensor).dtype) for key, tensor in state.items()},
    }


def trained(how: str, name: str) -> dict[str, Any]:
    """The state of a run after its steps, or why it does not begin."""
    run = TRAINED.replace({"model.options": {"how": how}, "optimizer.name": name, "optimizer.lr": 1e-2})
    try:
        trainer = Trainer(run, World.current())
    except ConfigError as error:
        return {"refused": str(error)}
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.state()
    losses = [trainer.step(run, step).loss for step in range(run.steps)]
    still = [
        n
        for n, p in trainer.model.named_parameters()
        if torch.equal(parallel.local(p.detach()), parallel.local(before[n]))
    ]
    return {"losses": losses, "bits": hashes(trainer.state()), "still": still}


def cost() -> dict[str, int]:
    """Of a step of muon: what this rank sends, what it has in memory beyond weights, gradients and states."""
    model = measured()
    found = optimizer("muon", model)
    found.state()
    give_gradients(model, 0)
    found.step()
    return {"sent": sent_bytes(found.step), "memory": peak_bytes(found.step)}


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        **{name: lambda name=name: stepped(name, odd()) for name in SETTINGS},
        **{f"{name} alone": lambda name=name: stepped(name, lone()) for name in SETTINGS},
        **{
            f"{how} {name}": lambda how=how, name=name: trained(how, name)
            for how in USES
            for name in USED_WITH
        },
        "cost": cost,
    }
    for world in (4, 3, 2, 1):
        if rank >= world:
            break
        if world > 1:
            place, limit = f"file://{folder}/group-{world}", timedelta(seconds=60)
            dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world, timeout=limit)
        found = {}
        for name, case in cases.items():
            try:
                found[name] = case()
            except Exception:
                found[name] = traceback.format_exc()
                print(world, rank, name, traceback.format_exc())
        (folder / f"{world}-{rank}.json").write_text(json.dumps(found))
        if world > 1:
            dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # torch's own threads sometimes abort an ordinary exit


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
