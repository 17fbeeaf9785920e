"""The adapter: a causal language model of transformers as a model of froude, under any parametrization.

Its parameters have transformers' names; only the matrices of GPT-2 lie the other way round, [out, in] as everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from froude.config import Run
from froude.train.api import Kind, Part, multiplier
from froude.train.hf import config as configs
from froude.train.hf import start
from froude.train.hf.kinds import kinds_of, plainly
from froude.train.hf.layouts import Layout, layout_of
from froude.train.model import refuse_options
from froude.train.parametrization import initial
from froude.user_code import call_user


class Model(nn.Module):
    """What `model.options.config` describes, at the run's sizes; from the weights in `model.options.init` if named.

    The config decides the architecture, the run the sizes, the initialisation and the multipliers. Dropout is off.
    """

    #: Whose versions a run's material records.
    libraries: ClassVar[tuple[str, ...]] = ("transformers",)
    net: Any

    def __init__(self, run: Run) -> None:
        super().__init__()
        refuse_options(run.model, read=("config", "config_sha256", "init"))
        config = configs.scaled(run)
        self.run, self.layout = run, layout_of(config.model_type)
        what = f"{type(config).__name__} of {configs.file_of(run)}"
        net = call_user(what, network, config, self.layout, run, remedy="correct the config")
        plainly(net)
        # Its children are this module's, so that parameters have their own names; `net` only runs them.
        self.__dict__["net"] = net
        for name, child in net.named_children():
            self.add_module(name, child)
        self._kinds = kinds_of(net)
        self.logit_multiplier = 1.0 if self.layout.in_config else multiplier(run, "logits")
        self._multiply()
        init = run.model.options.get("init") and torch.get_default_device().type != "meta"
        self._read = start.reader(self, self.layout, run) if init else None
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if not parameter.is_meta:
                    parameter.copy_(self.initial(name))

    @classmethod
    def content(cls, run: Run) -> dict[str, str]:
        """SHA-256 of the files that the model is made of."""
        _, sha256 = configs.content_of(configs.file_of(run))
        return {configs.CONTENT: sha256, **start.content(run)}

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.net(input_ids=tokens, use_cache=False).logits
        return self._scaled(logits)

    def features(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.net.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        return found

    def logits(self, features: Tensor) -> Tensor:
        found: Tensor = self.net.get_output_embeddings()(features)
        return self._scaled(found / self.net.config.logits_scaling if self.layout.in_config else found)

    def _scaled(self, logits: Tensor) -> Tensor:
        return logits if self.logit_multiplier == 1.0 else logits * self.logit_multiplier

    def blocks(self) -> Sequence[nn.Module]:
        return list(self.get_submodule(self.layout.blocks).children())

    def kinds(self) -> Mapping[str, Kind]:
        return self._kinds

    def fused(self) -> Mapping[str, Sequence[Part]]:
        shape, config, layout = self.run.model, self.net.config, self.layout
        if layout.rows:
            heads = shape.width // shape.head_dim
            within = {layout.queries: [Part(name, shape.width, heads) for name in ("q", "k", "v")]}
        else:  # matrices already, which have heads
            heads, shared = int(config.num_attention_heads), int(config.num_key_value_heads)
            within = {
                f"{layout.attention}.{name}_proj": [Part("", number * shape.head_dim, number)]
                for name, number in (("q", heads), ("k", shared), ("v", shared))
            }
        return {
            f"{layout.blocks}.{i}.{name}.weight": parts
            for i in range(shape.depth)
            for name, parts in within.items()
        }

    def flops_per_token(self) -> float:
        """As the package's own: 6 a matrix entry, readout included, plus 12 L T times the width of all heads."""
        shape, config = self.run.model, self.net.config
        heads = int(config.num_attention_heads) * shape.head_dim
        matrices = sum(
            p.numel() for n, p in self.named_parameters() if self._kinds[n] in ("hidden", "readout")
        )
        matrices += shape.vocab * shape.width if config.tie_word_embeddings else 0
        return 6.0 * matrices + 12.0 * shape.depth * shape.context * heads

    def notes(self) -> list[str]:
        """What of the config does not hold here, for people."""
        source = configs.read(configs.file_of(self.run))
        off = [key for key, value in source.to_dict().items() if configs.is_dropout(key, value)]
        off = [key for key in off if not key.startswith("summary")]
        found = [f"dropout of the config is off ({', '.join(off)})"] if off else []
        if self.layout.in_config and source.attention_multiplier != self.net.config.attention_multiplier:
            found.append(
                f"attention_multiplier {source.attention_multiplier:g} of the config is replaced by the "
                f"parametrization's, {self.net.config.attention_multiplier:g}"
            )
        return found

    def _multiply(self) -> None:
        """Multiply what each block adds, where the architecture has no place for that."""
        factor = multiplier(self.run, "residual")
        if self.layout.in_config or factor == 1.0:
            return
        for block in self.blocks():
            for name in self.layout.added:
                block.get_submodule(name).register_forward_hook(
                    lambda module, given, put_out: put_out * factor
                )

    def initial(self, name: str) -> Tensor:
        if self._read is not None:
            return self._read(name)
        writes = name.removesuffix(".weight").endswith(tuple(f".{each}" for each in self.layout.writes))
        return initial(self.run, name, self._kinds[name], self.get_parameter(name).shape, writes=writes)


def network(config: Any, layout: Layout, run: Run) -> Any:
    """The model of transformers, with the run's attention multiplier; Granite's config gets all multipliers."""
    if layout.in_config:
        configs.multiply(config, run)
        return built(config)
    attention, found = multiplier(run, "attention"), built(config)
    if not math.isclose(attention, run.model.head_dim**-0.5):
        for block in found.get_submodule(layout.blocks).children():
            block.get_submodule(layout.attention).scaling = attention
    return found


def built(config: Any) -> Any:
    """The causal language model of a config, in fp32, not initialised as it is to be."""
    kinds = configs.transformers().MODEL_FOR_CAUSAL_LM_MAPPING
    return kinds[type(config)]._from_config(config, attn_implementation="sdpa", dtype=torch.float32)
