"""muP whose best rate is to hold at every depth, too: what a block adds to the residual stream shrinks as m_L^(-a).

A parameter in a block then has a gradient m_L^(-a) times as large, so Adam's epsilon shrinks with it, and the blocks'
moves add up to the same at every depth if each is made at the rate times m_L^(a - 1). a = 1 is CompleteP (Dey et al.
2505.01618), under which a block learns more than a linearisation of itself; a = 1/2 is depth-muP (Yang et al.
2310.02244). Adam's rules for width are muP's, as are those of other families.
"""

from __future__ import annotations

from dataclasses import replace

from froude.parametrizations.mup import MUP
from froude.parametrizations.parametrization import Parametrization, Powers


def _deep(name: str, label: str, a: float) -> Parametrization:
    return replace(MUP, name=name, label=label, residual=-a, blocks=Powers(lr=a - 1, eps=-a))


COMPLETEP = _deep("completep", "CompleteP", 1.0)
DEPTH_MUP = _deep("depth_mup", "depth-μP", 0.5)
