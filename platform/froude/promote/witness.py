"""A second store that holds a recipe's hash: what that store's clock says dates the seal for somebody else."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from froude.config import ConfigError
from froude.promote.recipe import Recipe, digest
from froude.store import Location, reported

SCHEMA = 1
FILE = "recipe.witness.json"
ABOUT = timedelta(seconds=2)  # a store's times: S3 has whole seconds, and several servers answer for it
MOST_SKEW = timedelta(minutes=15)  # S3 refuses requests of hosts whose clocks are further off
RULE = "a witness must be a store that can be written and read"


@dataclass(frozen=True)
class Witnessed:
    """A seal in a second store: the object's URL, and when it was written by that store's clock."""

    url: str
    sha256: str
    time: datetime

    def to_dict(self) -> dict[str, Any]:
        return {"url": self.url, "sha256": self.sha256, "time": self.time.isoformat()}

    def line(self) -> str:
        return f"{self.url}, {_utc(self.time)} by its clock"


def folder_of(url: str, study: Location) -> Location:
    """The second store's folder; ConfigError where it is no store, or is the study's own."""
    folder = Location.parse(url)
    if folder.within(study):
        raise ConfigError(
            f"a witness must be outside the study that it dates, but {folder} lies in {study}; name another store"
        )
    return folder


def place_of(folder: Location, study: Location, recipe: Recipe) -> Location:
    """Where the seal of a study's target run goes: one name for all its promotions, so that only one can be there."""
    return folder / f"{study.name}.{recipe.run.name}.json"


def content_of(recipe: Recipe, study: str) -> bytes:
    """What the second store is given: the hash, and what it seals, for people."""
    keys = ("loss", "low", "high", "level", "certified")
    content = {
        "froude": "witness",
        "schema": SCHEMA,
        "study": study,
        "run": recipe.run.name,
        "sha256": recipe.sha256,
        "sealed_at": recipe.sealed_at,
        "seals": {key: getattr(recipe.forecast, key) for key in keys},
    }
    return json.dumps(content, indent=2).encode() + b"\n"


def as_sealed_before(recipe: Recipe, place: Location) -> Recipe:
    """The recipe with the time, and so the hash, of the seal that is there already, if it is the same but for that.

    Otherwise a promotion that ended between the witness and the study would have another hash the next time.
    """
    with reported(place, RULE):
        there = _object(place.read()) if place.exists() else {}
    earlier = replace(recipe, sealed_at=str(there.get("sealed_at", "")))
    same = digest(earlier.content()) == there.get("sha256")
    return replace(earlier, sha256=str(there["sha256"])) if same else recipe


def attest(recipe: Recipe, place: Location, study: Location, *, begun: bool) -> Witnessed:
    """Write the seal there, unless it is there; ConfigError if another is, or the run has `begun` without it."""
    with reported(place, RULE):
        if not place.exists():
            if begun:
                raise ConfigError(
                    f"a seal must be witnessed before its run begins, but {recipe.run.name} has begun and {place} has "
                    "no seal; promote without --witness"
                )
            place.create(content_of(recipe, study.name))
        there, time = _object(place.read()), place.modified()
    if there.get("sha256") != recipe.sha256 or time is None:
        raise ConfigError(
            f"a witness must keep the first seal that it was given, but {place} is {_named(there)}, not seal "
            f"{recipe.sha256[:12]}; name another folder with --witness"
        )
    return Witnessed(place.url, recipe.sha256, time)


def remember(study: Location, witnessed: Witnessed) -> None:
    """Note in the study where its seal is witnessed, and when it was."""
    content = {"froude": "witnessed", "schema": SCHEMA, **witnessed.to_dict()}
    (study / FILE).replace(json.dumps(content, indent=2).encode() + b"\n")


def forget(study: Location) -> None:
    """Remove the note of an earlier recipe's witness; the witness keeps what it has."""
    if (study / FILE).exists():
        (study / FILE).delete()


def remembered(study: Location) -> Witnessed | None:
    """The study's note of its witness, None if there is none; ConfigError if it can't be read."""
    file = study / FILE
    with reported(file, "a study must be readable"):
        if not file.exists():
            return None
        content = _object(file.read())
    try:
        time = datetime.fromisoformat(content["time"])
        if content["schema"] != SCHEMA or time.tzinfo is None:
            raise ValueError(content["schema"])
        return Witnessed(str(content["url"]), str(content["sha256"]), time)
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            f"{FILE} must name a witness's url, sha256 and time in schema {SCHEMA}, but {file} does not; "
            "restore it or promote with --witness"
        ) from None


def compared(study: Location, recipe: Recipe, begun: datetime | None) -> tuple[bool | None, str] | None:
    """Whether the witness still has this seal from before the run, and what was seen; None without a witness.

    `begun` is when the run's first record was written, by the study's store. The answer is None where the witness
    can't be asked: that says nothing of the run.
    """
    try:
        note = remembered(study)
        if note is None:
            return None
        if note.sha256 != recipe.sha256:
            return False, f"{FILE} is of seal {note.sha256[:12]}, the recipe has {recipe.sha256[:12]}"
        place = Location.parse(note.url)
    except ConfigError as error:
        return False, str(error)
    try:
        there, time = _object(place.read()), place.modified()
    except FileNotFoundError:
        if _reachable(place.parent):
            return False, f"{place} is gone; it had the seal of {_utc(note.time)}"
        return None, f"unknown: {place.parent} can't be reached from here"
    except (OSError, ConfigError) as error:
        return None, f"unknown: {place} can't be read from here: {' '.join(str(error).split())[:200]}"
    if there.get("sha256") != recipe.sha256 or time is None:
        return False, f"{place} is {_named(there)}, not seal {recipe.sha256[:12]}"
    seen = f"seal {recipe.sha256[:12]} in {place} since {_utc(time)} by its clock"
    if abs(time - note.time) > ABOUT:
        return False, f"{seen}, but {_utc(note.time)} when it was promoted: written again since, or copied"
    if begun is None:
        return True, seen
    late = time - begun > MOST_SKEW
    return not late, f"{seen}, first record at {_utc(begun)} by the study's" + (": too late" if late else "")


def _reachable(folder: Location) -> bool:
    """Whether the store answers for this folder, whether or not something is in it."""
    try:
        folder.knock()
        return not folder.is_local or folder.path.is_dir()
    except (OSError, ConfigError):
        return False


def _object(content: bytes) -> dict[str, Any]:
    """The JSON object in these bytes, {} if it is none."""
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _named(there: dict[str, Any]) -> str:
    """What lies in a seal's place, in words."""
    if there.get("froude") != "witness":
        return "another file"
    return f"seal {str(there.get('sha256'))[:12]} of {str(there.get('sealed_at'))[:19]}"


def _utc(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
