"""What an optimizer is to the package: where its class is, what state it keeps, and what may be relied on.

No torch here: plans and checks of a run's settings read a spec, too. `froude.train.optimizers` builds what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


class Settings(Protocol):
    """Those keys of a run's table `optimizer` that are for the class; lr, weight_decay and eps go into the groups."""

    @property
    def beta1(self) -> float: ...

    @property
    def beta2(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One optimizer.

    `factory` is the import path of a `torch.optim.Optimizer`, called with groups and `arguments(settings)`. Its state
    of a parameter is `moments`, which have the parameter's shape and start at zero, and `scalars`, which start at the
    values given. `family` is that of a parametrization's table. `implementations` are keywords by which the class
    chooses among kernels.

    `proportional`: an update is as large as its gradient, else its size does not depend on the gradient's.
    `by_rows`: the update of a row depends on nothing but that row, so that each worker can make those of its rows;
    without it a run has one worker.
    """

    name: str
    factory: str
    arguments: Callable[[Settings], dict[str, Any]]
    family: str
    moments: tuple[str, ...] = ()
    scalars: Mapping[str, float] = field(default_factory=dict)
    implementations: tuple[Literal["foreach", "fused"], ...] = ()
    proportional: bool = False
    by_rows: bool = True

    @property
    def plain(self) -> str:
        """The implementation that gives a row the same bits among any others: torch's foreach, if the class has it."""
        return "foreach" if "foreach" in self.implementations else "auto"

    @property
    def state_bytes(self) -> int:
        """Bytes of the state, in fp32, for each number of a parameter."""
        return 4 * len(self.moments)
