"""What an optimizer is to the package: where its class is, what state it keeps, and what may be relied on.

No torch here: plans and checks of a run's settings read a spec, too. `froude.train.optimizers` builds what it says.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from froude.section import ConfigError, listing
from froude.user_code import load

Option = str | int | float | bool
Shape = tuple[int, ...]
#: The most that an average may keep a step.
ALMOST = 1 - 1e-9

#: Bytes of an element of the state; floats are of the parameter's dtype, which is fp32.
ELEMENT_BYTES = {"float": 4, "double": 8, "int8": 1, "uint8": 1}

#: What an estimate of the curvature takes, in forward and backward passes (1.1 and 3.3 measured on a CPU, width 256).
PASSES = {"gauss_newton": 1.0, "hutchinson": 3.0}


class Settings(Protocol):
    """Those keys of a run's table `optimizer` that are for the class; lr, weight_decay and eps go into the groups."""

    @property
    def beta1(self) -> float: ...

    @property
    def beta2(self) -> float: ...

    def option(self, name: str) -> Any:
        """One of the spec's `options`, as the run sets it."""


@dataclass(frozen=True)
class Held:
    """A tensor of the state of one parameter or matrix, and the number that all of it starts at.

    "weight": it starts as a copy of the parameter, whose `unit` is then "row" or "model".
    """

    shape: Shape
    start: float | Literal["weight"] = 0.0
    dtype: Literal["float", "double", "int8", "uint8"] = "float"

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class Average:
    """What is evaluated and exported in place of the weights w: w + weight * (state[key] - w), as `torch.lerp` does."""

    key: str
    weight: float


def moments(*names: str, **scalars: float) -> Callable[[Settings, Shape], dict[str, Held]]:
    """A state of tensors like the parameter, which start at zero, and of numbers, which start at the values given."""

    def state(settings: Settings, shape: Shape) -> dict[str, Held]:
        numbers = {name: Held((), start) for name, start in scalars.items()}
        return numbers | {name: Held(shape) for name in names}

    return state


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One optimizer.

    `factory` is the import path of a `torch.optim.Optimizer`, called with groups and `arguments(settings)`; `state` has
    what it keeps of a parameter, by name. `family` is that of a parametrization's table, or a function of the settings.
    `options` are settings that only this optimizer has, with their defaults, and `choices`, `least` and `most` what
    they may be; `defaults` those of `lr`, `beta1` and the like where they are not the package's. `implementations` are
    keywords by which the class chooses among kernels.

    `unit` is what the update of a row depends on. "row": on nothing but that row, so that each worker makes those of
    its rows. "matrix": on all of a hidden matrix, and nothing else is given to the class: AdamW takes the rest.
    "tensor": on all of a parameter. "model": on more than that, and a run has one worker. What is whole is made by one
    worker, its owner.

    `proportional`: an update is as large as its gradient, else its size does not depend on the gradient's.
    `epsilon`: the class has an epsilon, which a group may set. `beta2`: it uses that setting. `corrected` names the
    averages by beta2 in its state that the class divides by 1 - beta2^t, each with the name of t in the state.
    `coupled`: decay is added to the gradient, and so divided as it is unless the update is proportional to it.
    `decays`: there is decay at all.
    `factor(settings, rows, columns)` is by how much a matrix of that shape moves further than the class moves it; its
    decay stays.

    `counters` are those numbers of the state that the class keeps in its groups. `average(settings)`: training is at
    one point, and evaluations are at another, an average; the class has `train()`, as Schedule-Free's do, and `unit` is
    "row" or "model". `schedules` are those that it can have, all if empty. `extra` is the extra of froude's with which
    its library is installed.
    `curvature`: of what kind are the estimates of the Hessian's diagonal of which `hessian` in the state is an average
    (beta2); one is made in every step whose number, from 0, the option `every` divides. For units "row" and "model".
    """

    name: str
    factory: str
    arguments: Callable[[Settings], dict[str, Any]]
    family: str | Callable[[Settings], str]
    state: Callable[[Settings, Shape], dict[str, Held]]
    options: Mapping[str, Option] = field(default_factory=dict)
    choices: Mapping[str, tuple[Option, ...]] = field(default_factory=dict)
    least: Mapping[str, float] = field(default_factory=dict)
    most: Mapping[str, float] = field(default_factory=dict)
    defaults: Mapping[str, float] = field(default_factory=dict)
    implementations: tuple[Literal["foreach", "fused"], ...] = ()
    unit: Literal["row", "matrix", "tensor", "model"] = "row"
    proportional: bool = False
    epsilon: bool = True
    beta2: bool = True
    corrected: Mapping[str, str] = field(default_factory=dict)
    coupled: bool = False
    decays: bool = True
    factor: Callable[[Settings, int, int], float] = lambda settings, rows, columns: 1.0
    counters: tuple[str, ...] = ()
    average: Callable[[Settings], Average] | None = None
    schedules: tuple[str, ...] = ()
    extra: str = ""
    curvature: Literal["", "gauss_newton", "hutchinson"] = ""

    @property
    def has_beta2(self) -> bool:
        """Whether anything of its state is an average by beta2."""
        return self.beta2 or bool(self.curvature)

    def __post_init__(self) -> None:
        if self.average and self.unit not in ("row", "model"):
            raise ConfigError(
                f'an optimizer with an `average` must have `unit` "row" or "model", but {self.name} has "{self.unit}"'
            )
        if self.curvature and ("every" not in self.options or self.unit not in ("row", "model")):
            raise ConfigError(
                f'a Spec with `curvature` must have the option `every`, and unit "row" or "model", but {self.name} has '
                f'options {listing(map(repr, self.options))} and unit "{self.unit}"; correct it'
            )

    @property
    def plain(self) -> str:
        """The implementation that gives a row the same bits among any others: torch's foreach, if the class has it."""
        return "foreach" if "foreach" in self.implementations else "auto"

    @property
    def library(self) -> str:
        """The package that the class comes from; "" for torch's and our own."""
        package = self.factory.partition(":")[0].partition(".")[0]
        return "" if package in ("froude", "torch") else package

    def load(self) -> Any:
        """The class; ConfigError if it can't be imported, with the way to install it if it comes with an extra."""
        if self.extra and importlib.util.find_spec(self.library) is None:
            raise ConfigError(
                f"{self.name} needs the package {self.library}, which is not installed; "
                f"pip install -e '.[{self.extra}]' in froude's checkout"
            )
        return load(self.factory)

    def passes(self, settings: Settings) -> float:
        """Forward and backward passes that a step takes, on average."""
        return 1 + (PASSES[self.curvature] / settings.option("every") if self.curvature else 0)
