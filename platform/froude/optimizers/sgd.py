"""SGD with momentum `beta1`; weight_decay * w is added to the gradient, so decay has momentum, too.

`nesterov`: the step looks ahead by the momentum, g + beta1 m (Sutskever et al., ICML 2013).
"""

from __future__ import annotations

from froude.optimizers.spec import Spec, moments

SGD = Spec(
    name="sgd",
    factory="torch.optim:SGD",
    arguments=lambda settings: {"momentum": settings.beta1, "nesterov": settings.option("nesterov")},
    family="SGD",
    state=moments("momentum_buffer"),
    options={"nesterov": False},
    implementations=("foreach",),
    proportional=True,
    epsilon=False,
    beta2=False,
    coupled=True,
)
