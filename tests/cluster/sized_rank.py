"""One rank of an exact run at size: `sized_rank.py RANK WORLD STUDY KILL RUN GROUP`, sharded by layers.

After step KILL (-1: never) the last rank ends by SIGKILL in the middle of the next one. GROUP is a file by which the
ranks find each other. Each has two threads.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
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
RANK, WORLD, KILL = (int(sys.argv[number]) for number in (1, 2, 4))


@dataclass
class Ended(Unsupervised):
    """Has the last rank killed once the step after KILL is in its first backward pass.

    If a checkpoint is due at KILL, one in `every` steps, it is committed before.
    """

    every: int = 1

    def poll(self, step: int) -> Request:
        if step == KILL and RANK == WORLD - 1:
            torch.nn.modules.module.register_module_full_backward_hook(self.kill)
        return "save" if step == KILL and KILL % self.every == 0 else "none"

    def kill(self, module: Any, *_: Any) -> None:
        if isinstance(module, Block):
            os.kill(os.getpid(), signal.SIGKILL)


def main(study: str, run: Run) -> None:
    torch.set_num_threads(THREADS)
    parallel.KEEP_GATHERED = 0
    if WORLD > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{sys.argv[6]}",
            rank=RANK,
            world_size=WORLD,
            timeout=timedelta(seconds=600),
        )
    place = Location.parse(study) / "runs" / run.name
    store = RunStore(place, run.name, Keep(run.keep_checkpoints, run.keep_every))
    ended = Ended(store.open_attempt("recipe", {}), run.checkpoint_every)
    loss = run_worker(run, store, ended, device="cpu")
    print(json.dumps({"loss": loss, "threads": torch.get_num_threads()}), flush=True)
    if WORLD > 1:
        dist.destroy_process_group()
    os._exit(0)  # as in test_distributed


if __name__ == "__main__":
    main(sys.argv[3], Run.from_dict(json.loads(sys.argv[5])))
