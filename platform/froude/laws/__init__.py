"""Scaling laws: polars frames in, results with intervals and a typed status out.

Every function takes a polars DataFrame or LazyFrame; batch is in tokens, loss in nats per token. Every result is a
`froude.laws.law.Law`: it has `.status`, `.reasons`, `.table()`, `.rows`, `.drawing()` and `.plot()`. Curves over a run
are in `laws.curve`, published rules of thumb in `laws.rules`.
"""

from froude.laws import curve, rules
from froude.laws.batch.critical import CriticalBatch, critical_batch, steps_to_target
from froude.laws.batch.noise import BatchRamp, NoiseScale, noise_scale
from froude.laws.batch.rate import BatchLrLaw, batch_lr_law
from froude.laws.compute.isoflop import IsoFlop, iso_flop
from froude.laws.compute.kaplan import KaplanLaw, kaplan
from froude.laws.curve import CurveBand, CurveLaw
from froude.laws.loss.comparator import Comparator, comparator
from froude.laws.loss.conventions import counting_conventions
from froude.laws.loss.draws import ExponentPrior
from froude.laws.loss.law import LossLaw, loss_law
from froude.laws.loss.repeated import DataConstrainedLaw, data_constrained
from froude.laws.lr.curve import LrCurve, lr_curve
from froude.laws.lr.exponent import Exponent, exponent
from froude.laws.lr.exponents import Exponents, exponents
from froude.laws.lr.optimum import PowerLaw, optimum_law
from froude.laws.lr.published import PUBLISHED
from froude.laws.lr.transfer import LrTransfer, lr_transfer
from froude.laws.stats.results import Allocation, Estimate, Prediction, Status

__all__ = [
    "PUBLISHED",
    "Allocation",
    "BatchLrLaw",
    "BatchRamp",
    "Comparator",
    "CriticalBatch",
    "CurveBand",
    "CurveLaw",
    "DataConstrainedLaw",
    "Estimate",
    "Exponent",
    "ExponentPrior",
    "Exponents",
    "IsoFlop",
    "KaplanLaw",
    "LossLaw",
    "LrCurve",
    "LrTransfer",
    "NoiseScale",
    "PowerLaw",
    "Prediction",
    "Status",
    "batch_lr_law",
    "comparator",
    "counting_conventions",
    "critical_batch",
    "curve",
    "data_constrained",
    "exponent",
    "exponents",
    "iso_flop",
    "kaplan",
    "loss_law",
    "lr_curve",
    "lr_transfer",
    "noise_scale",
    "optimum_law",
    "rules",
    "steps_to_target",
]
