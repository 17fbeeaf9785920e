"""What a Run is: one frozen, validated description of a training run, from Python or from TOML."""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Literal, Self

import tomli_w
from pydantic import Field, field_validator, model_validator

from froude.compute import Compute, Precision, check_precision
from froude.mixtures import Data, identified
from froude.optimizers import times
from froude.optimizers.section import Optimizer
from froude.parametrizations import DEFAULT, PARAMETRIZATIONS, Parametrization, able
from froude.schedules import OF_SOME, refuse_idle
from froude.schedules.phases import Phases, whole_steps
from froude.section import ConfigError, Section, drop_later, flat, inner, listing, one_of, shown
from froude.sections import Model, Scalar, Schedule, Trainer

__all__ = [
    "Compute",
    "ConfigError",
    "Data",
    "Model",
    "Optimizer",
    "Run",
    "Scalar",
    "Schedule",
    "Section",
    "Trainer",
    "whole_steps",
]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")


class Run(Section):
    """One training run, complete: what is trained, on what, how long, how; batch and horizon in tokens."""

    name: str = ""
    stage: str = ""
    model: Model = Field(default_factory=lambda: Model())
    data: Data = Field(default_factory=lambda: Data())
    optimizer: Optimizer = Field(default_factory=lambda: Optimizer())
    schedule: Schedule = Field(default_factory=lambda: Schedule())
    trainer: Trainer = Field(default_factory=lambda: Trainer())
    compute: Compute = Field(default_factory=lambda: Compute())
    parametrization: str = DEFAULT.name
    precision: Precision = "fp32"
    batch: int = Field(default=768, gt=0, description="tokens of one optimizer step, over all workers")
    slots: int = Field(
        default=0,
        ge=0,
        description="fixed parts of a batch, each computed by one worker; 0: the least common multiple of "
        "the numbers of workers, as long as it is at most four times the largest, else the largest",
    )
    reduction: Literal["exact", "fast"] = Field(
        default="fast", description="exact: the same bits at any number of workers; fast: as FSDP sums"
    )
    slot_schedule: Literal["cyclic", "block"] = Field(
        default="cyclic",
        description="who computes which slot of an exact run; block sends less and keeps more",
    )
    tokens: int = Field(gt=0, description="training tokens of the whole run, in whole steps")
    seed: int = Field(default=0, ge=0, lt=2**31)
    micro_batch: int = Field(default=0, ge=0, description="tokens of a worker's forward pass; 0: all at once")
    eval_windows: int = Field(default=768, gt=0, description="validation windows of every evaluation")
    eval_every: int = Field(default=0, ge=0, description="steps; 0: at the end only")
    norms_every: int = Field(default=100, ge=0, description="steps between norms by layer; 0: none")
    noise_every: int = Field(
        default=10,
        ge=0,
        description="steps between measurements of the gradient noise scale, in an exact run; 0: none",
    )
    checkpoint_every: int = Field(default=50, gt=0, description="steps")
    keep_checkpoints: int = Field(default=3, ge=0, description="the newest ones; 0: all")
    keep_every: int = Field(default=0, ge=0, description="one in so many checkpoints stays for good; 0: none")
    stability: Literal["ladder", "off"] = Field(
        default="ladder",
        description="ladder: the spike policy: a run that spikes leaves out updates, eases off, goes back, lowers "
        "its rate, stops, in this order",
    )
    workers: int | tuple[int, int] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"

    LATER: ClassVar[tuple[str, ...]] = ("trainer", "compute")
    #: What may differ without making it another run: labels, resources, paths.
    UNFINGERPRINTED: ClassVar[tuple[str, ...]] = (
        "name",
        "stage",
        "workers",
        "device",
        "slot_schedule",
        "checkpoint_every",
        "keep_checkpoints",
        "keep_every",
        "eval_every",
        "norms_every",
        "noise_every",
    )

    @field_validator("workers", mode="before")
    @classmethod
    def _pair(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("parametrization", mode="before")
    @classmethod
    def _known(cls, value: object) -> object:
        return one_of(value, PARAMETRIZATIONS)

    @model_validator(mode="after")
    def _rules(self) -> Self:
        low, high = self.min_workers, self.max_workers
        if low < 1 or high < low:
            raise ConfigError(
                "`workers` must be at least 1, or a pair (min, max) with 1 <= min <= max, "
                f"but got {self.workers}; use e.g. 1 or (1, 4)"
            )
        if not self.slots:
            even = math.lcm(*range(low, min(high, low + 64) + 1))  # of more it is beyond any use, and slow
            object.__setattr__(self, "slots", even if even <= 4 * high else high)
            self.model_fields_set.discard("slots")  # `replace` computes it again
        window, slot = self.model.context, self.slots * self.model.context
        if self.name and not NAME.fullmatch(self.name):
            raise ConfigError(
                "`name` must start with a letter or digit and hold only letters, digits and . _ -, "
                f"but got {self.name!r}"
            )
        if self.batch % slot:
            below = self.batch // slot * slot
            near = f"{below} or {below + slot}" if below else str(slot)
            raise ConfigError(
                f"`batch` must be a multiple of slots x context = {self.slots} x {window} = {slot} tokens, "
                f"but got {self.batch}; use {near}"
            )
        if not self.schedule.model_fields_set.issuperset(OF_SOME):
            self._refuse_idle(OF_SOME)  # a stored one names all, and may have any
        self.phases.check()
        self.compute.check_device(self.device, high)
        if self.schedule.warmup_tokens > self.tokens:
            raise ConfigError(
                f"`schedule.warmup_tokens` must not exceed the run's {self.tokens} tokens, but got "
                f"{self.schedule.warmup_tokens}; shorten the warmup or lengthen the run"
            )
        if self.micro_batch % window:
            raise ConfigError(
                f"`micro_batch` must be a multiple of the context of {window} tokens (0: all at once), "
                f"but got {self.micro_batch}"
            )
        if self.trainer.command and high > 1:
            raise ConfigError(
                f"`workers` must be 1 with a `trainer.command`, which starts its own, but got {self.workers}; reserve "
                "by `trainer.nodes`, `trainer.gpus` and `trainer.cpus`"
            )
        self.compute.check_strategy(self.reduction, low, high)
        object.__setattr__(self, "optimizer", self.optimizer.at(self.batch, self.tokens))
        if not self.optimizer.imported:  # else its code is not to be run yet
            self.check_optimizer()
        if high > self.slots and high > 1:
            raise ConfigError(
                f"`workers` must not exceed the {self.slots} slots of a batch, but got {self.workers}; "
                "use more slots or fewer workers"
            )
        return self

    def check_optimizer(self) -> None:
        """ConfigError if the optimizer's settings, the parametrization or the workers are not those that it can have.

        A Run has checked that itself, except for an optimizer by import path, whose code must be trusted first.
        """
        optimizer, spec = self.optimizer, self.optimizer.spec
        optimizer.check()
        able.check(self.width_rules, optimizer)
        self.compute.check_spec(spec)
        check_precision(self.precision, self.device, spec)
        self.compute.check_precision(self.precision, self.model.context)
        if spec.schedules and self.schedule.name not in spec.schedules:
            known = listing([f'"{name}"' for name in spec.schedules])
            raise ConfigError(
                f"`schedule.name` must be {known} with {optimizer.name}, which does without others, but got "
                f'"{self.schedule.name}"; set it, or use adamw'
            )
        if self.max_workers > 1 and spec.unit == "model":
            raise ConfigError(
                f"`workers` must be 1 with {optimizer.name}, whose update needs all of the model at once, but got "
                f"{self.workers}"
            )

    def _refuse_idle(self, named: Collection[str]) -> None:
        if not self.trainer.command:  # which may read any
            refuse_idle(self.schedule, named)

    def __init__(self, **data: Any) -> None:
        super().__init__(**data)
        if not self.name:
            object.__setattr__(self, "name", self._default_name())

    def _default_name(self) -> str:
        round_k = self.batch >= 10_240 and self.batch % 1024 == 0
        batch = f"{self.batch // 1024}k" if round_k else str(self.batch)
        digits, exponent = f"{self.optimizer.lr:.1e}".split("e")
        lr = f"{digits.removesuffix('.0')}e{int(exponent)}"
        return f"w{self.model.width}-d{self.model.depth}-b{batch}-lr{lr}-s{self.seed}"

    @property
    def phases(self) -> Phases:
        """How large its batches are, and when: what turns tokens into steps and back."""
        return Phases(self.batch, self.tokens, self.schedule.ramp)

    @property
    def steps(self) -> int:
        return self.phases.steps

    @property
    def windows(self) -> int:
        """Windows of one batch; a ramp's steps take several."""
        return self.batch // self.model.context

    @property
    def windows_per_slot(self) -> int:
        """Windows of a slot of one batch."""
        return self.windows // self.slots

    @property
    def min_workers(self) -> int:
        return self.workers if isinstance(self.workers, int) else self.workers[0]

    @property
    def max_workers(self) -> int:
        return self.workers if isinstance(self.workers, int) else self.workers[1]

    @property
    def width_rules(self) -> Parametrization:
        """The value that `parametrization` names."""
        return PARAMETRIZATIONS[self.parametrization]

    @property
    def foreign(self) -> tuple[str, ...]:
        """Import paths outside the package, which run only when the user trusts them."""
        paths = [self.model.factory, *dict.fromkeys(self.data.sources)]
        paths += [self.optimizer.name] if self.optimizer.imported else []
        return tuple(path for path in paths if not path.startswith("froude."))

    @property
    def fingerprint(self) -> str:
        """First 16 hex digits of the SHA-256 over everything but names, resources and paths."""
        text = json.dumps(self._identity(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _identity(self) -> dict[str, Any]:
        """Everything but names, resources and paths."""
        content = self.to_dict()
        for key in self.UNFINGERPRINTED:
            content.pop(key, None)
        content["model"]["options"] = identified(content["model"]["options"])
        for table in (content["data"], *content["data"].get("parts", ())):
            table.pop("path", None)
            if "options" in table:
                table["options"] = identified(table["options"])
        if "trainer" in content:
            content["trainer"] = self.trainer.identity
        if content.pop("compute", None) and (found := self.compute.identity):
            content["compute"] = found
        return content

    def as_proxy(self) -> Run:
        """The run as a trial trains it: a policy that saves it from a high rate would bend the curve of the rates."""
        return self if self.stability == "off" else self.replace(stability="off")

    @property
    def proxy_fingerprint_0_1(self) -> str:
        """What version 0.1 called a proxy of these settings: its fingerprint named the policy that no proxy had."""
        return self.replace(stability="ladder").fingerprint

    def differences(self, other: Run) -> list[str]:
        """The fingerprint's keys in which two runs differ, dotted, with both values: "batch 768 instead of 384"."""
        own, new = (flat(run._identity()) for run in (self, other))
        return [
            f"{key} {shown(new.get(key))} instead of {shown(own.get(key))}"
            for key in sorted({*own, *new})
            if own.get(key) != new.get(key)
        ]

    def replace(self, changes: Mapping[str, Any] | None = None, /, **more: Any) -> Run:
        """A validated copy with some keys changed; dotted keys such as "optimizer.lr" reach into sections, and
        "data.parts.web.weight" into the table of that name.

        Slots that were not named follow the workers of the copy. A stored run names its slots, so they stay. A time of
        the optimizer takes the place of its number, and a number that of its time. Where the run has the defaults of
        its optimizer, another optimizer takes its own. KV heads that are not named keep their share of the heads.
        """
        changes = self.model.in_proportion({**(changes or {}), **more})
        content = self.to_dict()
        if "slots" not in self.model_fields_set:
            del content["slots"]
        if "name" not in changes:
            content["name"] = "" if self.name == self._default_name() else self.name
        self.optimizer.drop_defaults(content["optimizer"], changes)
        for key, value in changes.items():
            *sections, last = key.split(".")
            place = content
            for section in sections:
                place = inner(place, section, key)
            place.pop(times.replaced(key, value, changes), None)
            place[last] = value.to_dict() if isinstance(value, Run) else value
        made = Run.from_dict(content)
        # They may be for another schedule than this one, or for another tail.
        named = [key for key in changes if not (key == "schedule.floor" and "schedule.tail" in changes)]
        if "schedule.name" not in changes:
            made._refuse_idle([key.removeprefix("schedule.") for key in named])
        return made

    def pinned(self) -> Run:
        """The run with numbers for its optimizer's times, which so stay where batch or tokens are changed."""
        return self.replace(self.optimizer.numbers)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON and TOML types only; without later keys at their defaults, and what the optimizer can't have."""
        content = self.model_dump(mode="json")
        drop_later(self, content)
        if self.optimizer.stored_rest is None:
            del content["optimizer"]["rest"]
        for table in (content["optimizer"], content["optimizer"].get("rest", {})):
            times.drop_numbers(table)
        return content

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Run:
        return cls(**dict(content))

    @classmethod
    def from_toml(cls, text: str) -> Run:
        try:
            content = tomllib.loads(text)
        except (
            ValueError,
            RecursionError,
        ) as error:  # of numbers too long to read, and of brackets without end
            raise ConfigError(f"a run must be valid TOML, but {error}") from None
        return cls.from_dict(content)
