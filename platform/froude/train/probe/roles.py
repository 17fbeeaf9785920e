"""What parameters are by how their shapes grow with the width, whatever a model says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from froude.config import Run
from froude.train import api

TensorRole = Literal["matrix", "table", "other"]


def roles(runs: Sequence[Run]) -> dict[str, TensorRole]:
    """What each parameter is by how its shape grows from the first run to the last, whatever it is said to be."""
    small, large = (
        {name: tuple(p.shape) for name, p in api.build_model(run, "meta").named_parameters()}
        for run in (runs[0], runs[-1])
    )
    found: dict[str, TensorRole] = {}
    for name, shape in small.items():
        growing = sum(a != b for a, b in zip(shape, large.get(name, shape), strict=True))
        found[name] = "other" if len(shape) < 2 or not growing else "matrix" if growing > 1 else "table"
    return found


def tables(runs: Sequence[Run]) -> list[str]:
    """The parameters with a row, or a column, for each token of the vocabulary."""
    shapes = {name: p.shape for name, p in api.build_model(runs[0], "meta").named_parameters()}
    return [
        name for name, role in roles(runs).items() if role == "table" and runs[0].model.vocab in shapes[name]
    ]


def miscalled(runs: Sequence[Run]) -> list[str]:
    """In words, the parameters that `kinds()` calls hidden though they have a row for each token or position."""
    model, shape = api.build_model(runs[0], "meta"), runs[0].model
    kinds, found = model.kinds(), roles(runs)  # type: ignore[operator]
    rows = {name: {shape.vocab, shape.context} & set(p.shape) for name, p in model.named_parameters()}
    return [
        f"{name} has a row for each of {max(rows[name])} tokens or positions at every width, but kinds() calls it "
        "hidden; call it embedding, or readout"
        for name, kind in kinds.items()
        if kind == "hidden" and found[name] == "table" and rows[name]
    ]
