"""Define a search space: stages of trials that each use what the former returned, and the large run they are for."""

from __future__ import annotations

import importlib.util
import inspect
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from froude.config import NAME, ConfigError, Run, Scalar, whole_steps

if TYPE_CHECKING:
    import polars as pl

Role = Literal["search", "lr_transfer", "critical_batch", "loss_law"]
#: Axis of a search that is no key of a Run: warmup as a share of the run's tokens.
WARMUP = "warmup_fraction"


@dataclass(frozen=True)
class LogUniform:
    """A float between `low` and `high`, uniform in its logarithm."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise ConfigError(f"a LogUniform axis needs 0 < low < high, but got ({self.low}, {self.high}); mend it")

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high


@dataclass(frozen=True)
class Uniform:
    """A float between `low` and `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise ConfigError(f"a Uniform axis needs low < high, both finite, but got ({self.low}, {self.high}); mend it")

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high


@dataclass(frozen=True)
class Choice:
    """One of several values."""

    options: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        if not self.options or len(set(self.options)) < len(self.options):
            raise ConfigError(f"a Choice axis needs different options, but got {self.options}; mend it")

    def __contains__(self, value: object) -> bool:
        return value in self.options


Axis = LogUniform | Uniform | Choice


def _named(what: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(f"{what} must have a name of letters, digits and . _ -, but got {name!r}; rename it")


@dataclass(frozen=True)
class Trial:
    """What one worker computes in one go: a run, or several that are WSD branches off one trunk.

    Branches are equal but for name and tokens, and sorted by tokens. Those after the first that reaches `stop_loss`
    (nats per token) are not trained. `params` is where a search placed the trial.
    """

    name: str
    runs: tuple[Run, ...]
    stop_loss: float | None = None
    params: Mapping[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _named("a trial", self.name)
        if not self.runs:
            raise ConfigError(f"a trial must have a run, but {self.name!r} has none; add one")
        if len(self.runs) == 1:
            return
        if len({run.name for run in self.runs}) < len(self.runs):
            raise ConfigError(f"branches of a trial must have different names, but those of {self.name!r} do not")
        horizons = [run.tokens for run in self.runs]
        alike = {run.replace(tokens=horizons[-1]).fingerprint for run in self.runs}
        if len(alike) > 1 or self.runs[0].schedule.name != "wsd" or self.runs[0].max_workers > 1:
            raise ConfigError(
                f"branches of a trial must be one-worker WSD runs equal but for name and tokens, but those of "
                f"{self.name!r} differ in more; make them trials of their own"
            )
        if horizons != sorted(set(horizons)):
            raise ConfigError(f"branches of a trial must be sorted by tokens, but {self.name!r} has {horizons}; sort them")

    @property
    def workers(self) -> int:
        return self.runs[0].max_workers

    @property
    def steps(self) -> int:
        """Optimizer steps when no branch is left out."""
        if len(self.runs) == 1:
            return self.runs[0].steps
        # A branch leaves the trunk where its tail begins.
        starts = [int(max(r.tokens * (1 - r.schedule.decay_fraction), r.schedule.warmup_tokens)) // r.batch for r in self.runs]
        return starts[-1] + sum(run.steps - start for run, start in zip(self.runs, starts, strict=True))

    @property
    def tokens(self) -> int:
        """Tokens trained on when no branch is left out."""
        return self.steps * self.runs[0].batch

    def to_json(self) -> str:
        content = {"name": self.name, "stop_loss": self.stop_loss, "params": dict(self.params)}
        return json.dumps(content | {"runs": [run.to_dict() for run in self.runs]})

    @classmethod
    def from_json(cls, text: str) -> Trial:
        content = json.loads(text)
        return cls(**content | {"runs": tuple(Run.from_dict(run) for run in content["runs"])})


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
        _named("a stage", self.name)
        if self.trials < 1 or not 0 <= self.startup <= self.trials or self.parallel < 1:
            raise ConfigError(
                f"a search needs trials >= 1, 0 <= startup <= trials and parallel >= 1, but {self.name!r} has "
                f"({self.trials}, {self.startup}, {self.parallel}); mend it"
            )
        if set(self.default) != set(self.axes):
            odd = sorted(set(self.default) ^ set(self.axes))
            raise ConfigError(f"the default of a search must name each axis, but {self.name!r} differs in {', '.join(odd)}")
        for key, axis in self.axes.items():
            if self.default[key] not in axis:
                raise ConfigError(f"the default of axis {key!r} must lie on it, but got {self.default[key]!r} for {axis}")
        self.trial(0, self.default)

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
        _named("a stage", self.name)
        if self.role not in get_args(Role):
            raise ConfigError(f"a stage's role must be one of {', '.join(get_args(Role))}, but got {self.role!r}")

    def lay_out(self, rows: pl.DataFrame) -> list[Trial]:
        """The stage's trials, given the rows of the stages before."""
        return self._checked(self.trials, rows)

    def more(self, rows: pl.DataFrame) -> list[Trial]:
        """What the stage adds to itself, given its own rows, too."""
        return self._checked(self.extend, rows) if self.extend else []

    def _checked(self, planner: Planner, rows: pl.DataFrame) -> list[Trial]:
        trials = list(_user(f"stage {self.name!r}", planner, rows))
        for trial in trials:
            if not isinstance(trial, Trial):
                raise ConfigError(f"stage {self.name!r} must lay out a list of Trial, but it holds {trial!r}")
        return [_staged(trial, self.name) for trial in trials]


def _staged(trial: Trial, stage: str) -> Trial:
    runs = tuple(run if run.stage == stage else run.replace(stage=stage, name=run.name) for run in trial.runs)
    return Trial(trial.name, runs, trial.stop_loss, trial.params)


@dataclass(frozen=True)
class Space:
    """A study to be made: its stages, in order, and the large run (`target`) that they are for."""

    name: str
    seed: int
    stages: tuple[Search | Grid, ...]
    target: Run

    def __post_init__(self) -> None:
        _named("a search space", self.name)
        seen: list[str] = []
        for stage in self.stages:
            if stage.name in seen:
                raise ConfigError(f"stages must have different names, but {stage.name!r} comes twice; rename one")
            if unknown := set(stage.after or ()) - set(seen):
                raise ConfigError(
                    f"stage {stage.name!r} can only come after stages named before it, but got {', '.join(sorted(unknown))}"
                )
            seen.append(stage.name)
        if not seen:
            raise ConfigError(f"a search space must have a stage, but {self.name!r} has none; add one")

    def before(self, stage: Search | Grid) -> tuple[str, ...]:
        """Names of the stages that must be done before this one begins."""
        names = [other.name for other in self.stages]
        return stage.after if stage.after is not None else tuple(names[: names.index(stage.name)])

    def planned(self) -> dict[str, list[Trial]]:
        """Every stage's trials as far as known before any has run; ConfigError if two have one name."""
        import polars as pl

        from froude import records

        empty = pl.from_arrow(records.TRIALS.empty_table())
        assert isinstance(empty, pl.DataFrame)
        plan: dict[str, list[Trial]] = {}
        for stage in self.stages:
            if isinstance(stage, Search):
                plan[stage.name] = [stage.trial(number, stage.default) for number in range(stage.trials)]
            else:
                plan[stage.name] = stage.lay_out(empty)
        unique([trial for trials in plan.values() for trial in trials])
        return plan

    def stage_table(self) -> dict[str, dict[str, Any]]:
        """Role and settings of every stage by name, as study.json keeps them."""
        table: dict[str, dict[str, Any]] = {}
        for stage, trials in zip(self.stages, self.planned().values(), strict=True):
            goals = {trial.stop_loss for trial in trials} - {None}
            table[stage.name] = {"role": stage.role, "trials": len(trials), "extends": bool(getattr(stage, "extend", None))}
            if len(goals) == 1:
                table[stage.name]["target_loss"] = goals.pop()
        return table


def unique(trials: Sequence[Trial]) -> None:
    """ConfigError if two trials, or two runs, have one name."""
    for what, names in (("trials", [t.name for t in trials]), ("runs", [r.name for t in trials for r in t.runs])):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"{what} must have different names, but {twice[0]!r} comes more than once; rename them")


def _user(what: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call code of a user's search space; whatever it raises becomes a ConfigError that says where."""
    try:
        return function(*arguments, **named)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  a user's code may raise anything
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        at = f"{Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno}" if place else "?"
        raise ConfigError(f"{what} must not raise, but got {type(error).__name__}: {error} (at {at}); mend it") from error


def load_space(path: str | Path, *, seed: int = 0) -> Space:
    """The Space that `space()` of a Python file returns; the file may take the seed: `def space(seed: int = 0)`.

    ConfigError if there is no such file, if it has no `space()`, if that raises, or returns anything else.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"a search space must be a Python file, but there is none at {file}; see search_spaces/")
    spec = importlib.util.spec_from_file_location(f"froude_space_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"a search space must be a Python file, but got {file}; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses in the file look themselves up
    _user(f"{file}", spec.loader.exec_module, module)
    function = getattr(module, "space", None)
    if not callable(function):
        raise ConfigError(f"a search space must define space(), but {file} does not; add `def space(seed: int = 0) -> Space`")
    takes_seed = "seed" in inspect.signature(function).parameters
    if seed and not takes_seed:
        raise ConfigError(f"a seed needs a search space that takes one, but space() of {file} does not; write space(seed: int = 0)")
    found = _user(f"space() of {file}", function, **({"seed": seed} if takes_seed else {}))
    if not isinstance(found, Space):
        raise ConfigError(f"space() must return a froude.space.Space, but that of {file} returned {type(found).__name__}")
    found.planned()
    return found
