"""Stages of a study: what a stage is; a search by TPE; a grid that a function lays out from earlier stages' rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, product
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from froude.config import ConfigError, Run, Scalar, whole_steps
from froude.space.axes import Axis
from froude.space.trial import Trial, check_name
from froude.user_code import call_user

if TYPE_CHECKING:
    import polars as pl

Role = Literal[
    "search",
    "settled",
    "lr_transfer",
    "critical_batch",
    "loss_law",
    "transfer_exponents",
    "schedule",
    "precision",
]
#: Axis of a search that is no key of a Run: warmup as a share of the run's tokens.
WARMUP = "warmup_fraction"
#: Keys of a Run that a search sets itself.
_SET = ("tokens", "name", "stage", "stability")
_PAIRS = 128  # pairs of extremes that are tried when a search is made: about a second


def check_stage(name: str, role: str) -> None:
    """ConfigError unless these are a stage's name and role."""
    check_name("a stage", name)
    if role not in get_args(Role):
        raise ConfigError(
            f"a stage's role must be one of {', '.join(get_args(Role))}, but {name!r} has {role!r}; choose one"
        )


class Past(Protocol):
    """What a stage may go by when it is asked for its next trials: the sweep so far."""

    @property
    def seed(self) -> int:
        """The space's."""

    @property
    def rounds(self) -> int:
        """How often the stage has given trials; an empty list counts."""

    @property
    def trials(self) -> Sequence[Trial]:
        """The stage's own, in the order in which it gave them."""

    def before(self) -> pl.DataFrame:
        """Rows (of `Study.trials()`) of the stages that this one comes after, all of which are done."""

    def own(self) -> pl.DataFrame:
        """Rows of the stage's own trials that have ended, as well."""

    def outcome(self, trial: Trial) -> Mapping[str, Any] | None:
        """The first row of a trial that has ended; None before."""

    def stored(self, name: str) -> Trial | None:
        """The trial that the study has under this name from an earlier sweep, if any."""


class Stage(Protocol):
    """A part of a study: trials of one role.

    `after` names the stages that must be done before it is asked for a trial (None: all before this one). The same
    `Past` must give the same trials, whichever of them ended first: then a sweep that was interrupted goes on as it
    would have.
    """

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> Role: ...

    @property
    def after(self) -> tuple[str, ...] | None: ...

    @property
    def extends(self) -> bool:
        """Whether it may have more trials than it planned."""

    @property
    def one_by_one(self) -> bool:
        """Whether it gives its planned trials one after the other, not all in its first answer."""

    def planned(self) -> list[Trial]:
        """Its trials as far as they are known before any has run."""

    def undecided(self, before: Sequence[str]) -> str:
        """What of the planned trials is known only on the way, in words; `before` are the stages that it waits for."""

    def next(self, past: Past) -> Sequence[Trial] | None:
        """Trials to run now; None to wait for one that runs. It is done when it has none and none of its own runs."""


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
        check_stage(self.name, self.role)
        if self.trials < 1 or not 0 <= self.startup <= self.trials or self.parallel < 1:
            raise ConfigError(
                f"a search needs trials >= 1, 0 <= startup <= trials and parallel >= 1, but {self.name!r} has "
                f"({self.trials}, {self.startup}, {self.parallel}); change what is out of range"
            )
        if "precision" in self.axes:
            raise ConfigError(
                f"`precision` must be the same in all proxies, but it is an axis of {self.name!r}; set it in `base`, "
                "and measure what another costs by froude.space.precision_pairs"
            )
        own = [*_SET, *(["schedule.warmup_tokens"] if WARMUP in self.axes else [])]
        if overridden := [key for key in own if key in self.axes]:
            raise ConfigError(
                f"an axis of a search must be a setting that the search leaves alone, but {self.name!r} has "
                f"{', '.join(overridden)}, which it sets itself; set `base`, or add a stage for each value"
            )
        if set(self.default) != set(self.axes):
            odd = sorted(set(self.default) ^ set(self.axes))
            raise ConfigError(
                f"the default of a search must name each axis, but {self.name!r} differs in {', '.join(odd)}; "
                "name each axis once"
            )
        for key, axis in self.axes.items():
            if self.default[key] not in axis:
                raise ConfigError(
                    f"the default of axis {key!r} must lie on it, but got {self.default[key]!r} for {axis}; "
                    "choose a value on the axis"
                )
        self.trial(0, self.default)
        for key, axis in self.axes.items():
            for value in axis.extremes:
                self._check({key: value})
            for value in axis.interior:
                self._check({key: value}, "; give whole numbers as a Choice")
        for changes in islice(self._pairs(), _PAIRS):
            self._check(changes)

    def _pairs(self) -> Iterable[dict[str, Scalar]]:
        for (one, first), (two, second) in combinations(self.axes.items(), 2):
            for a, b in product(first.extremes, second.extremes):
                yield {one: a, two: b}

    def _check(self, changes: Mapping[str, Scalar], remedy: str = "") -> None:
        """ConfigError if these values make no valid run: drawn later, they would end the sweep in its middle."""
        try:
            self.trial(0, {**self.default, **changes})
        except ConfigError as error:
            at = ", ".join(f"{key} = {value}" for key, value in changes.items())
            raise ConfigError(
                f"a search must make valid runs wherever its axes reach, but {self.name!r} does not at {at}: {error}"
                f"{remedy}"
            ) from None

    def trial(self, number: int, params: Mapping[str, Scalar]) -> Trial:
        """The trial of these axis values; ConfigError if they make no valid run."""
        changes: dict[str, Any] = {key: value for key, value in params.items() if key != WARMUP}
        batch = int(changes.get("batch", self.base.batch))
        tokens = whole_steps(self.base.tokens, batch, self.base.schedule.ramp)
        if WARMUP in params:
            changes["schedule.warmup_tokens"] = round(float(params[WARMUP]) * tokens)
        name = self._name(number)
        run = self.base.replace(changes, tokens=tokens, name=name, stage=self.name)
        return Trial(name, (run,), params=dict(params))

    @property
    def extends(self) -> bool:
        return False

    @property
    def one_by_one(self) -> bool:
        return True

    def planned(self) -> list[Trial]:
        return [self.trial(number, self.default) for number in range(self.trials)]

    def undecided(self, before: Sequence[str]) -> str:
        return f"axis values, by TPE from trial {self.startup + 1} on"

    def next(self, past: Past) -> list[Trial] | None:
        """The next trial, once those that it is to know have ended; from the study, where it is there."""
        from froude.space.tpe import propose

        number = len(past.trials)
        if number == self.trials:
            return None
        if number == 0:
            return [self.trial(0, self.default)]
        found = past.stored(self._name(number))
        if found is not None and self._could_be(found.params):
            return [self.trial(number, found.params)]
        known = past.trials[: max(0, number - self.parallel + 1)] if number > self.startup else []
        rows = [past.outcome(trial) for trial in known]
        results = [(trial.params, _loss(row)) for trial, row in zip(known, rows, strict=True) if row]
        if len(results) < len(known):
            return None
        key, by_chance = f"{past.seed}:{self.name}:{number}", number <= self.startup
        return [self.trial(number, propose(self.axes, results, key=key, by_chance=by_chance))]

    def _could_be(self, params: Mapping[str, Scalar]) -> bool:
        """Whether these values lie on the axes; the study's may be of a search as it was before it was edited."""
        return set(params) == set(self.axes) and all(params[key] in axis for key, axis in self.axes.items())

    def _name(self, number: int) -> str:
        return f"{self.name}-{number:02d}"


def _loss(row: Mapping[str, Any]) -> float:
    """Nats per token: infinite for a run that diverged, NaN for one that failed."""
    lost = math.inf if row["status"] == "diverged" else math.nan
    return lost if row["loss"] is None else float(row["loss"])


Layout = Callable[["pl.DataFrame"], Sequence[Trial]]


@dataclass(frozen=True)
class Grid:
    """Trials that a function lays out from the rows (of `Study.trials()`) of the stages before.

    `trials` is also called with no rows, to plan: it must then fall back on defaults. `extend` is called once, with
    the stage's own rows among them, when all are done, and may add trials. `after` names the stages whose rows it
    gets and which must be done (None: all stages before this one); stages that don't wait for each other overlap.
    """

    name: str
    trials: Layout
    role: Role
    extend: Layout | None = None
    after: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_stage(self.name, self.role)

    @property
    def extends(self) -> bool:
        return self.extend is not None

    @property
    def one_by_one(self) -> bool:
        return False

    def planned(self) -> list[Trial]:
        import polars as pl

        from froude import schemas

        empty = pl.from_arrow(schemas.TRIALS.empty_table())
        assert isinstance(empty, pl.DataFrame)
        return self._checked(self.trials, empty)

    def undecided(self, before: Sequence[str]) -> str:
        if not before:
            return ""
        return f"settings, from {', '.join(before)}" + ("; more trials at an edge" if self.extend else "")

    def next(self, past: Past) -> list[Trial] | None:
        """All of them at once; and once, when they have ended, what the stage adds to itself."""
        if past.rounds == 0:
            return self._checked(self.trials, past.before())
        if past.rounds > 1 or self.extend is None or not all(map(past.outcome, past.trials)):
            return None
        return self._checked(self.extend, past.own())

    def _checked(self, layout: Layout, rows: pl.DataFrame) -> list[Trial]:
        def listed() -> list[Trial]:
            found = layout(rows)
            if not isinstance(found, Iterable):
                raise ConfigError(
                    f"stage {self.name!r} must lay out a list of Trial, but its function returned {found!r:.60}; "
                    "return the list"
                )
            return list(found)  # a generator runs only here

        trials = call_user(f"stage {self.name!r}", listed)
        for trial in trials:
            if not isinstance(trial, Trial):
                raise ConfigError(f"stage {self.name!r} must lay out a list of Trial, but it holds {trial!r}")
        return [_staged(trial, self.name) for trial in trials]


def _staged(trial: Trial, stage: str) -> Trial:
    runs = tuple(run if run.stage == stage else run.replace(stage=stage, name=run.name) for run in trial.runs)
    return Trial(trial.name, runs, trial.stop_loss, trial.params)
