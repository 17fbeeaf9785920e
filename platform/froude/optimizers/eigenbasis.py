"""Optimizers that work on the eigenvectors of averages of g g' and g' g (g' is g transposed): SOAP and Shampoo.

Both keep L <- lerp(L, g g', 1 - beta) and R <- lerp(R, g' g, 1 - beta). Decay is decoupled, w <- w (1 - lr *
weight_decay). Hidden matrices only: AdamW takes the rest at the settings of `optimizer.rest`. A matrix starts when its
gradient is first other than zero; until then it only decays, and its step stays 0. Behind a readout that starts at zero
the first gradient is zero, and nothing has eigenvectors yet.

SOAP (Vyas et al. 2409.11321) is Adam on g seen in the eigenvectors of L and R, A and B: v <- lerp(v, (A' g B)^2, 1 -
beta2), u = A (A' m B / (sqrt(v) + eps)) B', w <- w - lr * u, with Adam's corrections of m and v. After that come L and
R (of `shampoo_beta`) and, in every `every`-th step, A and B: one product with L or R and its QR. They are whole
eigenvectors once, after the first step. Before it A and B are the axes, so that the first step is Adam's. Libraries
skip that step's update, decay included; with an update, g would be seen in its own vectors, where all but the diagonal
is rounding, and Adam makes large what is small. A side of more than `max_side` rows or columns stays on its axes.
State: step, the averages m (`exp_avg`, on the axes of the weight, so that signs of eigenvectors do not matter) and v
(`exp_avg_sq`, in A and B; when they are made anew it is not turned with them, but put in the order of their
eigenvalues, as they are), L, R, A and B.

Shampoo (Gupta et al. 1802.09018): w <- w - lr * L^(-1/4) m R^(-1/4). As it works today (Shi et al. 2309.06497), L and R
are averages (beta2) and not sums, they and the momentum m of the gradient (beta1) are corrected as Adam's, and the
update is `graft`ed: "adam" gives it the norm of Adam's update of the same m, "none" leaves it. The roots are taken of
L + `ridge` * (mean eigenvalue of L), in fp64, in every `every`-th step and the first `every`, in which L is made of few
gradients: what it has not seen yet would be multiplied by `ridge`^(-1/4) on each side. eps is Adam's, for the graft
alone. State: step, m, L, R and the two roots; with a graft also the average of g^2.
"""

from __future__ import annotations

from froude.optimizers.spec import ALMOST, Held, Shape, Spec


def soap_state(shape: Shape, max_side: int) -> dict[str, Held]:
    """Two moments and, for each side that is not too long, the average and its vectors."""
    found = {"step": Held(()), "exp_avg": Held(shape), "exp_avg_sq": Held(shape)}
    for side, length in zip(("left", "right"), shape, strict=True):
        if length <= max_side:
            found |= {side: Held((length, length)), f"{side}_basis": Held((length, length))}
    return found


def shampoo_state(shape: Shape, graft: str) -> dict[str, Held]:
    """Momentum and, for each side, the average and its root; the second moment where a graft needs it."""
    found = {"step": Held(()), "exp_avg": Held(shape)}
    if graft == "adam":
        found["exp_avg_sq"] = Held(shape)
    for side, length in zip(("left", "right"), shape, strict=True):
        found |= {side: Held((length, length)), f"{side}_root": Held((length, length))}
    return found


SOAP = Spec(
    name="soap",
    factory="froude.train.optimizers.own.soap:SOAP",
    arguments=lambda settings: {
        "betas": (settings.beta1, settings.beta2),
        "shampoo_beta": settings.option("shampoo_beta"),
        "every": settings.option("every"),
        "max_side": settings.option("max_side"),
    },
    family="Adam",
    state=lambda settings, shape: soap_state(shape, settings.option("max_side")),
    corrected={"exp_avg_sq": "step"},
    options={"shampoo_beta": 0.95, "every": 10, "max_side": 10_000},
    least={"shampoo_beta": 0, "every": 1, "max_side": 0},
    most={"shampoo_beta": ALMOST},
    defaults={"lr": 3e-3, "beta1": 0.95},
    unit="matrix",
)

SHAMPOO = Spec(
    name="shampoo",
    factory="froude.train.optimizers.own.shampoo:Shampoo",
    arguments=lambda settings: {
        "betas": (settings.beta1, settings.beta2),
        "graft": settings.option("graft"),
        "ridge": settings.option("ridge"),
        "every": settings.option("every"),
    },
    family=lambda settings: "Adam" if settings.option("graft") == "adam" else "spectral",
    state=lambda settings, shape: shampoo_state(shape, settings.option("graft")),
    corrected={"exp_avg_sq": "step", "left": "step", "right": "step"},
    options={"graft": "adam", "ridge": 1e-6, "every": 10},
    choices={"graft": ("adam", "none")},
    least={"ridge": 1e-12, "every": 1},
    unit="matrix",
)
