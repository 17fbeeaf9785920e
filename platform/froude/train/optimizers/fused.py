"""Fused tensors: several matrices one below the other, which an optimizer that works on matrices must treat apart."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence

from torch import nn

from froude.config import ConfigError
from froude.train.api import Part
from froude.user_code import PASSING, call_user


def matrices(model: nn.Module, *, heads: bool = False) -> dict[str, dict[str, slice]]:
    """The matrices in each hidden parameter of two or more dimensions: their names and rows, by the parameter's name.

    For optimizers that work on matrices. A parameter that is not fused is one matrix, named "". With `heads` each head
    of a part is a matrix: "q.0", "q.1", or "0", "1" of a part named "". ConfigError as `fused`.
    """
    kinds: Mapping[str, str] = model.kinds()  # type: ignore[operator]
    parts = fused(model)
    return {
        name: dict(_rows(parts[name], heads)) if name in parts else {"": slice(None)}
        for name, parameter in model.named_parameters()
        if kinds[name] == "hidden" and parameter.ndim > 1
    }


def fused(model: nn.Module) -> dict[str, tuple[Part, ...]]:
    """The parts of each fused parameter, as the model's `fused()` says them; {} for a model without that method.

    ConfigError if they are not all rows of a hidden matrix, in order, each part with a name of its own.
    """
    method = getattr(model, "fused", None)
    if not inspect.ismethod(method):  # a flag or a submodule of this name is the model's own affair
        return {}
    who = f"fused() of {type(model).__name__}"
    found = _parts(who, call_user(who, method, but=PASSING))
    kinds: Mapping[str, str] = model.kinds()  # type: ignore[operator]
    parameters = dict(model.named_parameters())
    for name, parts in found.items():
        if kinds.get(name) != "hidden" or parameters[name].ndim < 2:
            raise ConfigError(f"fused() must name hidden matrices, but {who} names {name}; leave it out")
        if why := _why_not(parts, len(parameters[name])):
            raise ConfigError(
                "the parts of a fused tensor must be all of its rows, in order, each with a name of its own, but "
                f"{who} {why} for {name}; correct its parts"
            )
    return found


def _parts(who: str, said: object) -> dict[str, tuple[Part, ...]]:
    if isinstance(said, Mapping):
        tables = {name: tuple(p) for name, p in said.items() if isinstance(p, Sequence)}
        if len(tables) == len(said) and all(isinstance(p, Part) for parts in tables.values() for p in parts):
            return tables
    raise ConfigError(
        f"fused() must map names of matrices to lists of froude.train.api.Part, but {who} returned {said!r:.80}"
    )


def _why_not(parts: Sequence[Part], rows: int) -> str:
    names = [part.name for part in parts]
    for part in parts:
        if names.count(part.name) > 1:
            return f"has the name {part.name!r} twice"
        if part.heads < 1 or part.rows < 1 or part.rows % part.heads:
            return f"divides {part.rows} rows of {part.name!r} among {part.heads} heads"
    total = sum(part.rows for part in parts)
    return "" if total == rows else f"has {total} of {rows} rows"


def _rows(parts: Sequence[Part], heads: bool) -> Iterator[tuple[str, slice]]:
    start = 0
    for part in parts:
        number = part.heads if heads else 1
        height = part.rows // number
        for head in range(number):
            name = f"{part.name}.{head}".lstrip(".") if number > 1 else part.name
            yield name, slice(start, start + height)
            start += height
