"""Lion: w <- w (1 - lr * weight_decay) - lr * sign(beta1 m + (1 - beta1) g), then m <- beta2 m + (1 - beta2) g.

Chen et al. 2302.06675, algorithm 2, where rates are three to ten times lower than AdamW's and decay as much higher. It
has no epsilon. Rates and decay scale with the width as Adam's do.
"""

from __future__ import annotations

from froude.optimizers.spec import Spec, moments

LION = Spec(
    name="lion",
    factory="froude.train.optimizers.own.lion:Lion",
    arguments=lambda settings: {"betas": (settings.beta1, settings.beta2)},
    family="sign",
    state=moments("exp_avg"),
    defaults={"lr": 1e-3, "beta2": 0.99},
    epsilon=False,
)
