"""What a sweep and a status say of a trial that failed."""

from __future__ import annotations

from pathlib import Path

from froude.config import Run
from froude.external.metrics import Metrics
from froude.launch.status import BadTrial


def test_why_a_trial_failed_is_told_with_its_remedy() -> None:
    file = Path(
        "/scratch/users/somebody/projects/towing/runs/study/external/rate-w64-lr7.81e-03-s0/metrics.jsonl"
    )
    why = f"ConfigError: {Metrics(Run(tokens=7680), str(file)).lacking()}"
    said = BadTrial("failed", "a", "loss_law", "a", 1, 1, why).line()
    assert said.endswith("it wrote nothing; append a JSON line with step and validation_loss at the end")
    assert BadTrial("failed", "a", "loss_law", "a", 1, 1, "x" * 1000).line().endswith("x…")
