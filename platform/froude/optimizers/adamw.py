"""AdamW: Adam with decoupled decay, w <- w (1 - lr * weight_decay); Loshchilov & Hutter 1711.05101."""

from __future__ import annotations

from froude.optimizers.spec import Spec, moments

ADAMW = Spec(
    name="adamw",
    factory="torch.optim:AdamW",
    arguments=lambda settings: {"betas": (settings.beta1, settings.beta2)},
    family="Adam",
    state=moments("exp_avg", "exp_avg_sq", step=0.0),
    implementations=("foreach", "fused"),
)
