"""The runs of the campaign whole_recipe at the target's size: what is one step from a recipe, and a random search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from _recipe_noise import FACTORS, ROOT

from froude.config import Run


def neighbours(run: Run) -> dict[str, Run]:
    """The recipe and what is one step from it, by name: the setting and the factor."""
    lr = run.optimizer.lr
    found = {name: run.replace({"optimizer.lr": rounded(lr * factor)}) for name, factor in FACTORS.items()}
    window = run.slots * run.model.context
    for name, factor in (("1/2", 0.5), ("2", 2.0)):
        # At least the factor away: a smaller step would hide what this one costs. None is smaller than a window.
        batch = math.floor(run.batch * factor / window) * window
        found |= _at_batch(run, batch) if batch else {}
        beta2 = rounded(run.optimizer.beta2 ** (1 / factor))
        found[f"half-life {name}"] = run.replace({"optimizer.beta2": beta2})
        warmup = max(round(run.schedule.warmup_tokens * factor / run.batch), 1) * run.batch
        found[f"warmup {name}"] = run.replace({"schedule.warmup_tokens": warmup})
        found[f"tail {name}"] = run.replace({"schedule.decay_fraction": run.schedule.decay_fraction * factor})
        found[f"decay {name}"] = run.replace({"optimizer.weight_decay": run.optimizer.weight_decay * factor})
    return found


def rounded(value: float) -> float:
    """To six digits: the last bits of powers differ between machines, and a run's fingerprint with them."""
    return float(f"{value:.6g}")


def _at_batch(run: Run, batch: int) -> dict[str, Run]:
    """The run at another batch, with three rates, the same half-life and timescale."""
    ratio, found = batch / run.batch, {}
    for rate, by in (("1/√2", 1 / ROOT), ("1", 1.0), ("√2", ROOT)):
        faster = math.sqrt(ratio) * by
        found[f"batch {Fraction(batch, run.batch)}, rate {rate}"] = run.replace(
            {
                "batch": batch,
                "tokens": round(run.tokens / batch) * batch,
                "optimizer.lr": rounded(run.optimizer.lr * faster),
                "optimizer.beta2": rounded(min(max(run.optimizer.beta2**ratio, 0.9), 0.9999)),
                "optimizer.weight_decay": rounded(run.optimizer.weight_decay * ratio / faster),
                "schedule.warmup_tokens": round(run.schedule.warmup_tokens / batch) * batch,
            }
        )
    return found


def drawn(target: Run, batches: list[int], seed: Sequence[int], trials: int = 16) -> dict[str, Run]:
    """Settings drawn as stage search's axes have them, but for these batches, at the target's size and tokens.

    The axes are of the target's batch; to another one the rate goes by its root, beta2 by its half-life.
    """
    rng, found = np.random.default_rng(seed), {}
    for number in range(trials):
        batch = int(rng.choice(batches))
        tokens, ratio = round(target.tokens / batch) * batch, batch / target.batch
        found[f"search {number}"] = target.replace(
            {
                "batch": batch,
                "tokens": tokens,
                "optimizer.lr": rounded(float(2 ** rng.uniform(-10, -5)) * math.sqrt(ratio)),
                "optimizer.beta2": rounded(min(max(float(rng.uniform(0.9, 0.99)) ** ratio, 0.9), 0.9999)),
                "schedule.warmup_tokens": round(rng.uniform(0.02, 0.25) * tokens / batch) * batch,
                "schedule.name": str(rng.choice(["cosine", "wsd"])),
            }
        )
    return found
