"""What study.json keeps of how a sweep has laid out its stages (`Agenda.layouts`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from froude.store import Location
from froude.study import Study


def note(study: Location, layouts: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
    """Write down what is new of the stages that a sweep is about, before any trial that follows from it is stored."""
    meta = Study(study).meta
    stages = {name: {**stage, **layouts.get(name, {})} for name, stage in meta["stages"].items()}
    if stages != meta["stages"]:
        (study / "study.json").replace(json.dumps({**meta, "stages": stages}, indent=1).encode() + b"\n")
