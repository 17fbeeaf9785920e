"""Stages of a study: a search by TPE, or a grid that a function lays out from the rows of earlier stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from froude.config import ConfigError, Run, Scalar, whole_steps
from froude.space.axes import Axis
from froude.space.trial import Trial, check_name
from froude.user_code import call_user

if TYPE_CHECKING:
    import polars as pl

Role = Literal["search", "lr_transfer", "critical_batch", "loss_law"]
#: Axis of a search that is no key of a Run: warmup as a share of the run's tokens.
WARMUP = "warmup_fraction"


def _check_stage(name: str, role: str) -> None:
    check_name("a stage", name)
    if role not in get_args(Role):
        raise ConfigError(
            f"a stage's role must be one of {', '.join(get_args(Role))}, but {name!r} has {role!r}; choose one"
        )


@dataclass(frozen=True)
class Search:
    """Optuna's TPE over `axes`, dotted keys of a Run or `warmup_fraction`, from `startup` random trials on.

    Trial 0 is `default`, which names a value for every axis. Trial k is a function of the seed, k and the results of
    trials 0 … k - `parallel`: so many can run at once, and the same seed gives the same study on any cluster. Tokens
    are `base.tokens`, rounded to whole steps of the trial's batch.
    """

    name: str
    base: Run
    axes: Mapping[str, Axis]
    trials: int
    startup: int
    default: Mapping[str, Scalar]
    parallel: int = 2
    role: Role = "search"
    after: tuple[str, ...] | None = ()

    def __post_init__(self) -> None:
        _check_stage(self.name, self.role)
        if self.trials < 1 or not 0 <= self.startup <= self.trials or self.parallel < 1:
            raise ConfigError(
                f"a search needs trials >= 1, 0 <= startup <= trials and parallel >= 1, but {self.name!r} has "
                f"({self.trials}, {self.startup}, {self.parallel}); mend it"
            )
        if set(self.default) != set(self.axes):
            odd = sorted(set(self.default) ^ set(self.axes))
            raise ConfigError(
                f"the default of a search must name each axis, but {self.name!r} differs in {', '.join(odd)}"
            )
        for key, axis in self.axes.items():
            if self.default[key] not in axis:
                raise ConfigError(
                    f"the default of axis {key!r} must lie on it, but got {self.default[key]!r} for {axis}"
                )
        self.trial(0, self.default)
        for key, axis in self.axes.items():
            for value in axis.extremes:  # an invalid one would end the sweep in its middle
                self.trial(0, {**self.default, key: value})

    def trial(self, number: int, params: Mapping[str, Scalar]) -> Trial:
        """The trial of these axis values; ConfigError if they make no valid run."""
        changes: dict[str, Any] = {key: value for key, value in params.items() if key != WARMUP}
        tokens = whole_steps(self.base.tokens, int(changes.get("batch", self.base.batch)))
        if WARMUP in params:
            changes["schedule.warmup_tokens"] = round(float(params[WARMUP]) * tokens)
        name = f"{self.name}-{number:02d}"
        run = self.base.replace(changes, tokens=tokens, name=name, stage=self.name)
        return Trial(name, (run,), params=dict(params))


Planner = Callable[["pl.DataFrame"], Sequence[Trial]]


@dataclass(frozen=True)
class Grid:
    """Trials that a function lays out from the rows (of `Study.trials()`) of the stages before.

    `trials` is also called with no rows, to plan: it must then fall back on defaults. `extend` is called once, with
    the stage's own rows among them, when all are done, and may add trials. `after` names the stages whose rows it
    gets and which must be done (None: all stages before this one); stages that don't wait for each other overlap.
    """

    name: str
    trials: Planner
    role: Role
    extend: Planner | None = None
    after: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _check_stage(self.name, self.role)

    def lay_out(self, rows: pl.DataFrame) -> list[Trial]:
        """The stage's trials, given the rows of the stages before."""
        return self._checked(self.trials, rows)

    def more(self, rows: pl.DataFrame) -> list[Trial]:
        """What the stage adds to itself, given its own rows, too."""
        return self._checked(self.extend, rows) if self.extend else []

    def _checked(self, planner: Planner, rows: pl.DataFrame) -> list[Trial]:
        trials = list(call_user(f"stage {self.name!r}", planner, rows))
        for trial in trials:
            if not isinstance(trial, Trial):
                raise ConfigError(f"stage {self.name!r} must lay out a list of Trial, but it holds {trial!r}")
        return [_staged(trial, self.name) for trial in trials]


def _staged(trial: Trial, stage: str) -> Trial:
    runs = tuple(run if run.stage == stage else run.replace(stage=stage, name=run.name) for run in trial.runs)
    return Trial(trial.name, runs, trial.stop_loss, trial.params)
