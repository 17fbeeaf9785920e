"""Under muP the best learning rate stays where it is over four times the width."""

from __future__ import annotations

import math

import polars as pl
import pytest

from froude import laws
from froude.config import Run
from froude.train.trial import run_trial

pytestmark = pytest.mark.slow

BASE = Run(
    batch=256,
    tokens=256 * 100,
    eval_windows=256,
    schedule={"warmup_tokens": 2560},
    model={"context": 32, "head_dim": 8, "base_width": 32},
)


@pytest.mark.long
def test_the_best_rate_moves_by_less_than_half_an_octave_from_width_16_to_64() -> None:
    """|ln| of the move is at most 0.35; it was -0.14 with seed 0, +0.03 with seed 1 and -0.03 with both."""
    rows = []
    for width in (16, 64):
        for log2_lr in (-8.5, -7.75, -7.0, -6.25, -5.5, -4.75):
            run = BASE.replace({"model.width": width, "optimizer.lr": 2.0**log2_lr})
            rows += run_trial([run], trial=run.name).trials
    law = laws.lr_transfer(pl.DataFrame(rows))
    assert set(law.curves["status"]) <= {"ok", "flat"}  # placed, not at an edge
    narrow, wide = law.curves["lr"]
    assert abs(math.log(wide / narrow)) <= 0.35
