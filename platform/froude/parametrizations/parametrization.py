"""What a parametrization is: the powers of width and depth that go into each kind of parameter, and what they promise.

m is width / base_width, and m_L is depth / base_depth; where both are 1 all parametrizations are the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from froude.optimizers.section import DecayWidth
from froude.optimizers.section import Kind as Kind
from froude.sections import Model

Multiplied = Literal["logits", "attention", "residual"]
#: Powers of m in rate times decay of hidden matrices, beyond the table's, under which it stays: published are no more
#: (2510.19093), -1/2 (2510.15262), and -1 for lengths that are compute-optimal (2512.05620).
DECAY_WIDTHS: Mapping[DecayWidth, float] = {"constant": 0.0, "inverse_sqrt": -0.5, "inverse": -1.0}
#: In a table, the rows of every family of optimizers that has none of its own.
ANY = "any"


@dataclass(frozen=True)
class Powers:
    """Powers of m, or m_L, in a parameter's standard deviation at the start, and in its lr, weight_decay and eps."""

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
    that multiplies attention logits (at `base_head_dim` it is always -1/2). `residual` is the power of m_L that
    multiplies what a block adds to the residual stream, and `blocks` has those of the parameters in blocks, whatever
    their kind; where it is 0, those that write into the stream start with sd / sqrt(2 depth), else at every depth as at
    the base.
    """

    name: str
    label: str
    transfers: bool
    table: Mapping[str, Mapping[Kind, Powers]]
    logits: float = 0.0
    attention: float = -0.5
    residual: float = 0.0
    blocks: Powers = Powers()

    @property
    def plain_label(self) -> str:
        """The label in ASCII."""
        return self.label.replace("μ", "mu")

    def covers(self, *families: str) -> bool:
        """Whether it has rules for each of these families of optimizers."""
        return ANY in self.table or all(family in self.table for family in families)

    def powers(self, kind: Kind, family: str, decay_width: DecayWidth = "constant") -> Powers:
        """A row of the table, by the rule for decay of hidden matrices; the family is one that it covers."""
        row = self.table[family if family in self.table else ANY].get(kind, Powers())
        further = DECAY_WIDTHS[decay_width] if kind == "hidden" else 0.0
        return replace(row, weight_decay=row.weight_decay + further)

    def factors(
        self,
        model: Model,
        kind: Kind,
        family: str,
        *,
        in_block: bool = False,
        decay_width: DecayWidth = "constant",
    ) -> Factors:
        """The row as factors, for a model of one size; `in_block` of a parameter that is in one of its blocks."""
        m, row = _ratio(model), self.powers(kind, family, decay_width)
        m_L, more = model.depth / model.base_depth, self.blocks if in_block else Powers()
        return Factors(
            init=power(m, row.init) * power(m_L, more.init),
            lr=power(m, row.lr) * power(m_L, more.lr),
            weight_decay=power(m, row.weight_decay) * power(m_L, more.weight_decay),
            eps=power(m, row.eps) * power(m_L, more.eps),
        )

    def multiplier(self, model: Model, what: Multiplied) -> float:
        """What a forward pass multiplies logits by (tied or not), products of queries and keys, or a block's sum."""
        if what == "logits":
            return power(_ratio(model), self.logits)
        if what == "residual":
            return power(model.depth / model.base_depth, self.residual)
        base = model.base_head_dim or model.head_dim
        return power(base, -0.5 - self.attention) / power(model.head_dim, -self.attention)

    def branch(self, model: Model) -> float:
        """Factor on the standard deviation with which a matrix that writes into the residual stream starts."""
        return 1.0 / math.sqrt(2 * (model.base_depth if self.residual else model.depth))


def _ratio(model: Model) -> float:
    return model.width / model.base_width


def power(x: float, exponent: float) -> float:
    """`x` to a power; a root and a reciprocal are rounded once each, as `math.sqrt` and a division are."""
    if exponent < 0:
        return 1.0 / power(x, -exponent)
    return math.sqrt(x) if exponent == 0.5 else float(x**exponent)
