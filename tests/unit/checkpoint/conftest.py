from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from s3_server import place, s3, s3_server

from froude.checkpoint.run_store import RunStore
from froude.schemas import LEDGER, STEPS, table
from froude.store import Location

__all__ = ["place", "s3", "s3_server", "train"]

Train = Callable[..., None]


@pytest.fixture
def train() -> Train:
    """Continue a run in an attempt of its own, one step at a time: (location, up to step, saving every n steps)."""

    def run(
        place: Location, until: int, every: int = 2, commit_last: bool = True, finish: bool = False
    ) -> None:
        store = RunStore(place, "large")
        attempt = store.open_attempt("recipe")
        state = {"w": torch.zeros(3, 4), "n": torch.tensor(0)}
        step = store.load(state)["step"]
        assert state["n"].item() == step
        assert torch.equal(state["w"], torch.full((3, 4), float(step)))
        rows: list[dict[str, Any]] = []
        while step < until:
            step += 1
            state["w"] += 1
            state["n"] += 1
            rows.append({"run": "large", "attempt": attempt, "step": step, "tokens": 10 * step})
            if step % every == 0 or (step == until and commit_last):
                steps = table(STEPS, rows)
                ledger = table(LEDGER, [{**row, "slot": 0, "tokens": 10} for row in rows])
                kind = "finished" if finish and step == until else "checkpoint"
                tables = {"steps": steps, "ledger": ledger}
                store.save(state, step=step, tokens=10 * step, tables=tables, scalars={"at": step}, kind=kind)
                rows = []

    return run
