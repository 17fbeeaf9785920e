"""Published rules for the learning rate, the batch and Adam's beta2: starting points, to be checked by a sweep.

They contradict one another where they overlap, in sign even: fit your own with `optimum_law`. The public runs behind
the first do not give its exponents.
"""

from typing import NamedTuple

from froude.laws.stats.results import open_unit, positive


class Setting(NamedTuple):
    """A peak learning rate (AdamW, standard parametrization) and a batch in tokens."""

    lr: float
    batch: float


def step_law(*, params: float, tokens: float) -> Setting:
    """Return 1.79 · params^-0.713 · tokens^0.307 and 0.58 · tokens^0.571 (Li et al. 2503.04715).

    `params` without embeddings. That the rate rises with tokens is because the batch does.
    """
    n, d = positive("params", params), positive("tokens", tokens)
    return Setting(1.79 * n**-0.713 * d**0.307, 0.58 * d**0.571)


def deepseek(*, flops: float) -> Setting:
    """Return 0.3118 · flops^-0.125 and 0.2920 · flops^0.3271 (DeepSeek LLM, 2401.02954), for compute-optimal runs."""
    compute = positive("flops", flops)
    return Setting(0.3118 * compute**-0.125, 0.2920 * compute**0.3271)


def beta2(beta2: float, *, batch: float, new_batch: float) -> float:
    """Return the beta2 with the same half-life in tokens at another batch (Marek et al. 2507.07101)."""
    old = open_unit("beta2", beta2)
    return float(old ** (positive("new_batch", new_batch) / positive("batch", batch)))
