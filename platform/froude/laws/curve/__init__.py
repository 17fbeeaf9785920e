"""Laws of a loss along a run, as a function of its learning rates: the annealing law and the multi-power law."""

from froude.laws.curve.law import CurveBand, CurveLaw, annealing, multi_power

__all__ = ["CurveBand", "CurveLaw", "annealing", "multi_power"]
