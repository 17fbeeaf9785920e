"""Which stored trials were made with another corpus or code than is here now. It only decides, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from froude.config import Run
from froude.material import Material
from froude.sweep.trial_store import Stored


@dataclass
class Materials:
    """The material of a space's runs, as it is now; each corpus is asked once for each optimizer."""

    _known: dict[str, Material] = field(default_factory=dict)

    def of(self, run: Run) -> Material:
        """The run's; ConfigError where its source or its code is unfit."""
        from froude.train.api import material_of

        shape, data = run.model, run.data.model_dump()
        key = json.dumps(
            [shape.factory, shape.options, run.optimizer.name, data, shape.context, shape.vocab]
            if not run.trainer.command
            else [run.trainer.command, run.trainer.files, run.data.sha256]
        )
        if key not in self._known:
            self._known[key] = material_of(run)
        return self._known[key]


@dataclass(frozen=True)
class Comparison:
    """Of stored trials by name: what has `changed` since, a phrase each; notes on what is not known, or only told."""

    changed: Mapping[str, list[str]]
    notes: tuple[str, ...]


def compare(stored: Iterable[Stored], runs: Iterable[Run], materials: Materials) -> Comparison:
    """Compare what a study has with the runs that are to go on with it.

    A trial is compared with the runs of its factory, source and options; where there are none, its corpus must be one
    of theirs: a study is of the corpora of its space. Failed trials count for nothing, and are trained again anyway.
    """
    now: dict[str, dict[str, Material]] = {}
    for run in runs:
        material = materials.of(run)
        now.setdefault(_key(run), {})[material.digest] = material
    corpora = [dict(material.corpus) for alike in now.values() for material in alike.values()]
    changed: dict[str, list[str]] = {}
    unsaid: dict[str, list[str]] = {}
    versions: dict[str, list[str]] = {}
    for each in (each for each in stored if not each.failed):
        name, run = each.trial.name, each.trial.runs[-1]
        alike = list(now.get(_key(run), {}).values())
        then = each.material or _implied(run)
        if each.material is None and run.foreign:
            unsaid.setdefault(", ".join(run.foreign), []).append(name)
        if then is None:
            continue
        if not alike:
            if dict(then.corpus) not in corpora:
                changed[name] = Material(then.corpus).changes(Material(corpora[0] if corpora else {}))
        elif each.material is None:  # only its corpus is known
            if dict(then.corpus) not in [dict(material.corpus) for material in alike]:
                changed[name] = then.changes(Material(alike[0].corpus))
        elif then.digest not in {material.digest for material in alike}:
            changed[name] = then.changes(alike[0])
        elif other := then.other_versions(alike[0]):
            versions.setdefault(", ".join(other), []).append(name)
    notes = [
        f"{_trials(names)} from froude 0.1, which recorded neither content nor code of {what}: taken as unchanged"
        for what, names in unsaid.items()
    ]
    notes += [
        f"{_trials(names)} trained with {what}: other versions can change losses"
        for what, names in versions.items()
    ]
    return Comparison(changed, tuple(notes))


def _key(run: Run) -> str:
    command = [list(run.trainer.command)] if run.trainer.command else []
    return json.dumps([run.model.factory, run.data.source, run.data.options, *command], sort_keys=True)


def _implied(run: Run) -> Material | None:
    """What the config of a trial of 0.1 says of its material: the hash of a user's file, which our source checked."""
    pinned = run.data.sha256
    return Material({"corpus": pinned}) if pinned and run.data.source not in run.foreign else None


def _trials(names: list[str]) -> str:
    return f"trial {names[0]} is" if len(names) == 1 else f"{names[0]} and {len(names) - 1} more trials are"


def refusal(changed: Mapping[str, list[str]]) -> str:
    """The error about changed trials: the first change, and how to go on."""
    name, changes = next(iter(changed.items()))
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return (
        f"a study's trials must be of one corpus and code, but since {name!r}{more} {'; '.join(changes[:3])}; "
        "restore it, use another directory, or --rerun-changed to train again (the old rows are kept separately)"
    )
