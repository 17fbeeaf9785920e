"""What runs and sweeps have committed, told to trackers: they see a study, and a study never sees them.

A process of its own reads the commit log and the trials' files, for each tracker, beside the command that trains. So a
tracker needs no package on the workers, and one that raises or hangs delays nobody. Only what can't be taken back is
told (froude.tracking.permanent), so that a tracker's history never has to be.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from froude.config import ConfigError
from froude.section import listing, without_secrets
from froude.tracking.places import check_mlflow, check_tensorboard, check_wandb
from froude.tracking.tracker import Tracker


@dataclass(frozen=True)
class Kind:
    """A tracker by the class that speaks to it, the package that it needs, what names a place of it, and its rule."""

    path: str
    package: str
    place: str
    check: Callable[[str], None]


KINDS = {
    "wandb": Kind("froude.tracking.wandb_tracker:WandB", "wandb", "PROJECT", check_wandb),
    "mlflow": Kind("froude.tracking.mlflow_tracker:MLflow", "mlflow", "URI", check_mlflow),
    "tensorboard": Kind(
        "froude.tracking.tensorboard_tracker:TensorBoard", "tensorboardX", "DIR", check_tensorboard
    ),
}


def split(target: str) -> tuple[Kind, str]:
    """The kind and the place of `wandb:PROJECT`; ConfigError for what is neither."""
    name, _, place = target.partition(":")
    if name not in KINDS or not place:
        raise ConfigError(
            f"--track must be {listing([f'{kind}:{each.place}' for kind, each in KINDS.items()])}, "
            f"but got {without_secrets(target)!r}"
        )
    return KINDS[name], place


def load(target: str) -> Tracker:
    """The tracker at a target."""
    kind, place = split(target)
    module, _, name = kind.path.partition(":")
    tracker: Tracker = getattr(importlib.import_module(module), name)(place)
    return tracker


def check(targets: Iterable[str]) -> None:
    """ConfigError for a target that no tracker can have, or whose package is missing."""
    for target in targets:
        kind, place = split(target)
        name = target.partition(":")[0]
        if importlib.util.find_spec(kind.package) is None:
            raise ConfigError(
                f"--track {name} needs the package {kind.package}, which is not installed here; "
                f"pip install -e '.[{name}]' in froude's checkout"
            )
        kind.check(place)
