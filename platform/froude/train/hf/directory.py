"""A directory that transformers loads, and whether it then gives the run's logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from froude.config import ConfigError, Run
from froude.train import api
from froude.train.data.order import validation_windows
from froude.train.exact.draws import generator
from froude.train.hf import config as configs
from froude.train.hf import folding
from froude.train.hf.model import built
from froude.train.hf.tokenizer import tokenizer_of

DTYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WINDOWS = 4
SHARD = "5GB"
#: The largest difference of logits over the largest logit, in fp32: where the same code runs on folded weights, and
#: where other code adds in another order. Beyond it something is wrong.
SAME_CODE, OTHER_CODE = 1e-6, 1e-4
#: Radians by which an angle in fp32 may be off, a token of its position: twice the spacing of fp32 below 1.
ANGLE = 2.0**-22


@dataclass(frozen=True)
class Written:
    """What was written: class and type of the model, what folding did, and the largest differences of logits.

    `difference` is in fp32, over the largest logit; `cast` that of the weights as written, the same where they are
    fp32. `windows` says what they were measured on, `tokenizer` which one was written, or why none.
    """

    architecture: str
    dtype: str
    folded: tuple[str, ...]
    difference: float
    cast: float
    windows: str
    tokenizer: str

    @property
    def bitwise(self) -> bool:
        return self.cast == 0.0


def write(
    run: Run, weights: Mapping[str, Tensor], folder: Path, *, dtype: str = "fp32", shard: str = SHARD
) -> Written:
    """Config, generation config, safetensors with an index where they are several, tokenizer if the data have one.

    ConfigError where the directory, loaded, does not give the run's logits.
    """
    with _quiet():
        return _written(run, weights, folder, dtype, shard)


def _written(run: Run, weights: Mapping[str, Tensor], folder: Path, dtype: str, shard: str) -> Written:
    transformers = configs.transformers()
    weights = {name: weight.float() for name, weight in weights.items()}  # in bf16 a fold would round
    found = folding.translated(run, weights)
    found.config.use_cache = True
    net = built(found.config)
    _fill(net, found.state)
    tokens, windows = _tokens(run)
    model = _trained(run, weights)
    _turn_as(net, model, run)
    ours = _logits(model, tokens)
    difference = apart(ours, _logits(net, tokens))
    bound = SAME_CODE if found.exact else OTHER_CODE
    if not difference <= bound:
        raise ConfigError(
            f"an export must give the run's logits to {bound:g} of the largest, but those of {type(net).__name__} are "
            f"{difference:.2g} apart; use --format safetensors, and report this"
        )
    tokenizer, said = tokenizer_of(run)
    net.to(DTYPES[dtype]).save_pretrained(folder, max_shard_size=shard)
    if tokenizer is not None:
        tokenizer.write(folder, run.model.context)
    again = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, attn_implementation="sdpa"
    )
    cast = apart(ours, _logits(again, tokens))
    if dtype == "fp32" and cast != difference:
        raise ConfigError(
            f"an export must load as it was written, but logits are {cast:.2g} apart instead of {difference:.2g} after "
            f"loading {folder}; look at the disk, and export again"
        )
    return Written(type(net).__name__, dtype, found.folded, difference, cast, windows, said)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' bars of progress."""
    logging = configs.transformers().utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def apart(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference over the largest logit; 0 where all bits are the same."""
    if torch.equal(ours, theirs):
        return 0.0
    return float((ours.double() - theirs.double()).abs().max() / ours.double().abs().max())


@torch.no_grad()
def _fill(net: nn.Module, state: Mapping[str, Tensor]) -> None:
    own = dict(net.named_parameters())
    if odd := sorted(set(own).symmetric_difference(state)):
        raise ConfigError(
            f"weights must be those of {type(net).__name__}, but differ in {', '.join(odd[:3])}; "
            "use --format safetensors"
        )
    for name, parameter in own.items():
        parameter.copy_(state[name])


@torch.no_grad()
def _trained(run: Run, weights: Mapping[str, Tensor]) -> nn.Module:
    # Of a checkpoint that it started from the run keeps the number of positions, and not the weights.
    options = {key: "" if key == "init" else value for key, value in run.model.options.items()}
    model = api.build_model(run.replace({"model.options": options}, name=run.name))
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
    return model


@torch.no_grad()
def _turn_as(net: Any, model: nn.Module, run: Run) -> None:
    """Give our own model transformers' angles of RoPE where they are ours to fp32's rounding, as they are in fp32.

    That of an angle grows with the position, and so what it makes of logits, without anything being wrong. Angles that
    are further from ours stay, for the logits to show it.
    """
    if run.model.factory != folding.OWN:
        return
    places = torch.arange(run.model.context)[None]
    theirs = [table[0] for table in net.base_model.rotary_emb(torch.zeros(1), places)]
    tables = [model.get_buffer("cos"), model.get_buffer("sin")]
    if all(
        float((a - b).abs().max()) <= run.model.context * ANGLE for a, b in zip(tables, theirs, strict=True)
    ):
        for ours, table in zip(tables, theirs, strict=True):
            ours.copy_(table)


@torch.no_grad()
def _logits(model: nn.Module, tokens: Tensor) -> Tensor:
    found = model.eval()(tokens)
    logits: Tensor = found if isinstance(found, Tensor) else found.logits
    return logits


def _tokens(run: Run) -> tuple[Tensor, str]:
    """Inputs of a few validation windows; random ones where the data are elsewhere."""
    try:
        source = api.build_source(run, "validation")
        n = min(WINDOWS, int(source.length))
        found = api.as_int64(validation_windows(source, n))[:, :-1]
        return found, f"{n} validation windows of {found.shape[1]} tokens"
    except (ConfigError, OSError):
        shape = (WINDOWS, run.model.context)
        drawn = torch.randint(run.model.vocab, shape, generator=generator(run.seed, "export"))
        return drawn, f"{WINDOWS} windows of {shape[1]} random tokens, as the run's data are not here"
