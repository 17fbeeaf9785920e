"""A hook into Ray Tune's controller: idle trial processes are kept while the next trials are not known yet."""

from __future__ import annotations

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from froude.launch.ray_internals import supported


class Lanes(FIFOScheduler):
    """Trials in the order in which they come; the process of each lane lives on between stages of a sweep.

    Tune keeps one idle process at most unless trials wait for it, so between two stages all others would end, and
    take seconds to start again. Here those of one-process trials are kept until a trial of several workers comes,
    which needs what they hold.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept: set[Any] = set()

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        super().on_trial_add(tune_controller, trial)
        if not supported():
            return
        cache = tune_controller._tune_controller._actor_cache
        request = trial.placement_group_factory
        if trial.config["lane"] < 0:
            for kept in self._kept:
                cache.decrease_max(kept)
            self._kept.clear()
        elif request not in self._kept:
            cache.increase_max(request)
            self._kept.add(request)
