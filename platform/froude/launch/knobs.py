"""Which failure knobs are in force: how soon a silent node is given up, and a failed worker is detected."""

from __future__ import annotations

import os
from dataclasses import dataclass

from froude.launch.ray_internals import FAST_KNOBS, MODERATE_KNOBS, health_checks

#: What Ray itself has (2.60).
RAY_KNOBS: dict[str, str] = {
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "3000",
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "5",
}
NAMED = {"fast": FAST_KNOBS, "moderate": MODERATE_KNOBS, "Ray's defaults": RAY_KNOBS}
TRAIN_POLL_SECONDS = 2.0  # Ray Train's own, where the environment says nothing
TRAIN_HUNG_SECONDS = 600.0


@dataclass(frozen=True)
class Knobs:
    """The head's checks of its nodes (in force since it started), and this driver's of its workers; seconds.

    `checks` is empty where they can't be known.
    """

    checks: dict[str, int]
    poll: float
    hung: float

    @property
    def name(self) -> str:
        """Fast, moderate, Ray's defaults, or set by hand."""
        for name, knobs in NAMED.items():
            if all(self.checks.get(knob) == int(knobs[f"RAY_{knob}"]) for knob in self.checks):
                return name if self.checks else "unknown"
        return "set by hand"

    def __str__(self) -> str:
        workers = f"workers polled every {self.poll:g} s, a hung one ended after {self.hung:g} s"
        if not self.checks:
            return f"{self.name}: {workers}"
        period, limit = (self.checks[f"health_check_{name}_ms"] / 1000 for name in ("period", "timeout"))
        failures = self.checks["health_check_failure_threshold"]
        return (
            f"{self.name}: nodes checked every {period:g} s, dead after {failures} failures "
            f"(time-out {limit:g} s); {workers}"
        )


def in_force() -> Knobs:
    """Those of the cluster that this process is connected to; starts a process on its head to ask."""
    return Knobs(
        health_checks(),
        poll=float(os.environ.get("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", TRAIN_POLL_SECONDS)),
        hung=float(os.environ.get("RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S", TRAIN_HUNG_SECONDS)),
    )
