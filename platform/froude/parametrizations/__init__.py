"""Parametrizations: what width and depth do to training, each a value that a run names.

A new one is a file and a line here.
"""

from __future__ import annotations

from froude.parametrizations.depth import COMPLETEP, DEPTH_MUP
from froude.parametrizations.mup import MUP
from froude.parametrizations.parametrization import ANY, Factors, Kind, Multiplied, Parametrization, Powers
from froude.parametrizations.sp import SP

__all__ = [
    "ANY",
    "DEFAULT",
    "PARAMETRIZATIONS",
    "STANDARD",
    "Factors",
    "Kind",
    "Multiplied",
    "Parametrization",
    "Powers",
]

#: By name, in the order in which they are listed and drawn.
PARAMETRIZATIONS: dict[str, Parametrization] = {each.name: each for each in (SP, MUP, DEPTH_MUP, COMPLETEP)}
#: That of rows that do not say theirs, and the control of those under which the best rate is to stay.
STANDARD = SP
#: That of a run that names none.
DEFAULT = MUP
