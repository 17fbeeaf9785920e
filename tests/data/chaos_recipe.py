"""A small recipe whose run lasts long enough to be disturbed, sealed without a sweep behind it."""

from __future__ import annotations

from froude.config import Run
from froude.promote.forecast import Forecast
from froude.promote.recipe import FILE, Recipe, seal
from froude.store import Location


def write_recipe(study: Location, *, steps: int, every: int, workers: int = 3) -> Recipe:
    """A recipe in `study` for so many steps of some 30 ms, with a checkpoint every so many."""
    run = Run(
        name="large",
        model={"width": 32},
        slots=6,
        reduction="exact",
        tokens=768 * steps,
        checkpoint_every=every,
        workers=(1, workers),
        schedule={"warmup_tokens": 7680},
        eval_windows=64,
        device="cpu",
    )
    nothing = Forecast(1.3, 1.2, 1.4, 0.9, False, "prior_driven", ("nothing was fitted",), 1.5)
    made = seal(
        run=run,
        profile="none",
        fits={},
        fingerprints={},
        extrapolation={},
        checks=(),
        forecast=nothing,
    )
    made.write(study / FILE)
    return made
