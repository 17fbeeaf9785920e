"""Optimizers that make the singular values of the momentum alike: Muon, and NorMuon, which evens its rows out, too.

For both: m <- lerp(m, g, 1 - beta1), o = NS5(lerp(g, m, beta1)), or of m itself without `nesterov`. NS5 are five steps
of Newton and Schulz in bf16, which bring the singular values to about 1. Decay is decoupled, w <- w (1 - lr *
weight_decay). With `heads` the heads of queries, keys and values are matrices of their own. Hidden matrices only: AdamW
takes the rest at the settings of `optimizer.rest`.

Muon: w <- w - lr * s * o; Jordan et al. 2024 (kellerjordan.github.io/posts/muon). State: m. `scale` says what s is for
a matrix [rows, columns]:

- "spectral": sqrt(rows / columns), under which a rate holds at every width (Bernstein & Newhouse 2409.20325);
- "original": sqrt(max(1, rows / columns));
- "match_rms": 0.2 sqrt(max(rows, columns)), whose update has AdamW's RMS, so that its rate and decay can be used again
  (Liu et al. 2502.16982); under muP it is multiplied by m^(-1/2).

NorMuon: w <- w - lr * 0.2 sqrt(rows * columns) * n / ||n||_F, where n = o / (sqrt(v) + eps) and v of a row is the
average (beta2) of the mean square of that row of o; Li et al. 2510.05491. State: m, and v [rows, 1]. An
update has an RMS of 0.2, as with "match_rms", and AdamW's rate. The published rule has no look-ahead, for which
`nesterov` is to be false. v needs no correction at the start: n is as long at any scale of v.
"""

from __future__ import annotations

import math

from froude.optimizers.spec import Held, Settings, Shape, Spec, moments

#: torch's own name of each scale; it has none for the first, which is made of its "original".
SCALES = {"spectral": "original", "original": "original", "match_rms": "match_rms_adamw"}


def family(settings: Settings) -> str:
    """A row of updates of one RMS has a spectral norm that grows as the root of the width."""
    return "spectral of one RMS" if settings.option("scale") == "match_rms" else "spectral"


def factor(settings: Settings, rows: int, columns: int) -> float:
    """sqrt(rows / columns) over torch's sqrt(max(1, rows / columns))."""
    return math.sqrt(min(1.0, rows / columns)) if settings.option("scale") == "spectral" else 1.0


MUON = Spec(
    name="muon",
    factory="torch.optim:Muon",
    arguments=lambda settings: {
        "momentum": settings.beta1,
        "nesterov": settings.option("nesterov"),
        "adjust_lr_fn": SCALES[settings.option("scale")],
    },
    family=family,
    state=moments("momentum_buffer"),
    options={"scale": "spectral", "nesterov": True, "heads": False},
    choices={"scale": tuple(SCALES)},
    defaults={"lr": 0.02, "beta1": 0.95},
    unit="matrix",
    epsilon=False,
    beta2=False,
    factor=factor,
)


def normuon_state(shape: Shape) -> dict[str, Held]:
    """Momentum, and the second moment of each row."""
    return {"momentum_buffer": Held(shape), "second_moment": Held((shape[0], 1))}


NORMUON = Spec(
    name="normuon",
    factory="froude.train.optimizers.own.normuon:NorMuon",
    arguments=lambda settings: {
        "betas": (settings.beta1, settings.beta2),
        "nesterov": settings.option("nesterov"),
    },
    family="spectral of one RMS",
    state=lambda settings, shape: normuon_state(shape),
    options={"nesterov": True, "heads": False},
    defaults={"beta1": 0.95},
    unit="matrix",
)
