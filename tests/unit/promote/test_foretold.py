"""What a plan says of its promotion before any trial: the gate's own checks, with the gate's own bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from froude.config import Run
from froude.promote.checks.rates import LR_POINTS
from froude.promote.checks.rows import SEEDS
from froude.promote.gate import PRODUCTION, Profile
from froude.promote.gate_preview import Foretold, foretell
from froude.space import Exponents, Grid, Space, Trial

RUN = Run(name="x", model={"width": 32}, tokens=768 * 400, eval_windows=64)
TARGET = RUN.replace({"model.width": 96}, tokens=768 * 800, name="large")
Change = Callable[[Run], Run]


def trials(stage: str, runs: list[Run], change: Change) -> Grid:
    made = [Trial(f"{stage}-{i}", (change(run).replace(name=f"{stage}-{i}"),)) for i, run in enumerate(runs)]
    return Grid(stage, lambda rows: made, role=stage)  # type: ignore[arg-type]


def space(*, rates: int = 7, seeds: int = 2, target: Run = TARGET, change: Change = lambda run: run) -> Space:
    """A study that promotion would not refuse by its plan alone, unless told otherwise."""
    sweep = [
        RUN.replace({"model.width": width, "optimizer.lr": 0.001 * 2**i, "seed": seed, "tokens": 768 * steps})
        for width, steps in ((32, 400), (48, 400), (32, 800))
        for i in range(rates)
        for seed in range(seeds)
    ]
    law = [RUN.replace({"model.width": width, "seed": seed}) for width in (32, 48) for seed in range(seeds)]
    stages = (
        trials("search", [RUN], change),
        trials("lr_transfer", sweep, change),
        trials("loss_law", law, change),
    )
    return Space("planned", 0, stages, target)


def told(made: Space, *, proxies: float = 1.0, target: float = 2.0) -> Foretold:
    return foretell(made, PRODUCTION, proxies=proxies, target=target)


def names(found: Foretold) -> list[str]:
    return [check.name for check in found.warnings]


def test_a_plan_that_nothing_speaks_against_has_no_warning() -> None:
    found = told(space())
    assert names(found) == []
    assert found.reach["tokens"] == 2.0
    assert found.reach["params"] > 2
    assert found.reach["compute"] == pytest.approx(2 * found.reach["params"])


def test_what_passes_by_little_is_said_and_what_only_running_tells_is_named() -> None:
    found = told(space())
    assert [check.name for check in found.close] == ["validation_leak", "seeds", "lr_points"]
    assert found.lines() == [
        "close: validation_leak: must be <= 5% of the validation data in the training data, and is 4.7%; "
        "hold the validation data out of the training data",
        "close: seeds: must be >= 2 seeds, and is 2 in lr_transfer, 2 in loss_law; repeat the stage's central runs "
        "with another seed",
        "close: lr_points: must be >= 7 rates per size, and is 7 fitted rates at width 32, the fewest; "
        "add rates to stage `lr_transfer`",
        "unknown until they have run: trials_failed, largest_finished, unstable_proxies, lr_edge, lr_flat, lr_convex, "
        "lr_one_minimum, lr_interval, lr_transfers, diverged_near_optimum, batch_edge, sizes_agree, forecast_interval, "
        "forecast_certified, batch_below_critical",
    ]
    assert [check.name for check in told(space(rates=8, seeds=3)).close] == ["validation_leak"]
    far = told(space(target=TARGET.replace(tokens=768 * 400 * 28, name="large")))
    assert "extrapolation_tokens" in [check.name for check in far.close]


def test_missing_seeds_and_rates_are_said_with_the_gate_s_bounds() -> None:
    found = told(space(rates=int(LR_POINTS.bound) - 1, seeds=int(SEEDS.bound) - 1))
    assert names(found) == ["seeds", "lr_points"]
    assert found.lines()[1] == (
        "promote would refuse: lr_points: must be >= 7 rates per size, but is 6 fitted rates at width 32, the fewest; "
        "add rates to stage `lr_transfer`"
    )
    loose = Profile("loose", {"seeds": 1, "lr_points": 6})
    assert foretell(space(rates=6, seeds=1), loose, proxies=1, target=2).warnings == ()


def test_a_grid_that_cannot_tell_a_drift_is_said() -> None:
    deeper = told(space(target=TARGET.replace({"model.depth": 4})))
    (check,) = (check for check in deeper.warnings if check.name == "lr_transfers")
    assert check.value.startswith("unknown: the target has another depth, ")
    assert check.remedy == "sweep the rates at a second depth as well"
    here = TARGET.replace({"tokens": RUN.tokens, "model.width": 48})
    assert names(told(space(target=here, change=lambda run: run.replace(tokens=RUN.tokens)))) == []
    follows = {"parametrization": "sp", "tokens": RUN.tokens}  # under SP the rate follows the width
    one = space(target=TARGET.replace(follows), change=lambda run: run.replace(follows))
    assert "lr_transfers" not in names(told(one))


@pytest.mark.parametrize("horizons", [2, 3])
def test_an_exponent_over_three_horizons_may_tell_what_rates_at_one_do_not(horizons: int) -> None:
    made = space(change=lambda run: run.replace(tokens=RUN.tokens))
    assert "lr_transfers" in names(told(made))
    stage = Exponents(
        "rates", RUN, rates=(-1, 0, 1, 2), horizons=(1, 2, 4)[:horizons], batches=(0.5,), seeds=1
    )
    found = told(replace(made, stages=(*made.stages, stage)))
    assert ("lr_transfers" in names(found)) == (horizons < 3)
    assert ("lr_transfers" in found.unknown) == (horizons == 3)


def test_a_corpus_that_leaks_is_said() -> None:
    foreign = {"model.factory": "foreign_model:factory", "data.source": "foreign_model:Counting"}
    found = told(space(change=lambda run: run.replace(foreign), target=TARGET.replace(foreign, name="large")))
    (leak,) = (check for check in found.warnings if check.name == "validation_leak")
    assert leak.value == "100.0%"
    assert leak.refuses


def test_reach_ratio_precision_and_cost_are_said() -> None:
    far = TARGET.replace(tokens=768 * 400 * 31, precision="bf16", name="large")
    short = told(space(target=far, change=lambda run: run.replace(tokens=768 * 80)), proxies=3.0)
    kinds = {check.name: check.kind for check in short.warnings}
    assert kinds == {
        "one_precision": "refuse",
        "lr_transfers": "refuse",  # all proxies have one horizon now
        "extrapolation_tokens": "refuse",
        "extrapolation_compute": "refuse",
        "forecast_certified": "refuse",
        "tokens_per_parameter": "warn",
        "proxies_cost": "warn",
    }
    said = [line for line in short.lines() if line.startswith(("promote would refuse", "worth knowing"))]
    assert len(said) == 7
    assert any("the target's precision is bf16, the proxies' fp32: not measured" in line for line in said)

    assert said[-1].startswith("worth knowing: proxies_cost: must be at most 1× ")


def test_a_space_of_one_stage_says_what_promotion_lacks_and_nothing_of_what_it_does_not_have() -> None:
    made = space()
    only = Space("one", 0, made.stages[:1], TARGET)
    found = told(only)
    assert names(found) == ["roles"]
    assert "without lr_transfer, loss_law" in found.lines()[0]
    assert found.reach == {}
    assert {"seeds", "lr_points", "extrapolation_params"} < set(found.unknown)
