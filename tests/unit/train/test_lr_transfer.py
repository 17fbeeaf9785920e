"""Under muP the best learning rate stays where it is over four times the width."""

from __future__ import annotations

import math

import polars as pl
import pytest

from froude import laws
from froude.config import Run
from froude.train.loop import run_trial

BASE = Run(
    batch=768,
    slots=12,
    tokens=768 * 100,
    eval_windows=128,
    schedule={"warmup_tokens": 7680},
    model={"base_width": 64},
)


@pytest.mark.slow
def test_the_best_rate_moves_by_less_than_half_an_octave_from_width_32_to_128() -> None:
    rows = []
    for width in (32, 128):
        for log2_lr in (-8.75, -8.0, -7.25, -6.5, -5.75, -5.0):
            run = BASE.replace({"model.width": width, "optimizer.lr": 2.0**log2_lr})
            rows += run_trial([run], trial=run.name).trials
    law = laws.lr_transfer(pl.DataFrame(rows))
    assert law.curves["status"].to_list() == ["ok", "ok"]
    narrow, wide = law.curves["lr"]
    assert abs(math.log(wide / narrow)) <= 0.35
