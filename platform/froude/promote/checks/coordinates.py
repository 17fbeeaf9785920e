"""Check of a model that the package derived from a stranger's config: has a coordinate check of it passed?

`froude coordcheck` of a study keeps its verdict there, for the model, parametrization and optimizer that it looked at.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from froude.config import Run
from froude.material import Material
from froude.promote.case import Case
from froude.promote.gate import Finding, Rule
from froude.store import Location
from froude.study import Study

FILE = "study-coordcheck.json"
ADAPTER = "froude.train.hf:"
#: What is said where no verdict is kept.
NONE = "not checked"


def asked_of(run: Run) -> bool:
    """Whether the gate asks for it: the package's own model is checked by its tests, and SP promises nothing."""
    return run.model.factory.startswith(ADAPTER) and run.width_rules.transfers


def from_seed(run: Run) -> Run:
    """The run without the checkpoint that the package's adapter would start from, which has one size."""
    options = {key: value for key, value in run.model.options.items() if key != "init"}
    same = not run.model.factory.startswith(ADAPTER) or options == run.model.options
    return run if same else run.replace({"model.options": options}, name=run.name)


def looked_at(run: Run, material: Mapping[str, Any]) -> str:
    """SHA-256 of what a verdict is about: the model but for its sizes, and what its updates are made by."""
    shape = from_seed(run).model
    about = [
        [
            shape.factory,
            dict(shape.options),
            shape.tied,
            shape.head_dim,
            shape.base_width,
            shape.base_head_dim,
        ],
        [run.parametrization, run.optimizer.name, run.optimizer.decay_width],
        Material.from_dict(material).digest,
    ]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def keep(study: Study, run: Run, verdict: str, widths: list[int]) -> None:
    """Write a verdict over width into the study, beside those on other models."""
    place = study.location / FILE
    at = datetime.now(UTC).isoformat(timespec="seconds")
    row = {"verdict": verdict, "widths": widths, "lr": run.optimizer.lr, "at": at}
    content = {**_kept(place), looked_at(run, study.meta.get("material") or {}): row}
    place.replace(json.dumps(content, indent=2).encode() + b"\n")


def _kept(place: Location) -> dict[str, Any]:
    try:
        found = json.loads(place.read()) if place.exists() else {}
    except ValueError:  # half a file says nothing: the check is made again
        return {}
    return found if isinstance(found, dict) else {}


def verdict(case: Case) -> str:
    """The verdict kept for the study's target."""
    row = _kept(case.study.location / FILE).get(
        looked_at(case.target, case.study.meta.get("material") or {}), {}
    )
    return str(row.get("verdict", NONE)) if isinstance(row, dict) else NONE


COORDINATES: Rule[str] = Rule(
    "coordinates",
    asks="a passed coordinate check of the model",
    remedy="run `froude coordcheck` on the study, which names the rule that does not hold",
    measure=verdict,
    find=lambda found, _: Finding(found == "passed", found),
)
