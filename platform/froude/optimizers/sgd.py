"""SGD with momentum `beta1`; weight_decay * w is added to the gradient, so decay has momentum, too."""

from __future__ import annotations

from froude.optimizers.spec import Spec

SGD = Spec(
    name="sgd",
    factory="torch.optim:SGD",
    arguments=lambda settings: {"momentum": settings.beta1},
    family="SGD",
    moments=("momentum_buffer",),
    implementations=("foreach",),
    proportional=True,
)
