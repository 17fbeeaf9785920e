"""What an optimizer is to the package: where its class is, what state it keeps, and what may be relied on.

No torch here: plans and checks of a run's settings read a spec, too. `froude.train.optimizers` builds what it says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Option = str | int | float | bool
Shape = tuple[int, ...]
#: Bytes of an element of the state; floats are of the parameter's dtype, which is fp32.
ELEMENT_BYTES = {"float": 4, "int8": 1, "uint8": 1}


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
    """A tensor of the state of one parameter or matrix, and the number that all of it starts at."""

    shape: Shape
    start: float = 0.0
    dtype: Literal["float", "int8", "uint8"] = "float"

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


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
    `options` are settings that only this optimizer has, with their defaults, and `choices` and `least` what they may
    be; `defaults` those of `lr`, `beta1` and the
    like where they are not the package's. `implementations` are keywords by which the class chooses among kernels.

    `unit` is what the update of a row depends on. "row": on nothing but that row, so that each worker makes those of
    its rows. "matrix": on all of a hidden matrix, and nothing else is given to the class: AdamW takes the rest.
    "tensor": on all of a parameter. "model": on more than that, and a run has one worker. What is whole is made by one
    worker, its owner.

    `proportional`: an update is as large as its gradient, else its size does not depend on the gradient's.
    `epsilon`: the class has an epsilon, which a group may set. `beta2`: it uses that setting. `coupled`: decay is added
    to the gradient, and so divided as it is unless the update is proportional to it. `decays`: there is decay at all.
    `factor(settings, rows, columns)` is by how much a matrix of that shape moves further than the class moves it; its
    decay stays.
    """

    name: str
    factory: str
    arguments: Callable[[Settings], dict[str, Any]]
    family: str | Callable[[Settings], str]
    state: Callable[[Settings, Shape], dict[str, Held]]
    options: Mapping[str, Option] = field(default_factory=dict)
    choices: Mapping[str, tuple[Option, ...]] = field(default_factory=dict)
    least: Mapping[str, float] = field(default_factory=dict)
    defaults: Mapping[str, float] = field(default_factory=dict)
    implementations: tuple[Literal["foreach", "fused"], ...] = ()
    unit: Literal["row", "matrix", "tensor", "model"] = "row"
    proportional: bool = False
    epsilon: bool = True
    beta2: bool = True
    coupled: bool = False
    decays: bool = True
    factor: Callable[[Settings, int, int], float] = lambda settings, rows, columns: 1.0

    @property
    def plain(self) -> str:
        """The implementation that gives a row the same bits among any others: torch's foreach, if the class has it."""
        return "foreach" if "foreach" in self.implementations else "auto"

    def state_bytes(self, settings: Settings, shape: Shape) -> int:
        """Bytes of the state of a parameter or matrix."""
        return sum(held.nbytes for held in self.state(settings, shape).values())
