"""A search space of two trials of a few steps, for tests of what runs sweeps."""

from froude.config import Run
from froude.space import Grid, Space, Trial


def run(seed: int, width: int, **changes: object) -> Run:
    return Run(
        name=f"w{width}",
        model={"width": width, "depth": 1, "context": 16},
        schedule={"name": "constant"},
        batch=192,
        slots=12,
        tokens=192 * 6,
        eval_windows=16,
        seed=seed,
    ).replace(changes)


def space(seed: int = 0) -> Space:
    trials = [Trial(f"w{width}", (run(seed, width),)) for width in (16, 32)]
    target = run(seed, 32, workers=(1, 2), checkpoint_every=2).replace(name="large")
    return Space("tiny", seed, (Grid("widths", lambda rows: trials, role="loss_law"),), target)
