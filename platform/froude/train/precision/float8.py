"""Products of hidden matrices in fp8, by torchao: each tensor is scaled to fp8's range as it is used.

torchao swaps modules of the class nn.Linear. Models here may call F.linear on parameters of their own, whose names are
in checkpoints, so what is caught is that call, and no module is another.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from froude.config import ConfigError

LEAST = (8, 9)  # compute capability: Ada, Hopper
MULTIPLE = 16  # of the sizes that torch._scaled_mm takes

#: Of inputs [..., columns] and a weight [rows, columns].
Multiply = Callable[[Tensor, Tensor], Tensor]


def check(capability: tuple[int, int], device: str) -> None:
    """ConfigError where there is no fp8: it takes the hardware, and the library."""
    lacks = []
    if capability < LEAST:
        lacks.append(device)
    if importlib.util.find_spec("torchao") is None:
        lacks.append("torchao is not installed")
    if lacks:
        raise ConfigError(
            f'`precision` "fp8" needs torchao and a GPU of compute capability {LEAST[0]}.{LEAST[1]} or more, but '
            f'{" and ".join(lacks)}; pip install "torchao==0.18.*" on such a GPU, or use "bf16"'
        )


def check_readout(model: nn.Module, vocab: int) -> None:
    """ConfigError if a hidden matrix has as many rows as the vocabulary, and so could not be told from the readout."""
    kinds = model.kinds()  # type: ignore[operator]
    for name, weight in model.named_parameters():
        if kinds[name] == "hidden" and weight.ndim == 2 and weight.shape[0] == vocab:
            raise ConfigError(
                f'with `precision` "fp8" no hidden matrix may have as many rows as the vocabulary, but {name} has '
                f"{vocab:,}; change `model.vocab`, which may have words that no text has, or `model.width`"
            )


class Products(TorchFunctionMode):
    """Inside, F.linear of hidden matrices is in fp8; the readout, whose rows are the vocabulary, is left as it is.

    So are matrices with a size that the hardware does not take. Gradients are those of fp8, too.
    """

    def __init__(self, vocab: int, multiply: Multiply | None = None) -> None:
        super().__init__()
        self.vocab, self.multiply = vocab, multiply or torchao()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.linear and not kwargs and args[0].numel() and self._taken(args[1]):
            found = self.multiply(args[0], args[1])
            return found if len(args) < 3 or args[2] is None else found + args[2].to(found.dtype)
        return func(*args, **(kwargs or {}))

    def _taken(self, weight: Tensor) -> bool:
        return (
            weight.ndim == 2 and weight.shape[0] != self.vocab and not any(n % MULTIPLE for n in weight.shape)
        )


@functools.cache
def torchao(*, emulate: bool = False) -> Multiply:
    """The product of torchao, with a scale a tensor; `emulate` rounds to fp8 and multiplies in bf16, on any device."""
    linear: Any = importlib.import_module("torchao.float8.float8_linear")
    config: Any = importlib.import_module("torchao.float8.config")
    with torch.device("meta"):
        made = linear.Float8Linear(16, 16, bias=False, config=config.Float8LinearConfig(emulate=emulate))

    def multiply(inputs: Tensor, weight: Tensor) -> Tensor:
        found: Tensor = linear.matmul_with_hp_or_float8_args.apply(
            inputs.to(torch.bfloat16), weight.t(), made.linear_mm_config, made.config
        )
        return found

    return multiply
