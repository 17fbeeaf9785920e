"""Laws of a loss along a run, as a function of its learning rates, and whether the curves of several runs are one."""

from froude.laws.curve.collapse import Collapse, collapse
from froude.laws.curve.law import CurveBand, CurveLaw, annealing, multi_power

__all__ = ["Collapse", "CurveBand", "CurveLaw", "annealing", "collapse", "multi_power"]
