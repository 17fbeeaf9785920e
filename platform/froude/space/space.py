"""A study to be made: its stages and its target, from Python or from a user's file."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from froude.config import ConfigError, Run
from froude.parametrizations import able
from froude.space.stages import Stage
from froude.space.trial import Trial, check_name, unique
from froude.user_code import call_user


@dataclass(frozen=True)
class Space:
    """A study to be made: its stages, in order, and the target run (`target`) that they are for."""

    name: str
    seed: int
    stages: tuple[Stage, ...]
    target: Run

    def __post_init__(self) -> None:
        check_name("a search space", self.name)
        if not isinstance(self.target, Run):
            raise ConfigError(
                f"`target` must be the target run that the study is for, a Run, but {self.name!r} has {self.target!r}; "
                "give one"
            )
        seen: list[str] = []
        for stage in self.stages:
            if stage.name in seen:
                raise ConfigError(
                    f"stages must have different names, but {stage.name!r} comes twice; rename one"
                )
            if unknown := set(stage.after or ()) - set(seen):
                raise ConfigError(
                    f"`after` of stage {stage.name!r} must name stages before it, but got "
                    f"{', '.join(sorted(unknown))}; reorder the stages, or correct `after`"
                )
            seen.append(stage.name)
        if not seen:
            raise ConfigError(f"a search space must have a stage, but {self.name!r} has none; add one")

    def before(self, stage: Stage) -> tuple[str, ...]:
        """Names of the stages that must be done before this one begins."""
        names = [other.name for other in self.stages]
        return stage.after if stage.after is not None else tuple(names[: names.index(stage.name)])

    def planned(self) -> dict[str, list[Trial]]:
        """Every stage's trials as far as known before any has run; ConfigError if two have one name."""
        return {name: list(trials) for name, trials in self._plan.items()}

    @cached_property
    def _plan(self) -> Mapping[str, Sequence[Trial]]:
        """Laid out once: with 10^5 runs that takes minutes, and many ask."""
        plan = {stage.name: stage.planned() for stage in self.stages}
        if not any(plan.values()):
            raise ConfigError(
                f"a search space must plan a trial, but no stage of {self.name!r} lays one out; a grid without rows "
                "must fall back on defaults"
            )
        self.check(plan)
        return plan

    def check(self, trials: Mapping[str, Sequence[Trial]]) -> None:
        """ConfigError unless these trials, by stage, have names of their own, and one precision."""
        unique([trial for given in trials.values() for trial in given])
        self._check_precisions(trials)

    def check_new(self) -> None:
        """ConfigError for what a study that is there already may have, and a new one should not."""
        same = self.target.as_proxy().fingerprint
        proxies = [run for trials in self.planned().values() for trial in trials for run in trial.runs]
        for run in [self.target, *proxies]:
            able.check_heads(run.width_rules, run.optimizer)
        for run in (run for run in proxies if run.name == self.target.name):
            if run.fingerprint != same or run.max_workers > 1:  # of several workers both would write one log
                raise ConfigError(
                    f"the target must have a name of its own, but a proxy of {self.name!r} is called {run.name!r}, "
                    "too; name one of them (names that runs get by themselves tell no horizon)"
                )

    def _check_precisions(self, trials: Mapping[str, Sequence[Trial]]) -> None:
        """ConfigError unless all trials have one precision, but for those that measure what one costs."""
        measuring = {stage.name for stage in self.stages if stage.role == "precision"}
        first: dict[str, str] = {}
        for name, given in trials.items():
            for run in (run for trial in given for run in trial.runs if name not in measuring):
                if run.precision == "fp8":
                    raise ConfigError(
                        '`precision` "fp8" is for the target, and for a stage of the role precision, which measures '
                        f'what it costs, but {run.name} of stage {name!r} has it; train proxies in "bf16"'
                    )
                first.setdefault(run.precision, f"{run.name} of stage {name!r}")
        if len(first) > 1:
            found = " and ".join(f'"{each}" ({who})' for each, who in first.items())
            raise ConfigError(
                f"`precision` must be the same in all proxies, but got {found}; choose one, and measure what another "
                "costs by froude.space.precision_pairs"
            )

    def stage_table(self) -> dict[str, dict[str, Any]]:
        """Role and settings of every stage by name, as study.json keeps them."""
        table: dict[str, dict[str, Any]] = {}
        for stage, trials in zip(self.stages, self.planned().values(), strict=True):
            goals = {trial.stop_loss for trial in trials} - {None}
            table[stage.name] = {
                "role": stage.role,
                "trials": len(trials),
                "extends": stage.extends,
            }
            if len(goals) == 1:
                table[stage.name]["target_loss"] = goals.pop()
        return table


def load_space(path: str | Path, *, seed: int = 0) -> Space:
    """The Space that `space()` of a Python file returns; the file may take the seed: `def space(seed: int = 0)`.

    ConfigError if there is no such file, if it has no `space()`, if that raises, or returns anything else.
    """
    file = Path(path)
    module = _module(file)
    function = getattr(module, "space", None)
    if not callable(function):
        raise ConfigError(
            f"a search space must define space(), but {file} does not; add `def space(seed: int = 0) -> Space`"
        )
    takes_seed = "seed" in inspect.signature(function).parameters
    if seed and not takes_seed:
        raise ConfigError(
            f"a seed needs a search space that takes one, but space() of {file} does not; write space(seed: int = 0)"
        )
    made = partial(function, seed=seed) if takes_seed else function
    found = call_user(f"space() of {file}", made)
    if not isinstance(found, Space):
        raise ConfigError(
            f"space() must return a froude.space.Space, but that of {file} returned {type(found).__name__}"
        )
    found.planned()
    return found


def load_run(path: str) -> Run:
    """The Run that a function of a Python file returns, given as FILE.py:FUNCTION; ConfigError as `load_space`."""
    file, _, name = path.rpartition(":")
    if not name:
        raise ConfigError(f"a run's file must be FILE.py:FUNCTION, but got {path}; name the function")
    function = getattr(_module(Path(file)), name, None)
    if not callable(function):
        raise ConfigError(f"a run's file must define {name}(), but {file} does not; correct the name")
    found = call_user(f"{name}() of {file}", function)
    if not isinstance(found, Run):
        raise ConfigError(
            f"{name}() must return a froude.config.Run, but that of {file} returned {type(found).__name__}"
        )
    return found


def _module(file: Path) -> ModuleType:
    if not file.is_file():
        raise ConfigError(
            f"a search space must be a Python file, but there is none at {file}; see search_spaces/"
        )
    spec = importlib.util.spec_from_file_location(f"froude_space_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"a search space must be a Python file, but got {file}; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses in the file look themselves up
    call_user(f"{file}", spec.loader.exec_module, module)
    return module
