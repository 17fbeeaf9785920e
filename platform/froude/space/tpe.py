"""Where a search looks next: Optuna's TPE as a pure function of seed, number and the results before."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from froude.config import Scalar
from froude.space.axes import Axis, Choice, LogUniform

#: Axis values of a trial and its loss in nats per token: infinite if it diverged, NaN if it failed.
Result = tuple[Mapping[str, Scalar], float]


def propose(
    axes: Mapping[str, Axis], results: Sequence[Result], *, key: str, by_chance: bool
) -> dict[str, Scalar]:
    """Axis values of a trial, given those of the trials that it may see; `key` stands for its place in all studies.

    They are TPE's (Bergstra et al., NeurIPS 2011), or random. The past is passed in anew each time, so a study that was
    interrupted goes on as it would have.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    own = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "little")
    sampler: optuna.samplers.BaseSampler
    if by_chance:
        sampler = optuna.samplers.RandomSampler(seed=own)
    else:
        sampler = optuna.samplers.TPESampler(seed=own, n_startup_trials=1)
    distributions = {name: _distribution(axis) for name, axis in axes.items()}
    study = optuna.create_study(sampler=sampler, direction="minimize")
    for params, loss in results:
        state = optuna.trial.TrialState.FAIL if math.isnan(loss) else optuna.trial.TrialState.COMPLETE
        value = None if math.isnan(loss) else loss
        study.add_trial(
            optuna.trial.create_trial(
                params=dict(params), distributions=distributions, value=value, state=state
            )
        )
    asked: dict[str, Any] = study.ask(fixed_distributions=distributions).params
    return asked


def _distribution(axis: Axis) -> Any:
    from optuna import distributions

    if isinstance(axis, Choice):
        return distributions.CategoricalDistribution(axis.options)
    return distributions.FloatDistribution(axis.low, axis.high, log=isinstance(axis, LogUniform))
