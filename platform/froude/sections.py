"""The sections of a Run: its model, data, optimizer and schedule, each a frozen, validated table."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import re
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from froude.optimizers import OPTIMIZERS, REST, Option, Spec, imported, times
from froude.schedules import SCHEDULES, Tail
from froude.section import ConfigError, Section, did_you_mean, listing, one_of

Scalar = str | int | float | bool
#: What a parameter is to a parametrization and an optimizer.
Kind = Literal["embedding", "hidden", "readout", "norm", "bias"]
#: How rate times decay of hidden matrices moves with width; the powers are in `froude.parametrizations`.
DecayWidth = Literal["constant", "inverse_sqrt", "inverse"]
IMPORT_PATH = re.compile(r"[\w.]+:\w+")


class Model(Section):
    """Shape of the model and the import path of its factory; sizes in units (features, blocks, tokens)."""

    section: ClassVar[str] = "model"
    LATER: ClassVar[tuple[str, ...]] = ("base_depth",)
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
    options: dict[str, Scalar] = Field(default_factory=dict, description="for a factory of your own")

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


class Rest(Section):
    """AdamW's settings for what an optimizer of matrices leaves: embeddings, readout, norms, biases."""

    section: ClassVar[str] = "optimizer.rest"
    LATER: ClassVar[tuple[str, ...]] = ("beta2_half_life", "timescale")
    lr: float = Field(default=5.5e-3, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    beta2_half_life: float = Field(default=0.0, ge=0, description="tokens, in place of beta2")
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    timescale: float = Field(default=0.0, ge=0, description="share of the run, in place of weight_decay")

    spec: ClassVar[Spec] = REST

    @model_validator(mode="before")
    @classmethod
    def _either(cls, content: Any) -> Any:
        times.check_one_of_each(cls.section, content)
        return content

    def option(self, name: str) -> Option:
        return self.spec.options[name]


class Optimizer(Section):
    """An optimizer of `froude.optimizers`, whose files say what it makes of these keys, or a Spec by import path.

    `froude.optimizers.times` says what `timescale` and `beta2_half_life` stand for. The timescale is that of all that
    decays, at the base width. In an optimizer of matrices it is theirs, by `lr`; the rest has its own, by its own rate.
    `decay_width` is how rate times decay of hidden matrices moves with width under muP (`froude.parametrizations`).
    `multipliers` are factors on the rate of each kind of parameter. A kind's timescale stays, since that is what
    transfers (2405.13698): its decay is divided by the factor.
    """

    section: ClassVar[str] = "optimizer"
    LATER: ClassVar[tuple[str, ...]] = (
        "options",
        "beta2_half_life",
        "timescale",
        "decay_width",
        "multipliers",
    )
    name: str = "adamw"
    implementation: Literal["auto", "foreach", "fused"] = Field(
        default="auto", description="of torch; auto: fused where it is as exact as the run asks for"
    )
    lr: float = Field(default=5.5e-3, gt=0, description="peak learning rate, of the base width under muP")
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    beta2_half_life: float = Field(default=0.0, ge=0, description="tokens, in place of beta2")
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    timescale: float = Field(default=0.0, ge=0, description="share of the run, in place of weight_decay")
    decay_width: DecayWidth = "constant"
    decay_embeddings: bool = False
    clip: float = Field(default=1.0, gt=0, description="bound on the gradient's global L2 norm")
    multipliers: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict, description="factors on the rate, by kind"
    )
    options: dict[str, Scalar] = Field(default_factory=dict, description="what only this optimizer has")
    rest: Rest = Field(default_factory=lambda: Rest())

    @model_validator(mode="before")
    @classmethod
    def _own_defaults(cls, content: Any) -> Any:
        """Settings that are not given are the optimizer's own."""
        times.check_one_of_each(cls.section, content)
        spec = OPTIMIZERS.get(str(content.get("name"))) if isinstance(content, dict) else None
        return {**spec.defaults, **content} if spec else content

    @field_validator("name", mode="before")
    @classmethod
    def _known(cls, value: object) -> object:
        return value if isinstance(value, str) and IMPORT_PATH.fullmatch(value) else one_of(value, OPTIMIZERS)

    @field_validator("multipliers")
    @classmethod
    def _kinds(cls, value: dict[str, float]) -> dict[str, float]:
        for kind in value:
            if kind not in get_args(Kind):
                raise ConfigError(
                    f"`optimizer.multipliers` must be by kind, {listing(get_args(Kind))}, but got {kind!r}"
                    f"{did_you_mean(kind, get_args(Kind))}"
                )
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.imported:
            self.check()
        return self

    def check(self) -> None:
        """ConfigError for settings that the optimizer does not have; not at once for one that must be imported."""
        spec, have = self.spec, (*self.spec.implementations, "auto")
        if self.implementation not in have:
            quoted = listing([f'"{each}"' for each in have])
            raise ConfigError(
                f'`optimizer.implementation` of {self.name} must be {quoted}, but got "{self.implementation}"'
            )
        for key, value in self.options.items():
            if key not in spec.options:
                known = f"has {', '.join(spec.options)}" if spec.options else "has none"
                raise ConfigError(f"unknown option `optimizer.options.{key}`; {self.name} {known}")
            default, choices = spec.options[key], spec.choices.get(key, ())
            # bool is an int to Python, and an int is as good as a float
            wanted = (int, float) if isinstance(default, float) else type(default)
            if not isinstance(value, wanted) or isinstance(value, bool) != isinstance(default, bool):
                raise ConfigError(
                    f"`optimizer.options.{key}` must be a {type(default).__name__}, but got {value!r}; its default is "
                    f"{default!r}"
                )
            if key in spec.least and float(value) < spec.least[key]:
                raise ConfigError(
                    f"`optimizer.options.{key}` must be at least {spec.least[key]}, but got {value}"
                )
            if choices and value not in choices:
                raise ConfigError(
                    f"`optimizer.options.{key}` must be {listing(map(repr, choices))}, but got {value!r}"
                )
        if set_here := [key for key in ("timescale", "decay_width") if getattr(self, key) != DEFAULTS[key]]:
            why = (
                "adds decay to the gradient"
                if spec.coupled
                else ""
                if spec.decays
                else "does not decay its matrices"
            )
            if why:
                raise ConfigError(
                    f"`optimizer.{set_here[0]}` must be left out with {self.name}, which {why}, so that it is no "
                    "share of the weights a step; leave it out, or use adamw"
                )
        if self.beta2_half_life and not spec.beta2:
            other = "set `optimizer.rest.beta2_half_life`" if spec.unit == "matrix" else "leave it out"
            raise ConfigError(
                f"`optimizer.beta2_half_life` is for optimizers that have a beta2, but {self.name} has none; {other}"
            )
        if spec.unit != "matrix" and self.rest != Rest():
            raise ConfigError(
                f"`optimizer.rest` is for optimizers of matrices, but {self.name} takes all parameters itself; leave "
                "it out"
            )

    def option(self, name: str) -> Option:
        """One of the optimizer's own settings."""
        return self.options.get(name, self.spec.options[name])

    def at(self, batch: int, tokens: int) -> Optimizer:
        """With the numbers that its times come to in a run; both in tokens."""
        rest = self.rest.model_copy(update=times.numbers(self.rest.section, self.rest, batch, tokens))
        return self.model_copy(update={**times.numbers(self.section, self, batch, tokens), "rest": rest})

    @property
    def numbers(self) -> dict[str, float]:
        """All that times may stand for, by a run's dotted keys."""
        tables = (self, self.rest)
        return {
            f"{table.section}.{key}": getattr(table, key) for table in tables for key in times.TIMES.values()
        }

    @property
    def beta2_clipped(self) -> bool:
        """Whether its half-life asks for a beta2 beyond the ends of what it may be."""
        return times.cut_off(self.beta2_half_life, self.beta2)

    @property
    def imported(self) -> bool:
        """Whether `name` is the import path of a Spec."""
        return ":" in self.name

    @property
    def spec(self) -> Spec:
        """What the package knows of the optimizer; one by import path is imported, so its code must be trusted."""
        return imported(self.name) if self.imported else OPTIMIZERS[self.name]

    @property
    def by_rows(self) -> Optimizer | Rest:
        """The settings of what each worker updates by rows: all but an optimizer's matrices."""
        return self.rest if self.spec.unit == "matrix" else self

    def family(self, *, matrix: bool = True) -> str:
        """That of a parametrization's table, for a hidden matrix or for another parameter."""
        found = (self if matrix else self.by_rows).spec.family
        return found if isinstance(found, str) else found(self)

    @property
    def families(self) -> tuple[str, ...]:
        """All that a parametrization must have rules for."""
        return tuple(dict.fromkeys((self.family(), self.family(matrix=False))))


class Schedule(Section):
    """A schedule of `froude.schedules`, a function of tokens seen, and the settings of those that have any."""

    section: ClassVar[str] = "schedule"
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

    @field_validator("name", mode="before")
    @classmethod
    def _known(cls, value: object) -> object:
        return one_of(value, SCHEDULES)


DEFAULTS = {key: field.default for key, field in Optimizer.model_fields.items()}


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
