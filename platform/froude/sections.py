"""The sections of a Run: its model, data and schedule, each a frozen, validated table."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from froude.schedules import SCHEDULES, RampRate, Tail
from froude.section import ConfigError, Section, one_of

Scalar = str | int | float | bool


class Model(Section):
    """Shape of the model and the import path of its factory; sizes in units (features, blocks, tokens)."""

    section: ClassVar[str] = "model"
    LATER: ClassVar[tuple[str, ...]] = ("base_depth", "softcap", "z_loss")
    factory: str = Field(default="froude.train.model:Transformer", pattern=r"^[\w.]+:\w+$")
    width: int = Field(default=64, gt=0)
    depth: int = Field(default=2, gt=0)
    head_dim: int = Field(default=16, gt=0)
    context: int = Field(default=64, gt=0, description="tokens of one window")
    vocab: int = Field(default=256, gt=1)
    mlp_ratio: float = Field(
        default=3.0, gt=0, description="width of the SwiGLU layer over the model's width"
    )
    qk_norm: bool = False
    tied: bool = False
    embedding_sd: float = Field(default=0.5, ge=0)
    readout_sd: float = Field(default=0.0, ge=0, description="0: the readout starts at zero")
    base_width: int = Field(default=64, gt=0, description="width at which muP equals SP")
    base_depth: int = Field(default=2, gt=0, description="depth at which CompleteP equals muP")
    base_head_dim: int = Field(default=0, ge=0, description="0: head_dim does not grow with the width")
    softcap: float = Field(
        default=0.0, ge=0, description="logits are softcap * tanh(logits / softcap); 0: as they are"
    )
    z_loss: float = Field(
        default=0.0, ge=0, description="times log(Z)^2 of a token, added to what is minimised; 0: none"
    )
    options: dict[str, Scalar] = Field(default_factory=dict, description="for a factory of your own")

    @field_validator("options")
    @classmethod
    def _found(cls, options: dict[str, Scalar], about: ValidationInfo) -> dict[str, Scalar]:
        """Name the files of the package's adapter so that every process finds them."""
        if not str(about.data.get("factory", "")).startswith("froude."):
            return options
        paths = {
            key: os.path.abspath(os.path.expanduser(value))
            for key in ("config", "init")
            if isinstance(value := options.get(key), str) and value
        }
        return {**options, **paths}

    @model_validator(mode="after")
    def _capped(self) -> Self:
        if self.softcap and not self.factory.startswith("froude."):
            raise ConfigError(
                f"`model.softcap` is for the package's own model, but got {self.softcap} with {self.factory}; cap the "
                "logits in its forward pass, and name the cap in `model.options`"
            )
        return self

    @model_validator(mode="after")
    def _heads(self) -> Self:
        if self.factory.startswith("froude.") and (self.width % self.head_dim or self.head_dim % 2):
            raise ConfigError(
                f"`model.width` must be a multiple of an even `model.head_dim`, but got width {self.width} and "
                f"head_dim {self.head_dim}; choose e.g. width {math.ceil(self.width / 16) * 16}, head_dim 16"
            )
        return self


class Data(Section):
    """Import path of the source of training windows, and the file that it reads, if any."""

    section: ClassVar[str] = "data"
    source: str = Field(default="froude.train.data.kjv:KingJames", pattern=r"^[\w.]+:\w+$")
    path: str = Field(default="", description="a user's file; not part of the fingerprint: `sha256` is")
    sha256: str = Field(
        default="", pattern=r"^([0-9a-f]{64})?$", description="of the corpus; checked when set"
    )
    options: dict[str, Scalar] = Field(default_factory=dict)

    @property
    def corpus(self) -> str:
        """What is trained on, for people: the source, and the file's name and the hash where there are any."""
        marks = [os.path.basename(self.path), self.sha256 and f"sha256:{self.sha256[:12]}"]
        return " ".join([self.source, *filter(None, marks)])

    @property
    def settings(self) -> str:
        """The source's own options as JSON: its mixture, phase and the like."""
        return json.dumps(self.options, sort_keys=True)

    @model_validator(mode="before")
    @classmethod
    def _pin(cls, content: Any) -> Any:
        """Name the file so that every process finds it, and its content, so that another file is another run."""
        if not isinstance(content, dict) or not isinstance(content.get("path"), str) or not content["path"]:
            return content
        path = os.path.abspath(os.path.expanduser(content["path"]))
        if not str(content.get("source", "froude.")).startswith("froude."):
            # A source of one's own may mean a URL by it, or a name; its content is asked of it (froude.material).
            return {**content, "path": path} if os.path.exists(path) else content
        return {**content, "path": path, "sha256": content.get("sha256") or _sha256(path)}


class Schedule(Section):
    """A schedule of `froude.schedules`, a function of tokens seen, and the settings of those that have any."""

    section: ClassVar[str] = "schedule"
    LATER: ClassVar[tuple[str, ...]] = ("ramp", "ramp_rate", "weight_decay_to")
    name: str = "wsd"
    warmup_tokens: int = Field(default=0, ge=0)
    decay_fraction: float = Field(
        default=0.2, gt=0, le=1, description="share of the run that WSD's tail takes"
    )
    tail: Tail = "sqrt"
    floor: float = Field(
        default=0.1, gt=0, le=1, description="last multiplier of cosine, restarts, exponential tail"
    )
    cycles: int = Field(default=2, ge=1, description="of `restarts`")
    ramp: tuple[tuple[int, int], ...] = Field(
        default=(), description="pairs [tokens, factor]: from so many tokens on a step takes factor x `batch`"
    )
    ramp_rate: RampRate = Field(
        default="sqrt", description="what a ramp makes of the rate: times the root of its factor, or nothing"
    )
    weight_decay_to: float = Field(
        default=1.0, ge=0, le=1, description="share of the weight decay at the end, to which a cosine leads"
    )

    @field_validator("ramp", mode="before")
    @classmethod
    def _pairs(cls, value: object) -> object:
        """Lists, as TOML and JSON have them, as tuples."""
        found = tuple(tuple(pair) if isinstance(pair, list | tuple) else () for pair in _listed(value))
        if any(len(pair) != 2 or any(type(number) is not int for number in pair) for pair in found):
            raise ConfigError(
                f"`schedule.ramp` must be pairs [tokens, factor] of whole numbers, but got {value!r}; use e.g. "
                "[[1000000, 2], [4000000, 4]], with a `batch` that all batches are multiples of"
            )
        return found

    @model_validator(mode="after")
    def _rises(self) -> Self:
        for (before, _), (tokens, factor) in pairwise([(0, 1), *self.ramp]):
            if tokens <= before:
                raise ConfigError(
                    f"tokens of `schedule.ramp` must rise from above 0, but got {tokens} after {before}; sort its "
                    "pairs [tokens, factor], and give the first batch as `batch`"
                )
            if factor < 1:
                raise ConfigError(
                    f"factors of `schedule.ramp` must be at least 1, but got {factor} at {tokens} tokens; make "
                    "`batch` the smallest batch"
                )
        return self

    @field_validator("name", mode="before")
    @classmethod
    def _known(cls, value: object) -> object:
        return one_of(value, SCHEDULES)


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else (value,)


def _sha256(path: str) -> str:
    """SHA-256 of a file's bytes; empty if it can't be read, which whoever reads it explains better."""
    try:
        status = os.stat(path)
        return _hashed(path, status.st_mtime_ns, status.st_size)
    except (OSError, ValueError):
        return ""


@functools.lru_cache(maxsize=8)
def _hashed(path: str, modified: int, size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
