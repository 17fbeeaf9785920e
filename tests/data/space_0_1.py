"""The search space of `study_0_1`, a study that version 0.1 (commit c6d1cf0) swept: one model is ours, one foreign."""

from froude.config import Run
from froude.space import Grid, Space, Trial

FOREIGN = {
    "model": {"factory": "foreign_model:factory", "width": 16, "context": 16},
    "data": {"source": "foreign_model:Counting"},
    "parametrization": "sp",
}


def space(seed: int = 0) -> Space:
    common = {
        "schedule": {"name": "constant"},
        "batch": 192,
        "slots": 12,
        "tokens": 192 * 6,
        "eval_windows": 16,
    }
    ours = Run(name="ours", model={"width": 16, "depth": 1, "context": 16}, seed=seed, **common)
    theirs = Run(name="theirs", seed=seed, **FOREIGN, **common)
    trials = [Trial(run.name, (run,)) for run in (ours, theirs)]
    target = ours.replace(tokens=192 * 20, workers=(1, 2), name="large")
    return Space("old", seed, (Grid("proxies", lambda rows: trials, role="loss_law"),), target)
