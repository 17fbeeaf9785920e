"""An optimizer as a user would bring one: what the package must know of a class of torch."""

from __future__ import annotations

from froude.optimizers import Spec, moments

NADAM = Spec(
    name="nadam",
    factory="torch.optim:NAdam",
    arguments=lambda settings: {"betas": (settings.beta1, settings.beta2), "decoupled_weight_decay": True},
    family="Adam",
    state=moments("exp_avg", "exp_avg_sq", step=0.0, mu_product=1.0),
    implementations=("foreach",),
)
