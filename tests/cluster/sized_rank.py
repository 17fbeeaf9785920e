"""One rank of an exact run at size: `sized_rank.py RANK WORLD STUDY STOP KILL RUN`, sharded by layers, on two threads.

After step STOP it is stopped, its state saved; after step KILL the last rank ends by SIGKILL in the middle of the next
step. -1 for neither.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from froude.checkpoint.retention import Keep
from froude.checkpoint.run_store import RunStore
from froude.config import Run
from froude.store import Location
from froude.train import parallel
from froude.train.api import Request, Unsupervised
from froude.train.model import Block
from froude.train.worker import run_worker

THREADS = 2
RANK, WORLD, STOP, KILL = (int(sys.argv[number]) for number in (1, 2, 4, 5))


class Ended(Unsupervised):
    """Stops the run, or has this process killed once the next step is in its first backward pass."""

    def poll(self, step: int) -> Request:
        if step == KILL and RANK == WORLD - 1:
            torch.nn.modules.module.register_module_full_backward_hook(self.kill)
        return "stop" if step == STOP else "none"

    def kill(self, module: Any, *_: Any) -> None:
        if isinstance(module, Block):
            os.kill(os.getpid(), signal.SIGKILL)


def main(study: str, run: Run) -> None:
    torch.set_num_threads(THREADS)
    parallel.KEEP_GATHERED = 0
    if WORLD > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{study}/group-{WORLD}",
            rank=RANK,
            world_size=WORLD,
            timeout=timedelta(seconds=600),
        )
    place = Location.parse(study) / "runs" / run.name
    store = RunStore(place, run.name, Keep(run.keep_checkpoints, run.keep_every))
    loss = run_worker(run, store, Ended(attempt=store.open_attempt("recipe", {})), device="cpu")
    print(json.dumps({"loss": loss, "threads": torch.get_num_threads()}), flush=True)
    if WORLD > 1:
        dist.destroy_process_group()
    os._exit(0)  # as in test_distributed


if __name__ == "__main__":
    main(sys.argv[3], Run.from_dict(json.loads(sys.argv[6])))
