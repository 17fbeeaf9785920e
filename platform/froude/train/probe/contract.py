"""The probe before anything starts: whether models and corpora keep the contract of `froude.train.api`.

What is looked at in a corpus is in `froude.train.data.soundness`, what in a model in `froude.train.probe.soundness`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

from froude.config import ConfigError, Run
from froude.material import commands
from froude.train import api
from froude.train.api import check_trust
from froude.train.data.soundness import check_corpus
from froude.train.probe.soundness import check_model
from froude.user_code import call_user

#: What is looked at, by the name that passes over it.
CHECKS = (
    "corpus",  # windows of both splits, token ids below the vocabulary
    "forward",  # logits [windows, context, vocab], finite; without it no model is looked at
    "dense",  # no mixture of experts: no law here is for one
    "random",  # two forward passes of an exact run alike: no dropout
    "gradients",  # one for every parameter that may have one
    "state",  # the same model when built twice, nothing but parameters changed by training
    "independent",  # a sequence's logits do not depend on the others of its batch
    "causal",  # logits do not depend on later tokens
)
#: Of one call: parameters of all models that are built for it, and models. Two of 34M together, in bf16, took 11 s of
#: CPU time (AMD EPYC), small ones a fraction of a second each.
PARAMETERS, SHAPES = 2**26, 8


@dataclass(frozen=True)
class Probed:
    """How many corpora and models were found sound; what was passed over, and what else a user may want to know."""

    corpora: int
    models: int
    skipped: tuple[str, ...]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """The same for people."""
        counted = [
            f"{n} {what}{'s' * (n > 1)}"
            for n, what in ((self.models, "model"), (self.corpora, "data source"))
            if n
        ]
        done = [name for name in CHECKS if name not in self.skipped]
        found = f"{' and '.join(counted)} sound ({', '.join(done)})" if counted else "nothing looked at"
        left = f"; skipped: {', '.join(self.skipped)}" if self.skipped else ""
        return [f"probe: {found}{left}", *(f"  {note}" for note in self.notes)]


def check_names(skip: Iterable[str]) -> tuple[str, ...]:
    """The names of checks to pass over, each once; ConfigError for an unknown one."""
    for name in skip:
        if name not in CHECKS:
            raise ConfigError(
                f"a check of the probe must be one of {', '.join(CHECKS)}, but got {name!r}; name one"
            )
    return tuple(name for name in CHECKS if name in set(skip))


_sound: dict[str, tuple[str, ...]] = {}  # notes on what this process has found sound
_sizes: dict[str, int] = {}  # parameters, by shape


def check(runs: Iterable[Run], skip: Collection[str] = ()) -> Probed:
    """Look at every corpus and every shape of a model among the runs; ConfigError for the first that is not sound.

    Their code has been trusted. `skip` names checks to pass over. What was sound is not looked at again.
    """
    runs, skipped = list(runs), check_names(skip)
    notes: list[str] = []
    # Of a mixture the longest run uses its parts most often.
    by_need = sorted(runs, key=lambda run: (bool(run.data.parts) * run.tokens, run.eval_windows))
    corpora = {_key(run, "data", context=run.model.context, vocab=run.model.vocab): run for run in by_need}
    if "corpus" in skipped:
        corpora = {}
    for run in corpora.values():
        length = run.tokens if run.data.parts else 0
        key = _key(
            run, "data", "eval_windows", context=run.model.context, vocab=run.model.vocab, tokens=length
        )
        if key not in _sound:
            _sound[key] = tuple(check_corpus(run))
        notes += _sound[key]
    shapes, left_out = smallest(runs) if "forward" not in skipped else ([], [])
    several = any(run.max_workers > 1 for run in runs)
    for run in shapes:
        more = {"compute": run.compute.model_dump(), "skipped": skipped, "several": several}
        key = _key(run, "model", "parametrization", "precision", "reduction", **more)
        if key not in _sound:
            _sound[key] = tuple(check_model(run, skipped, several=several))
        notes += _sound[key]
    return Probed(len(corpora), len(shapes), skipped, tuple(dict.fromkeys([*notes, *left_out])))


def _key(run: Run, *fields: str, **more: Any) -> str:
    content = run.to_dict()
    return json.dumps([[content[field] for field in fields], more], sort_keys=True, default=list)


def _further(run: Run) -> dict[str, Any]:
    """What the rest of a run asks of its model."""
    return {"kinds": list(run.optimizer.multipliers), "compute": run.compute.model_dump()}


def smallest(runs: Iterable[Run]) -> tuple[list[Run], list[str]]:
    """The smallest run of each shape, exact if any of the shape is; and lines on what is too large or too much here."""
    by_model = {
        _key(run, "model", "parametrization", "precision", "reduction", **_further(run)): run for run in runs
    }
    shapes: dict[str, list[tuple[int, Run]]] = {}
    for run in by_model.values():
        model = _key(run, "model", "parametrization", **_further(run))
        if model not in _sizes:
            _sizes[model] = _size(run)
        # Sizes and standard deviations differ within a shape.
        kept = (
            run.model.factory,
            run.model.options,
            run.model.tied,
            run.model.qk_norm,
            run.model.architecture,
        )
        shape = _key(run, "parametrization", "precision", model=kept, compute=run.compute.model_dump())
        shapes.setdefault(shape, []).append((_sizes[model], run))
    ranked = []
    for group in shapes.values():
        size, run = min(group, key=lambda item: item[0])
        if any(other.reduction == "exact" for _, other in group):
            run = run.replace(reduction="exact", name=run.name)
        ranked.append((size, run))
    ranked.sort(key=lambda item: item[0])
    totals = accumulate(size for size, _ in ranked)
    few = sum(total <= PARAMETERS for total in islice(totals, SHAPES))
    notes = []
    if few < len(ranked):
        size, run = ranked[few]
        notes.append(
            f"not probed, as too large or too many: {len(ranked) - few} of {len(ranked)} models, from "
            f"{run.model.factory} of width {run.model.width} on ({size / 1e6:.3g}M parameters)"
        )
    return [run for _, run in ranked[:few]], notes


def _size(run: Run) -> int:
    """Parameters of the run's model, built without memory; ConfigError if its FLOPs are not a positive number."""
    model = call_user(
        f"building {run.model.factory} without memory",
        api.build_model,
        run,
        "meta",
    )
    flops = call_user("flops_per_token()", model.flops_per_token)
    if not (isinstance(flops, int | float) and math.isfinite(flops) and flops > 0):
        raise ConfigError(
            f"flops_per_token() must be a positive number, but that of {run.model.factory} returned {flops!r}; "
            "return the FLOPs of one token's forward and backward pass"
        )
    return sum(parameter.numel() for parameter in model.parameters())


def check_code_and_corpus(runs: Iterable[Run], trust: bool, skip_probe: Collection[str] = ()) -> Probed:
    """What the probe found; ConfigError if code is not trusted or not there, or a corpus or a model is not sound."""
    runs = list(runs)
    for run in {repr(run.trainer): run for run in runs if run.trainer.command}.values():
        check_trust(run, trust)
        commands.check(run)
    runs = [run for run in runs if not run.trainer.command]
    for run in runs:
        check_trust(run, trust)
        run.check_optimizer()
        run.optimizer.spec.load()
    return check(runs, skip_probe)
