"""The sections of a Run: its model, schedule and trainer, each a frozen, validated table."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from froude.schedules import SCHEDULES, RampRate, Tail
from froude.section import ConfigError, Section, did_you_mean, drop_later, listing, one_of

Scalar = str | int | float | bool

#: Keys that make another architecture of the package's own model.
ARCHITECTURE = (
    "kv_heads",
    "sliding_window",
    "global_every",
    "documents",
    "rope_base",
    "rope_scaling",
    "rope_factor",
    "rope_original",
    "attention_bias",
    "mlp_bias",
    "parallel",
)

#: What a trainer may tell of a run by one name; `validation_loss_code` is the loss on a validation set `code`.
TOLD = (
    *("step", "tokens", "loss", "validation_loss", "status", "reason", "flops_per_token"),
    *("params", "params_with_embeddings", "lr", "grad_norm", "tokens_per_second", "seconds"),
)


CODE = (".py", ".sh", ".json", ".toml", ".yaml", ".yml")  # a command's files that may lie anywhere


def check_series(series: Mapping[str, str], where: str) -> None:
    """ConfigError unless each name that a trainer's series is to have is one of `TOLD`, or a validation set's."""
    for name in series:
        if name not in TOLD and not name.startswith("validation_loss_"):
            raise ConfigError(
                f"`{where}` gives a trainer's series the names of metrics, but {name!r} is none"
                f"{did_you_mean(name, TOLD)}; use one of {', '.join(TOLD)}"
            )


class Model(Section):
    """Shape of the model and the import path of its factory; sizes in units (features, blocks, tokens)."""

    section: ClassVar[str] = "model"
    LATER: ClassVar[tuple[str, ...]] = ("base_depth", "softcap", "z_loss", *ARCHITECTURE)
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
    kv_heads: int = Field(
        default=0,
        ge=0,
        description="heads of keys and values, shared by those of queries; 0: as many as these",
    )
    sliding_window: int = Field(
        default=0, ge=0, description="tokens that a token sees, itself among them; 0: all"
    )
    global_every: int = Field(
        default=0,
        ge=0,
        description="every so many-th block sees all in spite of `sliding_window`; 0: none does",
    )
    documents: bool = Field(default=False, description="a token sees its own document only")
    rope_base: float = Field(default=10_000.0, gt=1, description="theta of RoPE")
    rope_scaling: Literal["none", "llama3", "yarn"] = Field(
        default="none", description="how rotations are slowed for a context `rope_factor` times as long"
    )
    rope_factor: float = Field(default=1.0, ge=1)
    rope_original: int = Field(default=0, ge=0, description="the context before that, tokens")
    attention_bias: bool = False
    mlp_bias: bool = False
    parallel: bool = Field(
        default=False,
        description="attention and SwiGLU from one norm, added up, in place of one after the other",
    )
    options: dict[str, Scalar] = Field(default_factory=dict, description="for a factory of your own")

    @property
    def heads(self) -> int:
        """Heads of queries."""
        return self.width // self.head_dim

    @property
    def key_heads(self) -> int:
        """Heads of keys, and of values."""
        return self.kv_heads or self.heads

    @property
    def unit(self) -> int:
        """Features of which a width is a multiple, if it is to have the same share of KV heads."""
        return self.head_dim * (self.heads // self.kv_heads if self.kv_heads else 1)

    @property
    def architecture(self) -> str:
        """What is not plain in attention and blocks, whatever their size: "kv_heads 1/4, window 512"; else empty."""
        found = {key: getattr(self, key) for key in self.unlike(*ARCHITECTURE)}
        if found.get("kv_heads") == self.heads:
            del found["kv_heads"]
        elif "kv_heads" in found:
            found["kv_heads"] = Fraction(self.kv_heads, self.heads)
        return ", ".join(key if value is True else f"{key} {value}" for key, value in found.items())

    def in_proportion(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """A run's changes, with KV heads that keep their share of changed heads unless they are named."""
        width, head_dim = (changes.get(f"model.{key}", getattr(self, key)) for key in ("width", "head_dim"))
        same = (width, head_dim) == (self.width, self.head_dim)
        if not self.kv_heads or same or "model.kv_heads" in changes:
            return dict(changes)
        if not all(type(size) is int and size > 0 for size in (width, head_dim)):
            return dict(changes)  # which is refused
        share = Fraction(self.kv_heads, self.heads)
        return {**changes, "model.kv_heads": max(1, round(share * (width // head_dim)))}

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
    def _for_its_model(self) -> Self:
        own = [key for key in self.unlike("softcap", *ARCHITECTURE) if key != "documents"]
        if own and not self.factory.startswith("froude."):
            key, value = own[0], getattr(self, own[0])
            how = "cap the logits in its forward pass" if key == "softcap" else "build it there"
            raise ConfigError(
                f"`model.{key}` is for the package's own model, but got {value} with {self.factory}; {how}, and name "
                "it in `model.options`"
            )
        return self

    @model_validator(mode="after")
    def _heads(self) -> Self:
        if not self.factory.startswith("froude."):
            return self
        if self.width % self.head_dim or self.head_dim % 2:
            raise ConfigError(
                f"`model.width` must be a multiple of an even `model.head_dim`, but got width {self.width} and "
                f"head_dim {self.head_dim}; choose e.g. width {math.ceil(self.width / 16) * 16}, head_dim 16"
            )
        if self.heads % self.key_heads:
            able = [str(number) for number in range(1, self.heads + 1) if self.heads % number == 0]
            raise ConfigError(
                f"`model.kv_heads` must divide the {self.heads} heads of width {self.width} and head_dim "
                f"{self.head_dim}, but got {self.kv_heads}; use {listing(able)}"
            )
        return self

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.global_every and not self.sliding_window:
            raise ConfigError(
                "`model.global_every` is for blocks with a `model.sliding_window`, but got "
                f"{self.global_every} without; set that, or leave it out"
            )
        scaled = self.rope_scaling != "none"
        if scaled != (self.rope_factor > 1) or scaled != (self.rope_original > 0):
            raise ConfigError(
                "`model.rope_scaling`, `model.rope_factor` above 1 and `model.rope_original`, the context that is "
                f'stretched, need each other, but got "{self.rope_scaling}", {self.rope_factor:g} and '
                f"{self.rope_original}; set all three, or none"
            )
        return self


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


class Trainer(Section):
    """A command that trains the run in place of froude's own loop; without one the loop does.

    Resources are those of one node. In the command, `{run}` and `{toml}` stand for the run's files, `{metrics}` for the
    file that it appends to, and `{model.width}` and the like for the run's own values.
    """

    section: ClassVar[str] = "trainer"
    LATER: ClassVar[tuple[str, ...]] = (
        "files",
        "nodes",
        "cpus",
        "gpus",
        "time_limit",
        "retries",
        "environment",
        "params",
        "flops_per_token",
        "series",
    )
    #: What may differ without making it another run: resources, patience, and files, whose content is the material.
    UNFINGERPRINTED: ClassVar[tuple[str, ...]] = ("files", "nodes", "cpus", "gpus", "time_limit", "retries")
    command: tuple[str, ...] = ()
    files: tuple[str, ...] = Field(
        default=(), description="what it runs, files or folders; empty: the command's words that are files"
    )
    nodes: int = Field(default=1, ge=1, description="of which each runs the command")
    cpus: int = Field(default=1, ge=1)
    gpus: int = Field(default=0, ge=0)
    time_limit: float = Field(default=0.0, ge=0, description="seconds of one attempt; 0: none")
    retries: int = Field(default=2, ge=0, description="after a first attempt that failed")
    environment: dict[str, str] = Field(default_factory=dict)
    params: int = Field(
        default=0,
        ge=0,
        description="without embedding and readout; 0: as the command tells, or a model factory",
    )
    flops_per_token: float = Field(
        default=0.0, ge=0, description="forward and backward; 0: as told or counted, else 6 params"
    )
    series: dict[str, str] = Field(
        default_factory=dict, description="the command's names for metrics, by froude's, where they differ"
    )

    @property
    def identity(self) -> dict[str, Any]:
        """What of it makes another run; of the command's absolute paths only the names: code may lie anywhere."""
        content = self.model_dump(mode="json", exclude={*self.UNFINGERPRINTED})
        drop_later(self, content)
        return {**content, "command": self.words}

    @property
    def words(self) -> list[str]:
        """The command, without the folders of absolute paths."""
        return [os.path.basename(word) if os.path.isabs(word) else word for word in self.command]

    def differences(self, before: Trainer) -> list[str]:
        """Paths by which a command of the same words means other data; files are told apart by their hashes."""
        return [
            f"trainer.command {now} instead of {then}"
            for now, then in zip(self.command[1:], before.command[1:], strict=True)
            if now != then and not now.endswith(CODE) and not os.path.isfile(now)
        ]

    @field_validator("command", "files", mode="before")
    @classmethod
    def _words(cls, value: object) -> object:
        """Lists, as TOML and JSON have them, as tuples; a string is not split, since shells disagree how."""
        if isinstance(value, str):
            raise ConfigError(
                f'`trainer` takes lists of words, but got {value!r}; write e.g. ["python", "train.py", "{{run}}"]'
            )
        return tuple(value) if isinstance(value, list) else value

    @field_validator("series")
    @classmethod
    def _known(cls, value: dict[str, str]) -> dict[str, str]:
        check_series(value, "trainer.series")
        return value

    @model_validator(mode="after")
    def _needs_a_command(self) -> Self:
        if not self.command and (odd := sorted(self.model_fields_set - {"command"})):
            raise ConfigError(f"`trainer.{odd[0]}` needs a `trainer.command`, but there is none; add it")
        return self


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else (value,)
