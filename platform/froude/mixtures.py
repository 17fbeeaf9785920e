"""The table `data` of a Run: one corpus, or a mixture of several."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from froude.section import ConfigError, Section, did_you_mean, without_secrets
from froude.sections import Scalar

MIXTURE = "froude.train.data.mixture:Mixture"
PART_NAME = re.compile(r"\w+", re.ASCII)
#: Options of the package's sources that are files: their SHA-256 is put beside them, and counts in the path's place.
FILES = ("tokenizer",)
#: These, and a model's, whose SHA-256 counts only where it is given.
HASHED = (*FILES, "config")
#: Sources whose content no file's hash names: terabytes, perhaps, or half of what is read. They are asked themselves
#: (froude.material).
SELF_NAMED = ("froude.train.data.shards:Shards", "froude.train.data.text_tokens:TextTokens")


def identified(options: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The options of a source or model without the paths of files whose hash stands beside them."""
    return {k: v for k, v in options.items() if k not in HASHED or f"{k}_sha256" not in options}


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
        # A URL's last part may have a password in it; names of files, and of objects below a host or bucket, have none.
        plain = os.path.isabs(self.path) or re.match(r"\w+://[^/:@]+/[^?]*$", self.path)
        marks = [
            os.path.basename(self.path if plain else without_secrets(self.path)),
            self.sha256 and f"sha256:{self.sha256[:12]}",
        ]
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


class Part(Corpus):
    """A corpus of a mixture; `weight` is its share of the tokens, relative to the other parts'."""

    section: ClassVar[str] = "data.parts"
    LATER: ClassVar[tuple[str, ...]] = (*Corpus.LATER, "path", "sha256", "options", "epochs")
    name: str
    weight: float = Field(description="until the first of `data.phases`; 0 for a part that only those use")
    epochs: float = Field(default=0, ge=0, description="most times that its windows may be used; 0: no limit")

    @property
    def table(self) -> dict[str, Any]:
        """The table `data` of a run on this part alone."""
        return self.model_dump(mode="json", exclude={"name", "weight", "epochs"})

    @model_validator(mode="after")
    def _rules(self) -> Self:
        if not PART_NAME.fullmatch(self.name) or self.name in ("train", "validation"):
            raise ConfigError(
                "`data.parts.name` names a validation set, so it must be letters, digits and _, and not train or "
                f"validation, but got {self.name!r}; rename the part"
            )
        _check_weight("parts.weight", self.name, self.weight)
        return self


class MixturePhase(Section):
    """What a mixture's weights are from a token of the run on, or from a share of its tokens."""

    section: ClassVar[str] = "data.phases"
    LATER: ClassVar[tuple[str, ...]] = ("from_tokens", "from_share")
    from_tokens: int = Field(default=0, ge=0)
    from_share: float = Field(
        default=0.0, ge=0, lt=1, description="of the run's tokens: as a sweep's runs of several lengths need"
    )
    weights: dict[str, float] = Field(description="by part; 0 for those that it does not name")

    @model_validator(mode="after")
    def _rules(self) -> Self:
        if (self.from_tokens > 0) == (self.from_share > 0):
            both = "both" if self.from_tokens else "neither"
            raise ConfigError(
                f"a phase of `data.phases` must have `from_tokens` or `from_share`, above 0, but got {both}; weights "
                "from the start are those of `data.parts`"
            )
        for name, weight in self.weights.items():
            _check_weight("phases.weights", name, weight)
        if not any(self.weights.values()):
            raise ConfigError(
                f"a phase of `data.phases` must have a weight above 0, but got {self.weights}; raise one"
            )
        return self

    @property
    def start(self) -> float:
        return self.from_share or self.from_tokens

    def tokens(self, run: int) -> int:
        """From which token on it holds, in a run of so many."""
        return self.from_tokens or round(self.from_share * run)


def _check_weight(key: str, part: str, weight: float) -> None:
    if not 0 <= weight < math.inf:
        raise ConfigError(
            f"`data.{key}` must be a number from 0 on, but that of {part!r} is {weight}; correct it"
        )


class Data(Corpus):
    """What is trained on: one corpus, or a mixture of several `parts` whose weights may change with `phases`."""

    LATER: ClassVar[tuple[str, ...]] = (*Corpus.LATER, "parts", "phases")
    parts: tuple[Part, ...] = ()
    phases: tuple[MixturePhase, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """Import paths of all sources."""
        return (self.source, *(part.source for part in self.parts))

    @property
    def corpus(self) -> str:
        """What is trained on, for people: the source, and the file's name and the hash where there are any.

        Of a mixture the parts' names, and a hash of what they are.
        """
        if not self.parts:
            return super().corpus
        content = [[part.name, part.source, part.sha256, part.options] for part in self.parts]
        sha256 = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return f"{self.source} {'+'.join(part.name for part in self.parts)} sha256:{sha256[:12]}"

    @property
    def common(self) -> float:
        """Share of a run's tokens up to which its data do not depend on the run's length."""
        return next((phase.from_share for phase in self.phases if phase.from_share), 1.0)

    @property
    def shares(self) -> list[dict[str, Fraction]]:
        """Each phase's exact share of the tokens by part; the first phase is from the start."""
        found = []
        for table in (
            {part.name: part.weight for part in self.parts},
            *(each.weights for each in self.phases),
        ):
            weights = {part.name: Fraction(table.get(part.name, 0)) for part in self.parts}
            found.append({name: weight / sum(weights.values()) for name, weight in weights.items()})
        return found

    def mixture(self) -> list[dict[str, float]]:
        """The same, rounded to numbers that people read."""
        return [{name: round(float(share), 6) for name, share in table.items()} for table in self.shares]

    def settings_of(self, tokens: int) -> str:
        """The source's own options as JSON; of a mixture its shares, and from which part of such a run on.

        A phase that the run does not reach begins with its end: the run is validated in its shares.
        """
        if not self.parts:
            return self.settings
        starts = [
            0.0,
            *(round(min(1.0, phase.from_share or phase.from_tokens / tokens), 4) for phase in self.phases),
        ]
        shares = [{name: share for name, share in each.items() if share} for each in self.mixture()]
        mixture = list(zip(starts, shares, strict=True))
        return json.dumps({**self.options, "mixture": mixture}, sort_keys=True)

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, content: Any) -> Any:
        """Lists, as TOML and JSON have them, as tuples; parts without a source are a mixture's."""
        if not isinstance(content, dict):
            return content
        found = {
            key: tuple(value) if key in ("parts", "phases") and isinstance(value, list) else value
            for key, value in content.items()
        }
        return {"source": MIXTURE, **found} if found.get("parts") else found

    @model_validator(mode="after")
    def _mixes(self) -> Self:
        if self.source.startswith("froude.") and (self.source == MIXTURE) != bool(self.parts):
            got = f"{len(self.parts)} of them" if self.parts else "none"
            raise ConfigError(
                f'`data.parts` are for `data.source` = "{MIXTURE}", which needs some, but got {got} with '
                f"{self.source}; {'set that source' if self.parts else 'add [[data.parts]], or name another source'}"
            )
        names = [part.name for part in self.parts]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(
                f"`data.parts` must have different names, but {twice[0]!r} comes more than once; rename one"
            )
        if self.phases and not self.parts:
            raise ConfigError("`data.phases` are of a mixture, but got some without `data.parts`; add parts")
        if self.parts and not any(part.weight for part in self.parts):
            raise ConfigError(
                f"`data.parts` must have a weight above 0, but got 0 for {', '.join(names)}; raise one"
            )
        for name in (name for phase in self.phases for name in phase.weights if name not in names):
            raise ConfigError(
                f"`data.phases.weights` must name parts ({', '.join(names)}), but got {name!r}"
                f"{did_you_mean(name, names)}; correct the name"
            )
        if len({phase.from_share > 0 for phase in self.phases}) > 1:
            raise ConfigError(
                "`data.phases` must all have `from_tokens` or all `from_share`, but got both; use one of the two"
            )
        for before, after in pairwise(phase.start for phase in self.phases):
            if after <= before:
                raise ConfigError(f"`data.phases` must rise, but got {after} after {before}; sort them")
        for part in self.parts:
            if not part.weight and not any(phase.weights.get(part.name) for phase in self.phases):
                raise ConfigError(
                    f"a part must have a weight above 0 somewhere, but {part.name!r} has none; raise it, or leave the "
                    "part out"
                )
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


def _sha256(path: str) -> str:
    """SHA-256 of a file's bytes; empty if it can't be read, which whoever reads it explains better."""
    try:
        status = os.stat(path)
        # A device or a pipe may have no end.
        return _hashed(path, status.st_mtime_ns, status.st_size) if stat.S_ISREG(status.st_mode) else ""
    except (OSError, ValueError):
        return ""


@functools.lru_cache(maxsize=64)
def _hashed(path: str, modified: int, size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
