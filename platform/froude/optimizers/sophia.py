"""Sophia: momentum over an estimate of the Hessian's diagonal, and no element moves further than the rate.

m <- lerp(m, g, 1 - beta1), w <- w (1 - lr * weight_decay) - lr * clip(m / max(gamma h, eps), -1, 1); Liu et al.
2305.14342, algorithm 3 of the ICLR 2024 version, in which `gamma` sets how many elements are clipped (the first
version's rho was a bound on the quotient). Where h is negative, or 0 as before the first estimate, the update is the
sign of m. In the steps 0, `every`, 2 `every`, ... of the run, before the update, h <- lerp(h, estimate, 1 - beta2).
Neither mean is corrected. Decay is by lr, as torch's AdamW has it. State: m (`exp_avg`) and h (`hessian`).

The estimate is made on the windows of the step's own batch, at the weights before the update:

- `sophia_g`: B * g'^2, where g' is the gradient of the mean loss over the batch's B tokens, with labels drawn from the
  model's own logits in the place of the next tokens (Gauss-Newton-Bartlett, algorithm 2). It has the mean of the
  diagonal of the Gauss-Newton matrix, is never negative, and costs one more forward and backward pass. The draws
  depend on seed, step and place in the batch alone, and the gradient is summed as any other, so an exact run has the
  same bits at any number of workers. The paper estimates on half of a batch.
- `sophia_h`: u * (H u) with u ~ N(0, 1) for each element (Hutchinson, algorithm 1), by a second backward pass. FSDP has
  none, so a run has one worker; nor has fused attention, so torch's plain one takes its place in this pass, and
  a model with another function that can't be differentiated twice is refused at its first step. It has the mean of the
  diagonal of H.

`gamma`, betas, eps and `every` are the paper's; the rate is the best of Sophia-G's on a model of width 64, of six.

There are no rules for muP. The update is one of signs only where it is clipped: with those of the family "sign" the
coordinate check passed over widths 64 to 256 at the default gamma, under which nearly all of its ten steps are clipped
(at steps of 1e-3), and failed at a gamma of 2, under which few are: blocks moved as width^.35 to ^.53. Gradients
shrink as 1 / width and h as its square, so the quotient grows with the width. With gamma made to grow as the width as
well it passed (blocks -.11 to -.06), but a parametrization has no power for that yet.
"""

from __future__ import annotations

from froude.optimizers.spec import Spec, moments

DEFAULTS = {"lr": 1e-3, "beta1": 0.96, "beta2": 0.99, "eps": 1e-12}
LEAST = {"gamma": 0, "every": 1}

SOPHIA_G = Spec(
    name="sophia_g",
    factory="froude.train.optimizers.own.sophia:Sophia",
    arguments=lambda settings: {"beta1": settings.beta1, "gamma": settings.option("gamma")},
    family="Sophia",
    state=moments("exp_avg", "hessian"),
    options={"gamma": 0.05, "every": 10},
    least=LEAST,
    defaults=DEFAULTS,
    curvature="gauss_newton",
)

SOPHIA_H = Spec(
    name="sophia_h",
    factory="froude.train.optimizers.own.sophia:Sophia",
    arguments=lambda settings: {"beta1": settings.beta1, "gamma": settings.option("gamma")},
    family="Sophia",
    state=moments("exp_avg", "hessian"),
    options={"gamma": 0.01, "every": 10},
    least=LEAST,
    defaults=DEFAULTS,
    unit="model",
    curvature="hutchinson",
)
