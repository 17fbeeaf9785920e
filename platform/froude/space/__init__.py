"""Define a search space: stages of trials that each use what the former returned, and the target run they are for."""

from froude.space.axes import Axis, Choice, LogUniform, Uniform
from froude.space.exponents import Exponents
from froude.space.precisions import precision_pairs
from froude.space.space import Space, load_space
from froude.space.stages import WARMUP, Grid, Past, Search, Stage
from froude.space.trial import Trial, unique

__all__ = [
    "WARMUP",
    "Axis",
    "Choice",
    "Exponents",
    "Grid",
    "LogUniform",
    "Past",
    "Search",
    "Space",
    "Stage",
    "Trial",
    "Uniform",
    "load_space",
    "precision_pairs",
    "unique",
]
