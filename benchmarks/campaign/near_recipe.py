"""Is the recipe the best at the target's size when rates were looked for at its batch, and over horizons?

The campaign whole_recipe again, on fresh seeds and with other proxies. There the rate was carried over a factor of 12
in batch and 6 in tokens by two priors, which cost most in its worst study. Here stage lr_transfer has the batch of 64
tokens that such a study promotes, with the same tokens, half-life and decay of a token, and a stage Exponents measures
at that batch how the best rate goes with the tokens: five rates at 65k, 197k and 590k tokens on two seeds, of the
target's 768k. The proxies cost more for it, so that the search to beat is that of 16 targets. All else is the same:
stage critical_batch from a batch of 64 on, a ladder of 256, one slot, `froude promote --prefer loss`, neighbours in one
setting at a time, a random search at the target's size, seeds that choose and seeds that score. Seen while this was
designed: whole_recipe and all that its page says.

    python benchmarks/campaign/near_recipe.py sweep       # studies and recipes that are not kept: an hour of two cores
    python benchmarks/campaign/near_recipe.py train [--processes 2] [--device cpu] [--minutes 60]
    python benchmarks/campaign/near_recipe.py page        # writes benchmarks/near_recipe.md
    python benchmarks/campaign/near_recipe.py             # all three: twelve hours of a core

On a machine with a GPU start MPS (nvidia-cuda-mps-control -d), then `train --device cuda --processes 16`, and bring
benchmarks/near_recipe/results.jsonl back.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE / "campaign")]
import whole_recipe as campaign  # noqa: E402

#: What comes after whole_recipe's changes to the quickstart's space.
NEARER = '''
from dataclasses import replace

from froude.space import Exponents

NEAR = 64 / quickstart.BATCH
centre, pooled = quickstart.searched_centre, quickstart.pooled_rate


def rate_trial(seed, parametrization, width, log2_lr, beta2):
    """A rate at a batch of 64: the same tokens and warmup, the same half-life of beta2, the same decay of a token."""
    name = f"{{parametrization}}-w{{width}}-lr{{2.0**log2_lr:.2e}}"
    changes = {{"optimizer.lr": 2.0**log2_lr, "optimizer.beta2": beta2**NEAR, "parametrization": parametrization}}
    changes["optimizer.weight_decay"] = 0.1 * NEAR**0.5
    steps = round(quickstart.SHORT / NEAR)
    return Trial(name, (proxy(seed, width, name=name, steps=steps, batch=round(quickstart.BATCH * NEAR), **changes),))


def pooled_rate(rows):
    """What the other stages move from the quickstart's batch to theirs."""
    found = pooled(rows)
    return found / NEAR**0.5 if rows.filter(pl.col("stage") == "lr_transfer").height else found


def space(seed=0):
    near = dict(batch=round(quickstart.BATCH * NEAR), steps=3072, name="exponents")
    near |= {{"optimizer.lr": quickstart.DEFAULT_LR * NEAR**0.5, "optimizer.beta2": quickstart.DEFAULT_BETA2**NEAR}}
    horizons = Exponents(
        "exponents",
        proxy(seed, **near),
        timescale=2.0,  # of the run: about the target's
        rates=quickstart.OFFSETS,
        horizons=(1 / 3, 1.0, 3.0),
        batches=(),
        timescales=(),
        half_lives=(),
        seeds=2,
    )
    made = quickstart.space(seed)
    return replace(made, stages=(*made.stages, horizons))


quickstart.searched_centre = lambda rows: centre(rows) + math.log2(NEAR) / 2
quickstart.rate_trial, quickstart.pooled_rate = rate_trial, pooled_rate
'''

campaign.__doc__ = __doc__
campaign.OUT = Path("runs/near_recipe")
campaign.KEPT, campaign.RESULT = HERE / "near_recipe", HERE / "near_recipe.md"
campaign.STUDIES = tuple((corpus, seed) for seed in (30, 31, 32) for corpus in ("kjv", "sympy"))
campaign.RULES = (*campaign.RULES, "campaign/near_recipe.py")
campaign.SPACE += NEARER

if __name__ == "__main__":
    sys.exit(campaign.main())
