"""A target of another precision than its proxies': with a stage that measures its cost, which the forecast bears."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from small_study import TARGET as PLAIN
from small_study import Ladder, base, make_space, row, rows_by_trial

from froude.config import ConfigError, Run
from froude.promote.case import Case
from froude.promote.checks.rows import ONE_PRECISION
from froude.promote.fits import Fits, fit_trials
from froude.promote.gate import PRODUCTION
from froude.promote.gate_preview import foretell
from froude.promote.ladder.precision_cost import Cost, cost
from froude.promote.promotion import predict
from froude.space import Grid, Space, Trial, precision_pairs

TARGET = PLAIN.replace(precision="bf16")
COST = 0.01


def pairs(
    *, widths: tuple[int, ...] = (32, 64), seeds: int = 3, growth: float = 0.0, noise: float = 1e-3
) -> list[dict[str, Any]]:
    """Runs in fp32 and bf16, whose losses are COST apart, and `growth` more at each size."""
    chance, found = np.random.default_rng(1), []
    for number, width in enumerate(widths):
        for seed in range(seeds):
            common = 2.0 + 0.05 * chance.standard_normal()
            for precision, more in (("fp32", 0.0), ("bf16", COST + number * growth)):
                run = base("pairs", **{"model.width": width, "seed": seed, "precision": precision})
                loss = common + more + noise * chance.standard_normal()
                found.append(row(run.replace(name=f"w{width}-{precision}-s{seed}"), loss))
    return found


def frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(
        [{k: v for k, v in each.items() if k != "made"} for each in rows], infer_schema_length=None
    )


def fitted(target: Run, more: list[dict[str, Any]]) -> Fits:
    rows = [each for trial in rows_by_trial(7, 2, Ladder()).values() for each in trial]
    stages = {**make_space().stage_table(), "pairs": {"role": "precision"}}
    return fit_trials(frame([*rows, *more]), stages=stages, target=target)


def test_the_cost_comes_back_with_its_interval() -> None:
    ladder = frame(Ladder().rows(2, np.random.default_rng(0)))
    found = cost(frame(pairs()), TARGET, ladder)
    assert found is not None
    assert (found.precision, found.against, found.pairs, found.sizes, found.drift) == (
        "bf16",
        "fp32",
        6,
        2,
        "",
    )
    assert abs(found.loss - COST) < found.half(0.99)
    assert str(found).startswith("bf16 costs +0.0")
    assert cost(frame(pairs()), PLAIN, ladder) is None  # the proxies' own precision
    assert cost(frame(pairs(seeds=2)), TARGET, ladder) is None
    assert cost(frame(pairs(widths=(64,))), TARGET, ladder) is None
    assert cost(frame(pairs()).filter(pl.col("precision") == "bf16"), TARGET, ladder) is None
    assert cost(frame(pairs()), PLAIN.replace(precision="fp16"), ladder) is None
    # Another batch is no pair.
    other = frame(pairs()).with_columns(
        batch=pl.when(pl.col("precision") == "bf16").then(384).otherwise("batch")
    )
    assert cost(other, TARGET, ladder) is None


def test_the_interval_covers_as_often_as_it_says() -> None:
    inside, n = 0, 400
    chance = np.random.default_rng(2)
    for _ in range(n):
        costs = COST + 1e-3 * chance.standard_normal(6)
        found = Cost("bf16", "fp32", float(costs.mean()), float(costs.std(ddof=1)) / math.sqrt(6), 6, 2)
        inside += abs(found.loss - COST) <= found.half(0.9)
    assert 0.86 < inside / n < 0.94


@pytest.mark.slow
def test_the_forecast_is_shifted_and_wider_and_the_gate_lets_it_pass() -> None:
    without, alike = fitted(TARGET, []), fitted(PLAIN, [])
    measured = fitted(TARGET, pairs())
    assert measured.cost is not None
    plain, moved = predict(alike, 10**6), predict(measured, 10**6)
    assert plain is not None
    assert moved is not None
    for name in ("loss", "comparator", "compute_line", "free_loss"):
        assert getattr(moved, name) == pytest.approx(getattr(plain, name) + measured.cost.loss, nan_ok=True)
    assert math.isfinite(moved.comparator)
    assert moved.naive == plain.naive
    for end in ("low", "high"):
        away = abs(getattr(moved, end) - moved.loss)
        assert away == pytest.approx(
            math.hypot(getattr(plain, end) - plain.loss, measured.cost.half(plain.level))
        )
    # No law has seen the pairs.
    assert {k: v for k, v in measured.fingerprints.items() if k != "precision"} == dict(alike.fingerprints)
    assert measured.loss == alike.loss or measured.loss.E == alike.loss.E  # type: ignore[union-attr]

    def judged(fits: Fits) -> Any:
        case = Case(study=None, fits=fits, forecast=None, ratios={})  # type: ignore[arg-type]
        return ONE_PRECISION.judge(ONE_PRECISION.measure(case), math.nan)

    assert not judged(without).passed
    assert judged(without).value == "bf16, fp32"
    assert any("precision is bf16" in doubt for doubt in without.doubts)
    assert judged(measured).passed
    assert judged(measured).value == f"fp32 ({measured.cost})"
    assert measured.doubts == alike.doubts
    assert any("bf16 costs" in line for line in measured.lines())
    assert measured.summary()["precision_cost"]["pairs"] == 6
    # Proxies of a third precision are not excused.
    mixed = replace(
        measured,
        rows={**measured.rows, "search": measured.rows["search"].with_columns(precision=pl.lit("fp16"))},
    )
    assert not judged(mixed).passed


@pytest.mark.slow
def test_a_cost_that_changes_with_size_certifies_nothing() -> None:
    found = fitted(TARGET, pairs(growth=0.02, noise=1e-4))
    assert any("what it costs the target is not known (add larger sizes)" in doubt for doubt in found.doubts)
    forecast = predict(found, 10**6)
    assert forecast is not None
    assert not forecast.certified


def planned(precision: str, *stages: Grid) -> list[str]:
    made = make_space()
    space = Space("planned", 0, (*made.stages, *stages), PLAIN.replace(precision=precision))
    return [check.name for check in foretell(space, PRODUCTION, proxies=1.0, target=2.0).warnings]


@pytest.mark.slow
def test_a_plan_says_whether_the_cost_would_be_measured() -> None:
    sizes = [base("pairs", **{"model.width": width}) for width in (32, 64)]
    assert "one_precision" in planned("bf16")
    assert "one_precision" not in planned("bf16", precision_pairs("pairs", sizes, "bf16"))
    assert "one_precision" in planned("fp16", precision_pairs("pairs", sizes, "bf16"))


def test_a_stage_of_pairs_has_each_run_twice() -> None:
    sizes = [base("pairs", **{"model.width": width}) for width in (32, 64)]
    stage = precision_pairs("pairs", sizes, "fp8")
    runs = [trial.runs[0] for trial in stage.planned()]
    assert len(runs) == 12
    assert {(r.precision, r.model.width, r.seed) for r in runs} == {
        (p, w, s) for p in ("fp32", "fp8") for w in (32, 64) for s in (0, 1, 2)
    }
    assert (stage.role, {run.stage for run in runs}) == ("precision", {"pairs"})
    with pytest.raises(
        ConfigError, match="needs 3 seeds at 2 sizes, or more, but 'pairs' has 3 at 1; add some"
    ):
        precision_pairs("pairs", sizes[:1], "fp8")
    with pytest.raises(ConfigError, match="has 2 at 2"):
        precision_pairs("pairs", sizes, "fp8", seeds=(0, 1))
    with pytest.raises(ConfigError, match="has runs of 'fp32' already"):
        precision_pairs("pairs", sizes, "fp32")


def test_fp8_is_for_the_target_and_for_pairs_alone() -> None:
    run = base("law", precision="fp8")
    grid = Grid("law", lambda rows: [Trial("t", (run.replace(name="t"),))], role="loss_law")
    with pytest.raises(ConfigError, match=r'"fp8" is for the target, and .* but t of stage .law. has it'):
        Space("s", 0, (grid,), PLAIN.replace(precision="fp8")).planned()
