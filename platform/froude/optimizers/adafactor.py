"""Adafactor: Adam without a first moment, whose second is a column times a row (Shazeer & Stern 1804.04235).

r and c are means of g^2 over the columns and over the rows, averaged over steps with beta_t = 1 - t^beta2_decay;
v = r c / mean(r), u = g / sqrt(v), and

    w <- w (1 - lr * weight_decay) - rho max(eps2, rms(w)) u / max(1, rms(u) / d),    rho = min(lr, 1 / sqrt(t)),

with rms(w) as before the decay. A step is thus a share of the weights' own size, and lr the largest share: the paper's
0.01. What starts at zero, as the readout does if `model.readout_sd` is not set, starts with steps of lr * eps2, a
thousandth of that: give it another start or a larger eps2. Decay is by lr, as torch has it; the paper has none.

Of a vector v is the mean of its own g^2, which is what the rule for a matrix makes of a column. Where v would vanish it
is 1e-30, the paper's number. (torch's own choice, the dtype's epsilon, would bound mean(r) at 1e-7 in fp32; gradients
are clipped to a norm of one, so those of a large model are smaller.)
"""

from __future__ import annotations

import math

from froude.optimizers.spec import Held, Settings, Shape, Spec

#: torch squares it where it bounds v.
EPS1 = 1e-15


def state(settings: Settings, shape: Shape) -> dict[str, Held]:
    """A row and a column; a vector is a matrix of one column."""
    return {"step": Held(()), "row_var": Held((shape[0], 1)), "col_var": Held((1, math.prod(shape[1:])))}


ADAFACTOR = Spec(
    name="adafactor",
    factory="torch.optim:Adafactor",
    arguments=lambda settings: {
        "beta2_decay": settings.option("beta2_decay"),
        "eps": (EPS1, settings.option("eps2")),
        "d": settings.option("d"),
    },
    family="Adafactor",
    state=state,
    options={"beta2_decay": -0.8, "eps2": 1e-3, "d": 1.0},
    least={"eps2": 0, "d": 1},
    most={"beta2_decay": 0},
    defaults={"lr": 1e-2},
    unit="tensor",
    epsilon=False,
    beta2=False,
)
