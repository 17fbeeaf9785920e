"""Adam's moments in few dimensions: of a matrix with sides s <= l, `rank` rows of l numbers stand for the gradient's s.

Below, matrices are as wide as they are high or wider; others are treated as their transposes. `rank` 0 is a quarter of
the shorter side, and `every` is after how many steps the projection is another one. Hidden matrices only: AdamW takes
the rest. Decay is decoupled, w <- w (1 - lr * weight_decay), and moves all of a matrix.

- `galore_adamw` (Zhao et al. 2403.03507): P has the first `rank` left singular vectors of the gradient g, AdamW's
  moments are those of P' g, and w <- w (1 - lr * weight_decay) - lr * scale * P m^ / (sqrt(v^) + eps). The paper leaves
  moments as they are when P changes, though their rows then mean other directions. Here they are carried over: with
  C = P_new' P, m becomes C m and v becomes (C * C) v, squared by element, which is what v is if the rows of P' g are
  uncorrelated. So the sign of a singular vector has no effect; all the same, the largest entry of each is made
  positive, and directions that the gradient does not have are left out of P rather than to LAPACK's choice. A gradient
  of zeros gives no P: the last one stays; if there is none yet, the matrix decays only, and the first step is to come.
- `apollo` (Zhu et al. 2412.05270): R = P g, where P is a matrix [rank, s] of normal numbers of variance 1 / rank, and
  u = m^ / (sqrt(v^) + eps) with the moments of R. Column j of g is multiplied by scale |u_j| / |R_j|; then all of it is
  made smaller so that its norm is at most 1.01 times the last step's, and w <- w (1 - lr * weight_decay) - lr * it.
  Moments stay as they are when P changes, as in the paper. P is not kept: it is drawn in the weight's dtype by a
  generator of its own, whose seed is the first four bytes, big-endian, of SHA-256("apollo {rank} {s} {n}"), with n the
  number of changes so far; so matrices of one shape have one P. A step of zeros bounds no norm.
"""

from __future__ import annotations

from froude.optimizers.spec import Held, Settings, Shape, Spec


def rank_of(rank: int, shape: Shape) -> int:
    """Rows that stand for a matrix."""
    short = min(shape)
    return min(rank or max(1, short // 4), short)


def galore_state(rank: int, shape: Shape) -> dict[str, Held]:
    """The basis P and the moments in it."""
    rows = rank_of(rank, shape)
    moment = Held((rows, max(shape)))
    return {"step": Held(()), "basis": Held((min(shape), rows)), "exp_avg": moment, "exp_avg_sq": moment}


def apollo_state(rank: int, shape: Shape) -> dict[str, Held]:
    """The moments, and the last step's norm, a vector of one so that it is in the weight's dtype and where that is."""
    moment = Held((rank_of(rank, shape), max(shape)))
    return {"step": Held(()), "exp_avg": moment, "exp_avg_sq": moment, "norm": Held((1,))}


def arguments(settings: Settings) -> dict[str, object]:
    """What both classes are made with."""
    options = {name: settings.option(name) for name in ("rank", "every", "scale")}
    return {"betas": (settings.beta1, settings.beta2), **options}


GALORE_ADAMW = Spec(
    name="galore_adamw",
    factory="froude.train.optimizers.own.galore:GaLoreAdamW",
    arguments=arguments,
    family="low rank",
    state=lambda settings, shape: galore_state(settings.option("rank"), shape),
    corrected={"exp_avg_sq": "step"},
    options={"rank": 0, "every": 200, "scale": 0.25},
    least={"rank": 0, "every": 1, "scale": 1e-9},
    defaults={"lr": 1e-2},
    unit="matrix",
)

APOLLO = Spec(
    name="apollo",
    factory="froude.train.optimizers.own.apollo:Apollo",
    arguments=arguments,
    family="low rank",
    state=lambda settings, shape: apollo_state(settings.option("rank"), shape),
    corrected={"exp_avg_sq": "step"},
    options={"rank": 0, "every": 200, "scale": 1.0},
    least={"rank": 0, "every": 1, "scale": 1e-9},
    defaults={"lr": 1e-2},
    unit="matrix",
)
