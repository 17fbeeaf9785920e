"""Scaling laws: polars frames in, results with intervals and a typed status out.

Every function takes a polars DataFrame or LazyFrame; batch is in tokens, loss in nats per token. Every
result has `.status`, `.table()`, `.rows` and `.plot()`. Curves over a run are in `laws.curve`, published rules of thumb
in `laws.rules`.
"""

from froude.laws import curve, rules
from froude.laws.batch import CriticalBatch, critical_batch, steps_to_target
from froude.laws.batch_lr import BatchLrLaw, batch_lr_law
from froude.laws.curve import CurveBand, CurveLaw
from froude.laws.isoflop import IsoFlop, iso_flop
from froude.laws.kaplan_law import KaplanLaw, kaplan
from froude.laws.loss import LossLaw, loss_law
from froude.laws.loss_posterior import ExponentPrior
from froude.laws.lr import LrCurve, lr_curve
from froude.laws.noise import BatchRamp, NoiseScale, noise_scale
from froude.laws.optimum import PowerLaw, optimum_law
from froude.laws.repeated import DataConstrainedLaw, data_constrained
from froude.laws.results import Allocation, Estimate, Prediction, Status
from froude.laws.transfer import LrTransfer, lr_transfer

__all__ = [
    "Allocation",
    "BatchLrLaw",
    "BatchRamp",
    "CriticalBatch",
    "CurveBand",
    "CurveLaw",
    "DataConstrainedLaw",
    "Estimate",
    "ExponentPrior",
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
    "critical_batch",
    "curve",
    "data_constrained",
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
