"""Where a search looks next: Optuna's TPE as a pure function of seed, number and the results before."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from froude.config import Scalar
from froude.space import Axis, Choice, LogUniform, Search

#: Axis values of a trial and its loss in nats per token: infinite if it diverged, NaN if it failed.
Result = tuple[Mapping[str, Scalar], float]


def propose(search: Search, number: int, results: Sequence[Result], seed: int) -> dict[str, Scalar]:
    """Axis values of trial `number`, given those of trials 0, 1, … that it may see.

    Trial 0 is the default, the next ones are random, the rest TPE's (Bergstra et al., NeurIPS 2011), told what is past
    anew each time: so a study that was interrupted goes on as it would have.
    """
    if number == 0:
        return dict(search.default)
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    own = int.from_bytes(
        hashlib.blake2b(f"{seed}:{search.name}:{number}".encode(), digest_size=4).digest(), "little"
    )
    sampler: optuna.samplers.BaseSampler
    if number <= search.startup:
        sampler = optuna.samplers.RandomSampler(seed=own)
    else:
        sampler = optuna.samplers.TPESampler(seed=own, n_startup_trials=1)
    axes = {key: _distribution(axis) for key, axis in search.axes.items()}
    study = optuna.create_study(sampler=sampler, direction="minimize")
    for params, loss in results:
        state = optuna.trial.TrialState.FAIL if math.isnan(loss) else optuna.trial.TrialState.COMPLETE
        value = None if math.isnan(loss) else loss
        study.add_trial(
            optuna.trial.create_trial(params=dict(params), distributions=axes, value=value, state=state)
        )
    asked: dict[str, Any] = study.ask(fixed_distributions=axes).params
    return asked


def _distribution(axis: Axis) -> Any:
    from optuna import distributions

    if isinstance(axis, Choice):
        return distributions.CategoricalDistribution(axis.options)
    return distributions.FloatDistribution(axis.low, axis.high, log=isinstance(axis, LogUniform))
