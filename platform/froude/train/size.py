"""How large a run's model is, whoever trains it."""

from __future__ import annotations

from dataclasses import dataclass

from froude.config import ConfigError, Run
from froude.config import Model as Shape
from froude.train.api import build_model, count_parameters


@dataclass(frozen=True)
class Size:
    """Parameters without embedding and readout, with them if that is known, and FLOPs of a token, both passes."""

    params: int
    params_with_embeddings: int | None
    flops_per_token: float


def is_sized(run: Run) -> bool:
    """Whether the size of the run's model is known before it begins; a command may tell its own only then."""
    own = run.model.factory == Shape.model_fields["factory"].default
    return not run.trainer.command or bool(run.trainer.params) or not own


def size_of(run: Run) -> Size:
    """As the model counts itself; of a run that a command trains as `trainer` says, or its own factory counts.

    ConfigError if nothing says it: the package's own model is not taken for a command's.
    """
    told = run.trainer
    if not is_sized(run):
        raise ConfigError(
            f"a run that a command trains must say its model's size, but {run.name} does not; set `trainer.params` "
            "(without embedding and readout), or `model.factory` to one that builds that model"
        )
    if told.params:
        return Size(told.params, None, told.flops_per_token or 6.0 * told.params)
    model = build_model(run, "meta")
    counts = count_parameters(model)
    flops = told.flops_per_token or float(model.flops_per_token())  # type: ignore[operator]
    return Size(counts.params, counts.params_with_embeddings, flops)
