"""Adam and its kin: each element's step is a mean of its gradients over the root of a mean of their squares.

m <- beta1 m + (1 - beta1) g and v <- beta2 v + (1 - beta2) g^2; a hat is the correction of a mean that started at zero,
m / (1 - beta1^t) and v / (1 - beta2^t).

- `adamw`: w <- w (1 - lr * weight_decay) - lr m^ / (sqrt(v^) + eps); decoupled decay, Loshchilov & Hutter 1711.05101.
- `adam`: the same, but weight_decay * w is added to the gradient, so decay is divided as a gradient is; Kingma & Ba
  1412.6980, who have none, so it is off unless it is set.
- `rmsprop`: w <- w - lr g / (sqrt(v) + eps), without the first mean and without corrections; Tieleman & Hinton 2012
  (Coursera, lecture 6.5). Decay as in Adam.
- `ademamix`: w <- w (1 - lr * weight_decay) - lr (m^ + alpha s) / (sqrt(v^) + eps), where s <- beta3 s + (1 - beta3) g
  remembers thousands of steps and is not corrected; Pagliardini, Ablin & Grangier 2409.03137. Over the first `warmup`
  steps alpha grows linearly from 0, and beta3 from beta1 so that its half-life does, as they have it over all of a run;
  0: both are whole from the first step.
"""

from __future__ import annotations

from froude.optimizers.spec import ALMOST, Spec, moments

ADAMW = Spec(
    name="adamw",
    factory="torch.optim:AdamW",
    arguments=lambda settings: {"betas": (settings.beta1, settings.beta2)},
    family="Adam",
    state=moments("exp_avg", "exp_avg_sq", step=0.0),
    corrected={"exp_avg_sq": "step"},
    implementations=("foreach", "fused"),
)

ADAM = Spec(
    name="adam",
    factory="torch.optim:Adam",
    arguments=lambda settings: {"betas": (settings.beta1, settings.beta2)},
    family="Adam",
    state=moments("exp_avg", "exp_avg_sq", step=0.0),
    corrected={"exp_avg_sq": "step"},
    defaults={"weight_decay": 0.0},
    implementations=("foreach", "fused"),
    coupled=True,
)

RMSPROP = Spec(
    name="rmsprop",
    factory="torch.optim:RMSprop",
    arguments=lambda settings: {"alpha": settings.beta2},
    family="Adam",
    state=moments("square_avg", step=0.0),
    defaults={"beta2": 0.99, "weight_decay": 0.0},
    implementations=("foreach",),
    coupled=True,
)

ADEMAMIX = Spec(
    name="ademamix",
    factory="froude.train.optimizers.own.ademamix:AdEMAMix",
    arguments=lambda settings: {
        "betas": (settings.beta1, settings.beta2, settings.option("beta3")),
        "alpha": settings.option("alpha"),
        "warmup": settings.option("warmup"),
    },
    family="Adam",
    state=moments("exp_avg", "exp_avg_slow", "exp_avg_sq", step=0.0),
    corrected={"exp_avg_sq": "step"},
    options={"alpha": 5.0, "beta3": 0.9999, "warmup": 0},
    least={"alpha": 0, "beta3": 0.5, "warmup": 0},
    most={"beta3": ALMOST},
)
