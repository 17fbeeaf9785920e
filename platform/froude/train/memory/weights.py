"""Weights that are made unit by unit, as they are shared out, so that no worker has all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from froude.config import Run

_absent: ContextVar[bool] = ContextVar("absent", default=False)


def are_made_by_name(factory: object) -> bool:
    """Whether a factory's models give each parameter by name: an `initial` of its own, since one that is inherited
    knows nothing of what a subclass has changed.
    """
    return "initial" in getattr(factory, "__dict__", {})


def come_late(run: Run, factory: object, workers: int) -> bool:
    """Whether these workers make a model's weights as they share them out.

    Not in an exact run with compiled blocks, whose bits are compared first, with all weights there.
    """
    needed = run.compute.compile != "none" and run.reduction == "exact"
    return workers > 1 and not needed and are_made_by_name(factory)


@contextmanager
def absent() -> Iterator[None]:
    """Inside, parameters of new modules have a shape and no memory; buffers are made as always."""

    def emptied(module: nn.Module, name: str, parameter: nn.Parameter | None) -> Any:
        if parameter is None or parameter.is_meta:
            return parameter
        return nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)

    handle, before = register_module_parameter_registration_hook(emptied), _absent.set(True)
    try:
        yield
    finally:
        _absent.reset(before)
        handle.remove()


def are_absent() -> bool:
    """Whether weights that are drawn now would be thrown away."""
    return _absent.get()


def maker(model: nn.Module) -> Callable[[nn.Module], None]:
    """A function that makes what is absent of one of the model's modules, shared parameters once."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    initial: Callable[[str], Tensor] | None = getattr(model, "initial", None)

    @torch.no_grad()
    def make(unit: nn.Module) -> None:
        made: dict[nn.Parameter, nn.Parameter] = {}
        for module in unit.modules():
            for key, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
                if not parameter.is_meta:
                    continue
                if parameter not in made:
                    assert initial is not None
                    values = initial(names[parameter]).to(parameter.dtype)
                    made[parameter] = nn.Parameter(values, requires_grad=parameter.requires_grad)
                setattr(module, key, made[parameter])

    return make
