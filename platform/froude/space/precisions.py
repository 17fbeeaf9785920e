"""A stage that measures what a precision costs: pairs of runs that differ in nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from froude.config import ConfigError, Run
from froude.space.stages import Grid
from froude.space.trial import Trial

LEAST_SEEDS, LEAST_SIZES = 3, 2


def precision_pairs(
    name: str, sizes: Sequence[Run], precision: str, seeds: Sequence[int] = (0, 1, 2)
) -> Grid:
    """Each run of `sizes` in its own precision and in `precision`, with each seed; no law is fitted to them.

    What it finds widens the forecast of a target of that precision, and shifts it (docs/guide/precision.md).
    """
    shapes = {(run.model.width, run.model.depth) for run in sizes}
    if len(set(seeds)) < LEAST_SEEDS or len(shapes) < LEAST_SIZES:
        raise ConfigError(
            f"a stage of the role precision needs {LEAST_SEEDS} seeds at {LEAST_SIZES} sizes, or more, but {name!r} "
            f"has {len(set(seeds))} at {len(shapes)}; add some"
        )
    if any(run.precision == precision for run in sizes):
        raise ConfigError(
            f"a stage of the role precision compares two, but {name!r} has runs of {precision!r} already; give them "
            "the precision of the other proxies"
        )
    runs = [
        run.replace({"precision": one, "seed": seed}, name=f"{name}-{number}-{one}-s{seed}", stage=name)
        for number, run in enumerate(sizes)
        for seed in seeds
        for one in (run.precision, precision)
    ]
    trials = [Trial(run.name, (run,)) for run in runs]
    return Grid(name, lambda rows: trials, role="precision", after=())
