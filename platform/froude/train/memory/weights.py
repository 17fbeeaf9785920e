"""Weights that are made unit by unit, as they are shared out, so that no worker has all of them at once."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from froude.config import ConfigError, Run

_absent: ContextVar[bool] = ContextVar("absent", default=False)


def are_made_by_name(factory: object) -> bool:
    """Whether a factory's models give each parameter by name: an `initial` of its own, since one that is inherited
    knows nothing of what a subclass has changed.
    """
    return callable(getattr(factory, "__dict__", {}).get("initial"))


def come_late(run: Run, factory: object, workers: int) -> bool:
    """Whether these workers make a model's weights as they share them out.

    Not in an exact run with compiled blocks, whose bits are compared first, with all weights there.
    """
    needed = run.compute.compile != "none" and run.reduction == "exact"
    return workers > 1 and not needed and are_made_by_name(factory)


@contextmanager
def absent() -> Iterator[None]:
    """Inside, parameters of new modules have a shape and no memory; buffers are made as always."""
    # One that is registered twice stays one. Whoever may register it again holds it, so nothing else has to.
    known: dict[int, tuple[weakref.ref[nn.Parameter], nn.Parameter]] = {}

    def emptied(module: nn.Module, name: str, parameter: nn.Parameter | None) -> Any:
        if parameter is None or parameter.is_meta or not _absent.get():  # another thread's
            return parameter
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:  # it is refused for them
            return parameter
        of, empty = known.get(id(parameter), (None, None))
        if of is None or of() is not parameter:
            empty = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
            known[id(parameter)] = weakref.ref(parameter), empty
        return empty

    handle, before = register_module_parameter_registration_hook(emptied), _absent.set(True)
    try:
        yield
    finally:
        _absent.reset(before)
        handle.remove()


def are_absent() -> bool:
    """Whether weights that are drawn now would be thrown away."""
    return _absent.get()


def maker(model: nn.Module, *, blank: bool = False) -> Callable[[nn.Module], None]:
    """A function that makes what is absent of one of the model's modules, shared parameters once; zeros if `blank`.

    ConfigError if the model's `initial` gives another shape, or if a buffer was computed from weights.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def make(unit: nn.Module) -> None:
        made: dict[nn.Parameter, nn.Parameter] = {}
        for module in unit.modules():
            for key, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
                if not parameter.is_meta:
                    continue
                if parameter not in made:
                    values = torch.zeros(parameter.shape, dtype=parameter.dtype)
                    if not blank:
                        values.copy_(_initial(model, names[parameter], parameter))
                    made[parameter] = nn.Parameter(values, requires_grad=parameter.requires_grad)
                setattr(module, key, made[parameter])
            for key, buffer in module.named_buffers(recurse=False):
                if buffer.is_meta:
                    raise ConfigError(
                        f"a model whose class has `initial` is built without weights, but buffer {key} of "
                        f"{type(module).__name__} is computed from some; compute it in forward, or leave `initial` out"
                    )

    return make


def _initial(model: nn.Module, name: str, parameter: nn.Parameter) -> Tensor:
    """What the model's `initial` gives, which may be a file's memory, or one tensor for several parameters."""
    found: Tensor = model.initial(name)  # type: ignore[operator]
    if found.shape != parameter.shape:
        raise ConfigError(
            f"`initial` must give a parameter's whole values, but that of {type(model).__name__} gives {name} as "
            f"{list(found.shape)} instead of {list(parameter.shape)}; correct it"
        )
    return found
