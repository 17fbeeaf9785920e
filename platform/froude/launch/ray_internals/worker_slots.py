"""A hook into Ray Tune's controller: idle trial processes are kept while the next trials are not known yet."""

from __future__ import annotations

import time
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from froude.launch.ray_internals import supported

#: A trial that waits so long for a process, with idle ones about, waits for what they hold.
PATIENCE_SECONDS = 5.0


class Lanes(FIFOScheduler):
    """Trials in the order in which they come; the process of each lane lives on between stages of a sweep.

    Tune keeps one idle process at most unless trials wait for it, so between two stages all others would end, and
    take seconds to start again. Here those of one-process trials are kept, until a trial needs what they hold: one of
    several workers, or one whose own process was lost with its node.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept: set[Any] = set()
        self._since: float | None = None

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        super().on_trial_add(tune_controller, trial)
        if not supported():
            return
        cache = tune_controller._tune_controller._actor_cache
        request = trial.placement_group_factory
        if trial.config["lane"] < 0:
            self._release(cache, self._kept)
        elif request not in self._kept:
            cache.increase_max(request)
            self._kept.add(request)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        if supported():
            cache = tune_controller._tune_controller._actor_cache
            idle = {request for request in self._kept if cache.has_cached_object(request)}
            waits = any(
                trial.status == Trial.PENDING and trial.placement_group_factory not in idle
                for trial in tune_controller.get_live_trials()
            )
            now = time.monotonic()
            self._since = (self._since or now) if idle and waits else None
            if self._since is not None and now - self._since > PATIENCE_SECONDS:
                self._release(cache, idle)
        chosen: Trial | None = super().choose_trial_to_run(tune_controller)
        return chosen

    def _release(self, cache: Any, requests: set[Any]) -> None:
        """Let Tune end these lanes' processes as soon as they are idle."""
        for request in requests:
            cache.decrease_max(request)
        self._kept = self._kept - requests
