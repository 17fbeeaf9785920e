"""What each parameter of a model of transformers is, by the type of its module; what has no type here is refused."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from froude.config import ConfigError
from froude.train.api import Kind

NORMS = ("RMSNorm", "LayerNorm")


class Table(nn.Embedding):
    """An embedding that trains every row, and whose gradient has the same bits each time."""

    def forward(self, tokens: Tensor) -> Tensor:
        # On a GPU torch's backward of `embedding` has lost writes (pytorch#187687, see froude.train.model).
        return self.weight[tokens] if tokens.is_cuda else F.embedding(tokens, self.weight)


def plainly(net: nn.Module) -> None:
    """Put `Table` in the place of embeddings, which train no padding row, and Linear in that of GPT-2's Conv1D.

    Every matrix is then [out, in], as rules for matrices and shards of rows have it.
    """
    for name, module in list(net.named_modules()):
        if type(module) is nn.Embedding:
            table = Table(module.num_embeddings, module.embedding_dim, _weight=module.weight.detach())
            table.weight = module.weight  # one parameter, also where the readout shares it
            net.set_submodule(name, table)
        elif type(module).__name__ == "Conv1D":
            inputs, outputs = module.weight.shape
            linear = nn.Linear(int(inputs), int(outputs), device=torch.device("meta"))
            linear.weight = nn.Parameter(module.weight.detach().t().contiguous())
            linear.bias = module.bias
            net.set_submodule(name, linear)


def kinds_of(net: Any) -> dict[str, Kind]:
    """Each parameter's kind, by its name; ConfigError naming the first module and parameter that have none."""
    head, tied = net.get_output_embeddings(), bool(net.config.tie_word_embeddings)
    found: dict[str, Kind] = {}
    for place, module in net.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if module is head and tied and parameter is net.get_input_embeddings().weight:
                continue
            found[f"{place}.{name}" if place else name] = _kind(place, module, name, head)
    return found


def _kind(place: str, module: nn.Module, name: str, head: nn.Module) -> Kind:
    if name == "bias" and (isinstance(module, nn.Linear) or _is_norm(module)):
        return "bias"
    if name == "weight":
        if isinstance(module, Table):
            return "embedding"
        if isinstance(module, nn.Linear):
            return "readout" if module is head else "hidden"
        if _is_norm(module):
            return "norm"
    raise ConfigError(
        f"each parameter must be an embedding's, a linear layer's or a norm's, but {place}.{name} is that of a "
        f"{type(module).__name__}; write a class of your own around the model (docs/guide/bring-your-own.md)"
    )


def _is_norm(module: nn.Module) -> bool:
    return type(module).__name__.endswith(NORMS)
