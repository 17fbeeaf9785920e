"""recipe.toml: the target run, why it looks like this, and the forecast, sealed by a hash before step 0."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import tomli_w

from froude.config import ConfigError, Run
from froude.promote.choice.knob import Knob
from froude.promote.forecast import Forecast
from froude.promote.gate import Check
from froude.store import Location, reported

SCHEMA = 1
FILE = "recipe.toml"
HEADER = (
    "# Written by `froude promote` and sealed: the hash at the end covers every value.\n"
    "# To change the run, change the search space or the study's target and promote again.\n"
)


@dataclass(frozen=True)
class Recipe:
    """What `froude train` runs, with its evidence.

    `fits` holds the numbers of the laws, `fingerprints` the SHA-256 of the rows that each was fitted to,
    `extrapolation` the target over the largest proxy in params, tokens, compute and batch, `checks` the
    gate's table. `sealed_at` is in UTC (ISO 8601), `sha256` the seal. `material` is what corpus and code the study had
    (froude.material), {} where 0.1 swept it. `knobs` says of each setting where it is from, () in recipes of before;
    `prefer` is what chose the batch, "" where it was set; `trainer` is "external" where froude trains nothing.
    """

    run: Run
    profile: str
    fits: Mapping[str, Any]
    fingerprints: Mapping[str, str]
    extrapolation: Mapping[str, float]
    checks: tuple[Check, ...]
    forecast: Forecast
    sealed_at: str
    sha256: str
    material: Mapping[str, Any] = field(default_factory=dict)
    knobs: tuple[Knob, ...] = ()
    prefer: str = ""
    trainer: str = ""

    def check_trained_here(self) -> None:
        """ConfigError where another trainer is to train the run."""
        if self.trainer:
            raise ConfigError(
                f"a recipe for an external trainer is not trained by froude, but {self.run.name}'s was to be; "
                "start that trainer, and `froude follow RECIPE --metrics FILE`"
            )

    @property
    def overrides(self) -> dict[str, str]:
        """Checks that failed and were overridden, each with the reason given."""
        return {check.name: check.reason for check in self.checks if check.overridden}

    def content(self) -> dict[str, Any]:
        """Everything that the seal covers, in plain JSON and TOML types."""
        later: dict[str, Any] = {"material": dict(self.material)} if self.material else {}
        later |= {"knobs": [knob.to_dict() for knob in self.knobs]} if self.knobs else {}
        later |= {"prefer": self.prefer} if self.prefer else {}
        later |= {"trainer": self.trainer} if self.trainer else {}
        return {
            "froude": "recipe",
            "schema": SCHEMA,
            "sealed_at": self.sealed_at,
            "profile": self.profile,
            "run": self.run.to_dict(),
            "forecast": self.forecast.to_dict(),
            "extrapolation": dict(self.extrapolation),
            "fits": dict(self.fits),
            "fingerprints": dict(self.fingerprints),
            "checks": [asdict(check) for check in self.checks],
            **later,
        }

    def to_toml(self) -> str:
        return HEADER + tomli_w.dumps({**self.content(), "seal": {"sha256": self.sha256}})

    def write(self, location: Location) -> None:
        """Write the recipe, and the sealed forecast next to it as forecast.json."""
        (location.parent / "forecast.json").replace(self.forecast_json())
        location.replace(self.to_toml().encode())

    def restore_forecast(self, location: Location) -> None:
        """Write forecast.json anew where a promotion that was killed before its recipe.toml has left its own."""
        beside = location.parent / "forecast.json"
        if not beside.exists() or beside.read() != self.forecast_json():
            beside.replace(self.forecast_json())

    def forecast_json(self) -> bytes:
        content = {**self.forecast.to_dict(), "sha256": self.sha256, "sealed_at": self.sealed_at}
        return json.dumps(content, indent=2).encode() + b"\n"


def digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content as JSON with sorted keys and no spaces."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def seal(
    *,
    run: Run,
    profile: str,
    fits: Mapping[str, Any],
    fingerprints: Mapping[str, str],
    extrapolation: Mapping[str, float],
    checks: tuple[Check, ...],
    forecast: Forecast,
    material: Mapping[str, Any] | None = None,
    knobs: tuple[Knob, ...] = (),
    prefer: str = "",
    trainer: str = "",
) -> Recipe:
    """The recipe with the present time and its hash."""
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    fields = (run, profile, fits, fingerprints, extrapolation, checks, forecast, now)
    later = {"material": material or {}, "knobs": knobs, "prefer": prefer, "trainer": trainer}
    unsealed = Recipe(*fields, sha256="", **later)  # type: ignore[arg-type]
    return replace(unsealed, sha256=digest(unsealed.content()))


def read(location: Location | str) -> Recipe:
    """The recipe at this place, its seal verified.

    ConfigError if there is none, if it is not a recipe of this schema, or if its content is not what was sealed.
    """
    place = Location.parse(location)
    if place.name != FILE and (place / FILE).exists():
        place = place / FILE
    try:
        content = tomllib.loads(place.read().decode())
    except FileNotFoundError:
        raise ConfigError(
            f"a recipe must exist to be trained, but there is none at {place}; run `froude promote` first"
        ) from None
    except OSError:
        with reported(place, "a recipe must be a readable file, named recipe.toml"):
            raise
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"a recipe must be valid TOML, but {place} is not: {error}; promote again"
        ) from None
    if content.get("froude") != "recipe" or content.get("schema") != SCHEMA:
        raise ConfigError(
            f"a recipe must be of schema {SCHEMA}, but {place} has froude = {content.get('froude')!r} and "
            f"schema = {content.get('schema')!r}; promote again with this version"
        )
    seal = content.pop("seal", None)
    stored = str(seal.get("sha256", "")) if isinstance(seal, dict) else ""
    try:
        actual = digest(content)
    except (TypeError, ValueError):  # dates and infinities, which no seal covers
        actual = "nothing"
    if actual != stored:
        raise ConfigError(
            f"a recipe must stay as it was sealed, but {place} hashes to {actual[:12]}… instead of "
            f"{stored[:12] or 'nothing'}…; it was edited: restore it, or delete it and run `froude promote` again"
        )
    try:
        return _of(content, stored)
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"a recipe must have the keys of this version of froude, but {place} does not ({error}); it was written by "
            "another version: use that one"
        ) from None


def _of(content: Mapping[str, Any], sha256: str) -> Recipe:
    return Recipe(
        run=Run.from_dict(content["run"]),
        profile=content["profile"],
        fits=content["fits"],
        fingerprints=content["fingerprints"],
        extrapolation=content["extrapolation"],
        checks=tuple(Check(**check) for check in content["checks"]),
        forecast=Forecast.from_dict(content["forecast"]),
        sealed_at=content["sealed_at"],
        sha256=sha256,
        material=content.get("material", {}),
        knobs=tuple(Knob.from_dict(knob) for knob in content.get("knobs", ())),
        prefer=content.get("prefer", ""),
        trainer=content.get("trainer", ""),
    )
