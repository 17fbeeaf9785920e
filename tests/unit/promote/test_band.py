"""The curves that a forecast's band is made of: one row a step of the target's, whatever batch the proxies had."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from froude.promote.band import curves

STEPS = 160


def study(batch: int) -> Any:
    tokens = [batch * (step + 1) for step in range(STEPS)]
    steps = pl.DataFrame(
        {"run": "a", "tokens": tokens, "lr": 0.1, "loss": [3.0 - 0.01 * i for i in range(STEPS)]}
    )
    return SimpleNamespace(steps=steps.lazy)


def fits(batch: int) -> Any:
    told = {"run": "a", "trial": "a", "status": "finished", "tokens": batch * STEPS, "batch": batch}
    rows = pl.DataFrame([told | {"batch_final": batch, "loss": 1.5, "params": 1000}])
    return SimpleNamespace(rows={"loss_law": rows})


@pytest.mark.parametrize("batch", [384, 576, 768, 896, 960, 1024, 1152, 1536, 2688])
def test_no_step_comes_twice_where_the_targets_batch_is_another(batch: int) -> None:
    found, _ = curves(study(768), fits(768), block=10 * batch, batch=batch)
    assert found.height > 20
    assert found["step"].is_unique().all()
    assert found["step"].is_sorted()
