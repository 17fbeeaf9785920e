"""Hyperball: the matrix stays on the sphere on which it starts; Wen et al. 2606.16899.

w <- N(w - lr * R * N(u)) * R, where N(x) = x / ||x||_F and R is the norm that w has before its first step. So lr is the
length of an update over that of the weight, and the two are all that is left of a size. u is a usual update: that of
Adam for `adamh`, with its corrections; that of Muon for `muonh`, o of `froude.optimizers.spectral`, with the same
options. There is no decay of these matrices, and an `optimizer.weight_decay` is refused. Hidden matrices only: AdamW
takes the rest at the settings of `optimizer.rest`.

State: Adam's or Muon's, and R (`radius`), which is 0 until the first step. A matrix that starts at zero has no sphere,
and a run of it ends with a ConfigError at that step.
"""

from __future__ import annotations

from froude.optimizers.spec import Held, Shape, Spec


def adamh_state(shape: Shape) -> dict[str, Held]:
    """Adam's, and the norm."""
    return {"step": Held(()), "radius": Held(()), "exp_avg": Held(shape), "exp_avg_sq": Held(shape)}


def muonh_state(shape: Shape) -> dict[str, Held]:
    """Muon's, and the norm."""
    return {"radius": Held(()), "momentum_buffer": Held(shape)}


ADAMH = Spec(
    name="adamh",
    factory="froude.train.optimizers.own.hyperball:AdamH",
    arguments=lambda settings: {"betas": (settings.beta1, settings.beta2)},
    family="elementwise on a sphere",
    state=lambda settings, shape: adamh_state(shape),
    corrected={"exp_avg_sq": "step"},
    defaults={"lr": 0.01},
    unit="matrix",
    decays=False,
)

MUONH = Spec(
    name="muonh",
    factory="froude.train.optimizers.own.hyperball:MuonH",
    arguments=lambda settings: {"momentum": settings.beta1, "nesterov": settings.option("nesterov")},
    family="spectral on a sphere",
    state=lambda settings, shape: muonh_state(shape),
    options={"nesterov": True, "heads": False},
    defaults={"lr": 0.02, "beta1": 0.95},
    unit="matrix",
    epsilon=False,
    beta2=False,
    decays=False,
)
