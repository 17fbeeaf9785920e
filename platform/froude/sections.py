"""The sections of a Run: its model, data and schedule, each a frozen, validated table."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from froude.schedules import SCHEDULES, RampRate, Tail
from froude.section import ConfigError, Section, drop_later, one_of

Scalar = str | int | float | bool

#: Options of the package's sources that are files: their SHA-256 is put beside them, and counts in the path's place.
FILES = ("tokenizer",)
#: Sources whose content no file's hash names: terabytes, perhaps, or half of what is read. They are asked themselves
#: (froude.material).
SELF_NAMED = ("froude.train.data.shards:Shards", "froude.train.data.text_tokens:TextTokens")


def identified(options: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """A source's options without the paths of files whose hash stands beside them."""
    return {k: v for k, v in options.items() if k not in FILES or f"{k}_sha256" not in options}


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


class Corpus(Section):
    """Import path of a source of training windows, and the file that it reads, if any."""

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
        return json.dumps(identified(self.options), sort_keys=True)

    @model_validator(mode="before")
    @classmethod
    def _pin(cls, content: Any) -> Any:
        """Name the file so that every process finds it, and its content, so that another file is another run."""
        if not isinstance(content, dict):
            return content
        source = str(content.get("source", "froude."))
        if source.startswith("froude.") and isinstance(content.get("options"), dict):
            content = {**content, "options": _pinned(content["options"])}
        if not isinstance(content.get("path"), str) or not content["path"] or "://" in content["path"]:
            return content
        path = os.path.abspath(os.path.expanduser(content["path"]))
        if not source.startswith("froude."):
            # A source of one's own may mean a URL by it, or a name; its content is asked of it (froude.material).
            return {**content, "path": path} if os.path.exists(path) else content
        if source in SELF_NAMED:
            return {**content, "path": path}
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

    @field_validator("command", "files", mode="before")
    @classmethod
    def _words(cls, value: object) -> object:
        """Lists, as TOML and JSON have them, as tuples; a string is not split, since shells disagree how."""
        if isinstance(value, str):
            raise ConfigError(
                f'`trainer` takes lists of words, but got {value!r}; write e.g. ["python", "train.py", "{{run}}"]'
            )
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _needs_a_command(self) -> Self:
        if not self.command and (odd := sorted(self.model_fields_set - {"command"})):
            raise ConfigError(f"`trainer.{odd[0]}` needs a `trainer.command`, but there is none; add it")
        return self


def _pinned(options: dict[str, Any]) -> dict[str, Any]:
    """Options that name their files so that every process finds them, with the hash of each that can be read."""
    found = dict(options)
    for key in FILES:
        path = options.get(key)
        if isinstance(path, str) and path and "://" not in path:
            found[key] = os.path.abspath(os.path.expanduser(path))
            if known := options.get(f"{key}_sha256") or _sha256(found[key]):
                found[f"{key}_sha256"] = known
    return found


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else (value,)


def _sha256(path: str) -> str:
    """SHA-256 of a file's bytes; empty if it can't be read, which whoever reads it explains better."""
    try:
        status = os.stat(path)
        return _hashed(path, status.st_mtime_ns, status.st_size)
    except (OSError, ValueError):
        return ""


@functools.lru_cache(maxsize=64)
def _hashed(path: str, modified: int, size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
