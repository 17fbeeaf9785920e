"""Schedule-Free AdamW: gradients at one point, evaluations at an average, and no decay of the rate.

Defazio et al. 2405.15682, algorithm 1, as the package schedulefree 1.4.1 has it; v^ as in `froude.optimizers.adam`:

    g = gradient at y
    z <- z - lr (g / (sqrt(v^) + eps) + weight_decay * y)
    x <- (1 - c) x + c z,        c = lr_max^2 / (sum of lr_max^2 so far)
    y <- (1 - beta1) z + beta1 x

The model trains with y; evaluations, exports and a trial's final loss are of x, which is y + (1 - 1 / beta1)(z - y).
Decay is decoupled and goes with the rate, as AdamW's does, but by y. lr_max is the largest rate so far: in the paper it
is the rate, which is the same unless the spike policy lowers it. The paper puts the correction of v into the rate, and
so into decay and c, too; the package did until 1.3.

The average does what a falling rate would, so `schedule.name` must be "constant"; a warmup is recommended. The warmup
is the run's, not the package's: each step has its own lr, and c weighs it by its square. The package recommends 1 to 10
times AdamW's rates (the default is about 4 times), and a beta1 of 0.95 or 0.98 for long runs. A step moves the weights
also at a rate of 0 (y and z come closer); one that is skipped does not.

State: z, v, and numbers of which the package keeps one for each group, here with each parameter: k, the steps;
weight_sum, the sum in c, in fp64 as the package has it; lr_max.
"""

from __future__ import annotations

from froude.optimizers.spec import Average, Held, Shape, Spec


def state(shape: Shape) -> dict[str, Held]:
    """z, the second moment and the counters."""
    numbers = {"k": 0.0, "weight_sum": 0.0, "lr_max": -1.0}
    return {
        "z": Held(shape, "weight"),
        "exp_avg_sq": Held(shape),
        **{name: Held((), start, "double") for name, start in numbers.items()},
    }


SCHEDULE_FREE_ADAMW = Spec(
    name="schedule_free_adamw",
    factory="schedulefree:AdamWScheduleFree",
    arguments=lambda settings: {"betas": (settings.beta1, settings.beta2)},
    family="Adam",
    state=lambda settings, shape: state(shape),
    corrected={"exp_avg_sq": "k"},
    counters=("k", "weight_sum", "lr_max"),
    defaults={"lr": 2e-2},
    average=lambda settings: Average("z", 1 - 1 / settings.beta1),
    schedules=("constant",),
    extra="optimizers",
)
