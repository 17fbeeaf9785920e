"""Corpus, code and the newest checkpoint, as they are here, against what the run's records say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from froude.config import ConfigError, Run
from froude.material import Material
from froude.promote.verify.verdict import Verdict
from froude.runlog import LogReader, Record, expired

if TYPE_CHECKING:
    import torch

MATERIAL = "corpus and code are those that the run recorded"


def material(run: Run, head: Record) -> Iterator[Verdict]:
    """Whether corpus and code here are what the run recorded; a run of 0.1 recorded nothing of foreign code."""
    from froude.train import api

    recorded = head.meta.get("material")
    if recorded is not None:
        changes = Material.from_dict(recorded).changes(api.material_of(run))
        seen = f"{len(recorded.get('modules', {}))} modules" if run.foreign else "the package's own code"
        yield Verdict(MATERIAL, not changes, "; ".join(changes) or seen)
    elif run.foreign:
        yield Verdict(MATERIAL, True, "not recorded by the version that trained it: taken as unchanged")


def _given_up(log: LogReader, records: list[Record]) -> set[int]:
    """Of the checkpoints that were kept after `records`, those that a run which goes on has deleted since."""
    return expired(log.records()) - expired(records)


def checkpoint(
    run: Run, log: LogReader, records: list[Record], last: Record, damage: str
) -> tuple[Verdict, str]:
    """Whether the newest checkpoint is whole, and one of the run's model and optimizer; and its digest, if it is."""
    from froude.checkpoint.parts import Corrupt
    from froude.checkpoint.tensors import Tensors, digest
    from froude.train.trainer import state_without_memory

    def finite(name: str, tensor: torch.Tensor) -> None:
        if name not in frozen and not tensor.isfinite().all():
            raise Corrupt(f"`{name}` must be numbers, but some of it is NaN or infinite")

    bits = ""
    try:
        if not damage:
            state = state_without_memory(run)
            # A model may keep an infinity, as a mask, in a weight that is not trained.
            frozen = {name for name, p in state.items() if name.startswith("model.") and not p.requires_grad}
            with Tensors(log.location, last) as tensors:
                damage = tensors.unlike(state)
        bits = "" if damage else digest(log.location, last, finite)
    except (Corrupt, ConfigError) as error:
        damage = "" if last.seq in _given_up(log, records) else str(error)
    seen = damage or (f"digest {bits}" if bits else "deleted since, when newer ones were kept")
    return Verdict(f"the checkpoint of step {last.step} is whole", not damage, seen), bits
