"""One rank of `froude.doctor.ranks`: `python -m froude.doctor.rank ORDER`, the order as JSON."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any


def main(order: dict[str, Any]) -> None:
    """Do the works in turn; rank 0 writes a line of JSON for each."""
    import torch
    import torch.distributed as dist

    from froude.doctor.works import WORKS
    from froude.train.parallel import World

    rank, world, device = order["rank"], order["world"], order["device"]
    if device == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
            init_method=f"file://{order['folder']}/group",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=order["seconds"]),
        )
    for name in order["works"]:
        found = WORKS[name](World.current(device))
        if rank == 0:
            with (Path(order["folder"]) / "found").open("a") as sink:
                sink.write(json.dumps({name: found}) + "\n")
    if world > 1:
        dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch's own threads sometimes abort an ordinary exit


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
