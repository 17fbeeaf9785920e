"""A run that stops itself (SIGSTOP) in the middle of its second save: `zombie.py URL data | record`.

`data` stops half-way through the bytes of the state, `record` when all is written but the record. Woken up, it goes on,
and ends with 3 if it finds that it was fenced.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch

from froude.checkpoint.commit import CommitLog, Fenced
from froude.checkpoint.parts import HashingSink
from froude.checkpoint.run_store import RunStore
from froude.schemas import LEDGER, table
from froude.store import Location


def stop_at(owner: type, name: str, when: Any) -> None:
    """Stop this process before the first call of `owner.name` for whose arguments `when` holds."""
    wrapped = getattr(owner, name)
    stopped = False

    def stopping(self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal stopped
        if not stopped and when(self):
            stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)
        return wrapped(self, *arguments, **options)

    setattr(owner, name, stopping)


url, where = sys.argv[1:]
store = RunStore(Location.parse(url), "large")
attempt = store.open_attempt("recipe")
state = {"w": torch.zeros(4, 1 << 20), "n": torch.tensor(0)}  # 16 MiB: several uploads of a multipart one
for step in (1, 2):
    for tensor in state.values():
        tensor += 1
    rows = [{"run": "large", "attempt": attempt, "step": step, "slot": 0, "tokens": 10}]
    if step == 2 and where == "data":
        stop_at(HashingSink, "write", lambda sink: sink.size > 6 << 20)
    if step == 2 and where == "record":
        stop_at(CommitLog, "append", lambda log: True)
    try:
        store.save(state, step=step, tokens=10 * step, tables={"ledger": table(LEDGER, rows)})
    except Fenced as fenced:
        print(fenced)
        sys.exit(3)
