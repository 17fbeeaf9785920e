"""What a parametrization is: the powers of width that go into each kind of parameter, and what they promise.

m is width / base_width; at m = 1 all parametrizations are the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from froude.sections import Model

Kind = Literal["embedding", "hidden", "readout", "norm", "bias"]
Multiplied = Literal["logits", "attention"]
#: In a table, the rows of every family of optimizers that has none of its own.
ANY = "any"


@dataclass(frozen=True)
class Powers:
    """Powers of m in one kind's standard deviation at the start, and in its lr, weight_decay and eps."""

    init: float = 0.0
    lr: float = 0.0
    weight_decay: float = 0.0
    eps: float = 0.0


@dataclass(frozen=True)
class Factors:
    """Factors on one kind's standard deviation at the start, and on the run's lr, weight_decay and eps."""

    init: float = 1.0
    lr: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Parametrization:
    """A parametrization by name, with a label for people.

    `transfers`: whether the best rate is to be one at every width, so that its slope over width is to be 0; one that
    promises nothing can be the control of one that does. `table` has the rows that are not all zero, by family of
    optimizers (or ANY) and kind; `logits` is the power of m that multiplies logits, `attention` the power of d_head
    that multiplies attention logits (at `base_head_dim` it is always -1/2).
    """

    name: str
    label: str
    transfers: bool
    table: Mapping[str, Mapping[Kind, Powers]]
    logits: float = 0.0
    attention: float = -0.5

    @property
    def plain_label(self) -> str:
        """The label in ASCII."""
        return self.label.replace("μ", "mu")

    def covers(self, family: str) -> bool:
        """Whether it has rules for a family of optimizers."""
        return family in self.table or ANY in self.table

    def powers(self, kind: Kind, family: str) -> Powers:
        """A row of the table; the family is one that it covers."""
        return self.table[family if family in self.table else ANY].get(kind, Powers())

    def factors(self, model: Model, kind: Kind, family: str) -> Factors:
        """The row as factors, for a model of one width."""
        m, row = _ratio(model), self.powers(kind, family)
        return Factors(
            init=power(m, row.init),
            lr=power(m, row.lr),
            weight_decay=power(m, row.weight_decay),
            eps=power(m, row.eps),
        )

    def multiplier(self, model: Model, what: Multiplied) -> float:
        """What a forward pass multiplies logits by (tied or not), or the products of queries and keys."""
        if what == "logits":
            return power(_ratio(model), self.logits)
        base = model.base_head_dim or model.head_dim
        return power(base, -0.5 - self.attention) / power(model.head_dim, -self.attention)


def _ratio(model: Model) -> float:
    return model.width / model.base_width


def power(x: float, exponent: float) -> float:
    """`x` to a power; a root and a reciprocal are rounded once each, as `math.sqrt` and a division are."""
    if exponent < 0:
        return 1.0 / power(x, -exponent)
    return math.sqrt(x) if exponent == 0.5 else float(x**exponent)
