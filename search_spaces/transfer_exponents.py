"""How the best learning rate follows tokens and batch, the best decay tokens, and the best beta2 the batch: 324 runs.

The model is the quickstart's smallest, so a run takes a second or two on a quiet core. The decay timescale is the same
at every horizon unless it is what is tried, and so is the half-life of beta2 at every batch: `froude.space.Exponents`
says how. `froude fit` prints the exponents with
their intervals, and analysis/transfer_exponents.ipynb shows the curves beside published exponents.
"""

from froude.config import Model, Optimizer, Run, Schedule
from froude.space import Exponents, Space

BATCH, STEPS = 384, 192  # tokens; of the middle horizon


def space(seed: int = 0) -> Space:
    """The stage, and its base as the target: this study promotes nothing."""
    base = Run(
        name="base",
        model=Model(width=32, base_width=64),
        optimizer=Optimizer(lr=2**-7, beta2=0.95),
        schedule=Schedule(name="wsd", warmup_tokens=BATCH * STEPS // 10),
        parametrization="mup",
        batch=BATCH,
        tokens=BATCH * STEPS,
        eval_windows=256,
        norms_every=0,
        seed=seed,
    )
    # At 1 to 8 tokens per parameter the best timescale should be longer than at 20 (Bergsma et al. 2505.13738).
    # Four seeds, since runs so small scatter much.
    stage = Exponents(
        "exponents", base, timescale=0.4, horizons=(1 / 3, 1.0, 3.0), batches=(0.5, 1.0, 2.0), seeds=4
    )
    return Space("transfer_exponents", seed, (stage,), base)
