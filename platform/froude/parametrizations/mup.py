"""The maximal update parametrization, muP: Tensor Programs V (Yang et al. 2203.03466), table 8, for Adam.

An update of signs is as large as Adam's first, whatever the gradient, so its rate moves in the same way. One whose
spectral norm is that of sqrt(fan_out / fan_in) moves what a matrix puts out equally far at every width (Yang et al.
2310.17813); one whose singular values are alike and whose RMS is fixed has a spectral norm sqrt(width) larger.
"""

from __future__ import annotations

from froude.parametrizations.parametrization import Parametrization, Powers

#: Torch's decay is lr * weight_decay, which is not to move with width, so the one rises as the other falls. Hidden
#: matrices start with variance 1/fan_in, as they do under SP.
MUP = Parametrization(
    name="mup",
    label="μP",
    transfers=True,
    table={
        "Adam": {"hidden": Powers(lr=-1.0, weight_decay=1.0, eps=-1.0)},
        "sign": {"hidden": Powers(lr=-1.0, weight_decay=1.0)},
        "spectral": {},
        "spectral of one RMS": {"hidden": Powers(lr=-0.5, weight_decay=0.5)},
        "spectral on a sphere": {},
        "elementwise on a sphere": {"hidden": Powers(lr=-0.5)},
    },
    logits=-1.0,
    attention=-1.0,
)
