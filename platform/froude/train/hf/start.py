"""A checkpoint of Hugging Face as a run's start: its weights, where the run computes what they were trained for."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from froude.config import ConfigError, Run
from froude.train.api import multiplier
from froude.train.data.content import content_sha256
from froude.train.hf import config as configs
from froude.train.hf.layouts import Layout

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


def content(run: Run) -> dict[str, str]:
    """SHA-256 of the weights, {} for a run that starts from its seed."""
    return {"the weights at the start": content_sha256(files(run))} if run.model.options.get("init") else {}


def files(run: Run) -> list[Path]:
    """The safetensors files in the folder that the run names; ConfigError if there are none."""
    folder = Path(str(run.model.options["init"]))
    try:
        if (folder / INDEX).exists():
            shards = set(json.loads((folder / INDEX).read_bytes())["weight_map"].values())
            found = [folder / name for name in sorted(shards)]
        else:
            found = [folder / SINGLE]
        if missing := [file.name for file in found if not file.is_file()]:
            raise FileNotFoundError(f"no {missing[0]} there")
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"`model.options.init` must name a folder with {SINGLE}, or with {INDEX} and its files, but {folder}: "
            f"{error}; save the checkpoint with save_pretrained"
        ) from None
    return found


def reader(model: nn.Module, layout: Layout, run: Run) -> Callable[[str], Tensor]:
    """A function that reads a parameter's weights; ConfigError if names, shapes or what the run computes differ."""
    _same_function(run)
    own = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    transposed = {
        f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)
    } & set(own)
    turned = {name for name in transposed if layout.rows and name.startswith(layout.blocks)}
    where: dict[str, Path] = {}
    for path in files(run):
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118  it is no mapping
                if name not in own:
                    if name == "lm_head.weight" and run.model.tied:
                        continue
                    raise _unlike(run, f"has {name}, which the model lacks")
                shape = file.get_slice(name).get_shape()[:: -1 if name in turned else 1]
                if shape != own[name]:
                    raise _unlike(run, f"has {name} as {shape} instead of {own[name]}")
                where[name] = path
    if left := set(own) - set(where):
        raise _unlike(run, f"lacks {', '.join(sorted(left)[:3])}")

    def read(name: str) -> Tensor:
        with _opened(where[name]) as file:
            found: Tensor = file.get_tensor(name)
        return found.t() if name in turned else found

    return read


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            yield file
    except SafetensorError as error:
        raise ConfigError(
            f"weights must be a whole safetensors file, but {path}: {error}; copy it again"
        ) from None


def _unlike(run: Run, how: str) -> ConfigError:
    return ConfigError(
        f"a run must have the sizes of the checkpoint that it starts from, but {run.model.options['init']} {how}; "
        "correct `model.options.config`, width, depth, head_dim, vocab and context"
    )


def _same_function(run: Run) -> None:
    """ConfigError unless the run's multipliers are those of the checkpoint's own architecture."""
    source: Any = configs.read(configs.file_of(run))
    scores = source.attention_multiplier if source.model_type == "granite" else run.model.head_dim**-0.5
    wanted = {"logits": 1.0, "residual": 1.0, "attention": scores}
    for what, value in wanted.items():
        if not math.isclose(found := multiplier(run, what), value):  # type: ignore[arg-type]
            raise ConfigError(
                f"a run that starts from a checkpoint must compute what that does, but {run.parametrization} "
                f"multiplies {what} by {found:g} instead of {value:g}; use parametrization sp, or base_width = width"
            )
