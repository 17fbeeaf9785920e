"""Scaling laws: polars frames in, results with intervals and a typed status out.

Every function takes a polars DataFrame or LazyFrame; batch is in tokens, loss in nats per token. Every
result has `.status`, `.table()`, `.rows` and `.plot()`.
"""

from froude.laws.batch import CriticalBatch, critical_batch, steps_to_target
from froude.laws.loss import LossLaw, loss_law
from froude.laws.loss_posterior import ExponentPrior
from froude.laws.lr import LrCurve, lr_curve
from froude.laws.optimum import PowerLaw, optimum_law
from froude.laws.results import Allocation, Estimate, Prediction, Status
from froude.laws.transfer import LrTransfer, lr_transfer

__all__ = [
    "Allocation",
    "CriticalBatch",
    "Estimate",
    "ExponentPrior",
    "LossLaw",
    "LrCurve",
    "LrTransfer",
    "PowerLaw",
    "Prediction",
    "Status",
    "critical_batch",
    "loss_law",
    "lr_curve",
    "lr_transfer",
    "optimum_law",
    "steps_to_target",
]
