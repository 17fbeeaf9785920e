"""The table `optimizer` of a run, and `optimizer.rest` in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from froude.optimizers import OPTIMIZERS, REST, Average, Option, Spec, imported, times
from froude.section import ConfigError, Section, did_you_mean, listing, one_of
from froude.user_code import call_user

#: What a parameter is to a parametrization and an optimizer.
Kind = Literal["embedding", "hidden", "readout", "norm", "bias"]
#: How rate times decay of hidden matrices moves with width; the powers are in `froude.parametrizations`.
DecayWidth = Literal["constant", "inverse_sqrt", "inverse"]
BITS = 63  # of a whole number, beside its sign: those of torch and TOML have as many
IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:\w+")


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
    average: ClassVar[None] = None

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
    decays, at the base width and depth: rate times decay stays over width, but under depth_mup in blocks it falls with
    the root of the depth, as their rate does. In an optimizer of matrices it is theirs, by `lr`; the rest has its own,
    by its own rate.
    `decay_width` is how rate times decay of hidden matrices moves with width under muP (`froude.parametrizations`).
    `multipliers` are factors on the rate of each kind of parameter. A kind's timescale stays, since that is what
    transfers (2405.13698): its decay is divided by the factor.
    """

    section: ClassVar[str] = "optimizer"
    LATER: ClassVar[tuple[str, ...]] = (
        "options",
        "clipping",
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
    clipping: Literal["global", "zclip", "adagc"] = Field(
        default="global",
        description="what is clipped before `clip` bounds the rest: nothing, outliers of the norm, or of each tensor's",
    )
    multipliers: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict, description="factors on the rate, by kind"
    )
    options: dict[str, Option] = Field(default_factory=dict, description="what only this optimizer has")
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
        if self.imported:
            call_user(f"arguments of {self.name}", spec.arguments, self)
            call_user(f"family of {self.name}", self.family)
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
            if isinstance(value, int) and value.bit_length() > BITS:
                raise ConfigError(
                    f"`optimizer.options.{key}` must have at most {BITS} bits, but has {value.bit_length()}; write a "
                    "number nearer to 0"
                )
            if key in spec.least and float(value) < spec.least[key]:
                raise ConfigError(
                    f"`optimizer.options.{key}` must be at least {spec.least[key]}, but got {value}"
                )
            if key in spec.most and float(value) > spec.most[key]:
                raise ConfigError(
                    f"`optimizer.options.{key}` must be at most {spec.most[key]}, but got {value}"
                )
            if choices and value not in choices:
                raise ConfigError(
                    f"`optimizer.options.{key}` must be {listing(map(repr, choices))}, but got {value!r}"
                )
        if self.name == "sgd" and self.options.get("nesterov") and not self.beta1:
            raise ConfigError(
                "`optimizer.options.nesterov` needs a momentum, but `optimizer.beta1` is 0; set it to e.g. 0.9"
            )
        if spec.average and not self.beta1:
            raise ConfigError(
                f"`optimizer.beta1` must be above 0 with {self.name}, whose average is computed with it, but got 0; "
                "use e.g. 0.9"
            )
        for key, value in self._idle():
            beside = ", or set that of `optimizer.rest`" if spec.unit == "matrix" else ""
            raise ConfigError(
                f"`optimizer.{key}` must be left out with {self.name}, which has none, but got {value}; leave it out"
                f"{beside}"
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
        if self.beta2_half_life and (spec.curvature or not spec.beta2):
            other = "set `optimizer.rest.beta2_half_life`" if spec.unit == "matrix" else "leave it out"
            raise ConfigError(
                f"`optimizer.beta2_half_life` is for optimizers that average by beta2 in every step, unlike "
                f"{self.name}; {other}"
            )
        if spec.unit != "matrix" and self.rest != Rest():
            raise ConfigError(
                f"`optimizer.rest` is for optimizers of matrices, but {self.name} takes all parameters itself; leave "
                "it out"
            )

    def _idle(self) -> Iterator[tuple[str, float]]:
        """Settings other than their defaults that the optimizer does nothing with, and their values.

        None of SGD's: 0.1 stored runs of it with any beta2 and epsilon, which must be read.
        """
        spec = self.spec
        if self.name == "sgd":
            return
        other = self.model_copy(update={"beta1": (1 + self.beta1) / 2})
        has = {
            "beta1": spec.arguments(self) != spec.arguments(other),
            "beta2": self.has_beta2,
            "eps": spec.epsilon,
            "weight_decay": spec.decays,
        }
        for key in (key for key, used in has.items() if not used):
            if getattr(self, key) not in (DEFAULTS[key], spec.defaults.get(key)):
                yield key, getattr(self, key)

    @property
    def has_beta2(self) -> bool:
        """Whether the optimizer averages by `beta2`; of one by import path it is taken for granted."""
        return self.imported or self.spec.has_beta2

    @property
    def average(self) -> Average | None:
        """What is evaluated in place of the weights that are trained; None if it is those."""
        return self.spec.average(self) if self.spec.average else None

    def drop_defaults(self, content: dict[str, Any], changes: Mapping[str, Any]) -> None:
        """Take the defaults out of this table's content if changes name another optimizer, which has its own."""
        if changes.get("optimizer.name", self.name) != self.name:
            defaults = DEFAULTS if self.imported else Optimizer(name=self.name).model_dump(mode="json")
            for key in [key for key, value in content.items() if defaults.get(key) == value]:
                del content[key]

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

    @property
    def stored_rest(self) -> Rest | None:
        """The settings of `rest` where they may matter: of one by import path it is not known before it is imported."""
        return self.rest if self.imported or self.spec.unit == "matrix" else None

    def family(self, *, matrix: bool = True) -> str:
        """That of a parametrization's table, for a hidden matrix or for another parameter."""
        found = (self if matrix else self.by_rows).spec.family
        return found if isinstance(found, str) else found(self)

    @property
    def families(self) -> tuple[str, ...]:
        """All that a parametrization must have rules for."""
        return tuple(dict.fromkeys((self.family(), self.family(matrix=False))))


DEFAULTS = {key: field.default for key, field in Optimizer.model_fields.items()}


def beta2_arguments(settings: Optimizer | Rest, beta2: float) -> dict[str, Any]:
    """Those arguments of the optimizer's class that depend on beta2, at this one; none where it has no beta2."""
    own, other, here = (
        settings.spec.arguments(settings.model_copy(update={"beta2": each}))
        for each in (settings.beta2, (1 + settings.beta2) / 2, beta2)
    )
    return {key: value for key, value in here.items() if own[key] != other[key]}
