"""The gate's table: each check at its bound, overrides, refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from froude.config import ConfigError
from froude.promote.checks import Evidence, table
from froude.promote.gate import NAMES, PRODUCTION, Refused, override, profile_named

GOOD = Evidence(
    failed=0,
    unfinished=(),
    precisions=("fp32",),
    leaked=0.05,
    seeds={"lr_transfer": 2, "loss_law": 2},
    spikes={"w128": 0},
    lr_bumps={32: 0.02, 64: 0.0},
    lr_drift=0.35,
    sizes_off=(),
    critical_reasons=(),
    lr_curves={32: (7, "ok"), 64: (7, "ok"), 128: (9, "ok")},
    lr_status="ok",
    lr_half_width=0.35,
    diverged_ratio=math.inf,
    ratios={"params": 4.0, "tokens": 1.34, "compute": 5.3, "batch": 1.0},
    forecast_half_width=0.04,
    forecast_certified=True,
    forecast_reasons=(),
    batch=768,
    critical_batch=900.0,
    critical_status="ok",
    token_overhead=0.85,
)


def failed(evidence: Evidence) -> list[str]:
    return [check.name for check in table(evidence) if not check.passed]


def test_good_evidence_passes_every_check() -> None:
    checks = table(GOOD)
    assert tuple(check.name for check in checks) == NAMES
    assert failed(GOOD) == []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"failed": 1}, "trials_failed"),
        ({"unfinished": ("w128 (failed)",)}, "largest_finished"),
        ({"precisions": ("bf16", "fp32")}, "one_precision"),
        ({"leaked": 0.051}, "validation_leak"),
        ({"seeds": {"lr_transfer": 2, "loss_law": 1}}, "seeds"),
        ({"spikes": {"w128": 0, "w96": 1}}, "unstable_proxies"),
        ({"lr_bumps": {32: 0.021}}, "lr_one_minimum"),
        ({"lr_drift": 0.36}, "lr_transfers"),
        ({"lr_drift": math.nan}, "lr_transfers"),
        ({"sizes_off": ("26,624",)}, "sizes_agree"),
        ({"critical_status": "edge", "critical_reasons": ("beyond the largest",)}, "batch_edge"),
        ({"critical_status": "at_bound"}, "batch_edge"),
        ({"lr_curves": {32: (7, "ok"), 64: (7, "edge")}}, "lr_edge"),
        ({"lr_status": "edge"}, "lr_edge"),
        ({"lr_curves": {32: (7, "ok"), 64: (6, "ok")}}, "lr_points"),
        ({"lr_curves": {}}, "lr_points"),
        ({"lr_curves": {32: (7, "flat"), 64: (7, "ok")}}, "lr_flat"),
        ({"lr_status": "not_convex"}, "lr_convex"),
        ({"lr_half_width": 0.351}, "lr_interval"),
        ({"lr_half_width": math.nan}, "lr_interval"),
        ({"diverged_ratio": 1.9}, "diverged_near_optimum"),
        ({"ratios": GOOD.ratios | {"params": 31.0}}, "extrapolation_params"),
        ({"ratios": GOOD.ratios | {"tokens": 31.0}}, "extrapolation_tokens"),
        ({"ratios": GOOD.ratios | {"compute": 101.0}}, "extrapolation_compute"),
        ({"ratios": GOOD.ratios | {"batch": 5.0}}, "extrapolation_batch"),
        ({"ratios": GOOD.ratios | {"batch": 0.2}}, "extrapolation_batch"),
        ({"ratios": GOOD.ratios | {"params": math.nan}}, "extrapolation_params"),
        ({"forecast_half_width": 0.051}, "forecast_interval"),
        ({"forecast_half_width": math.nan}, "forecast_interval"),
        ({"forecast_certified": False, "forecast_reasons": ("one split",)}, "forecast_certified"),
    ],
)
def test_each_check_refuses_by_itself(change: dict[str, object], name: str) -> None:
    evidence = replace(GOOD, **change)  # type: ignore[arg-type]
    assert failed(evidence) == [name]
    (check,) = [check for check in table(evidence) if check.refuses]
    reasons = Refused(table(evidence)).reasons
    assert reasons == (check.line(),)
    assert reasons[0].startswith(f"{name}: must be ")
    assert check.remedy in reasons[0]


def test_a_large_batch_warns_and_states_its_price() -> None:
    checks = table(replace(GOOD, critical_batch=340.0, token_overhead=768 / 340))
    (warning,) = [check for check in checks if not check.passed]
    assert (warning.name, warning.kind, warning.refuses) == ("batch_below_critical", "warn", False)
    assert "226% more tokens" in warning.remedy


def test_an_unknown_critical_batch_warns() -> None:
    checks = table(
        replace(GOOD, critical_batch=math.nan, critical_status="too_few_points", token_overhead=math.nan)
    )
    unmeasured, warning = [check for check in checks if not check.passed]
    assert "too_few_points" in warning.value
    assert (unmeasured.name, unmeasured.kind) == ("batch_edge", "unmeasured")
    assert not warning.refuses
    assert not unmeasured.refuses


def test_what_no_stage_measured_has_not_passed_and_does_not_refuse() -> None:
    checks = table(
        replace(GOOD, critical_batch=math.nan, critical_status="no such stage", token_overhead=math.nan)
    )
    found = [check for check in checks if not check.passed]
    assert [check.name for check in found] == ["batch_edge", "batch_below_critical"]
    for check in found:
        assert check.value == "not measured: no trials of the role critical_batch"
        assert (check.kind, check.refuses) == ("unmeasured", False)
    assert override(checks, {"batch_edge": "no time"}) == checks


@pytest.mark.parametrize(
    ("change", "name"), [({"leaked": None}, "validation_leak"), ({"spikes": {}}, "unstable_proxies")]
)
def test_what_no_trial_tells_warns(change: dict[str, object], name: str) -> None:
    (warning,) = [check for check in table(replace(GOOD, **change)) if not check.passed]  # type: ignore[arg-type]
    assert (warning.name, warning.kind, warning.refuses) == (name, "warn", False)
    assert warning.value.startswith("unknown")


def test_an_override_needs_the_name_of_a_failed_check() -> None:
    checks = table(replace(GOOD, forecast_certified=False, lr_curves={64: (5, "ok")}))
    passed = override(checks, {"lr_points": "five rates, fitted jointly", "lr_edge": "not needed"})
    assert [check.name for check in passed if check.refuses] == ["forecast_certified"]
    (points,) = [check for check in passed if check.overridden]
    assert (points.name, points.reason, points.passed) == ("lr_points", "five rates, fitted jointly", False)


def test_the_gate_names_the_rates_that_are_not_fitted() -> None:
    left_out = {32: "", 64: "0.02 (0.61 nats above the best)"}
    checks = table(replace(GOOD, lr_curves={32: (5, "ok"), 64: (4, "ok")}, lr_left_out=left_out))
    (points,) = [check for check in checks if check.name == "lr_points"]
    assert points.value == "4 fitted rates at width 64, the fewest; left out: 0.02 (0.61 nats above the best)"
    assert "nearer to the best" in points.remedy


def test_a_warning_is_not_overridden() -> None:
    checks = table(replace(GOOD, critical_batch=340.0))
    assert override(checks, {"batch_below_critical": "workers"}) == checks


@pytest.mark.parametrize(
    ("reasons", "message"),
    [
        ({"lr_point": "x"}, "did you mean `lr_points`"),
        ({"zzz": "x"}, "known: trials_failed"),
        ({"lr_points": " "}, "must have a reason"),
    ],
)
def test_a_wrong_override_is_an_error(reasons: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        override(table(GOOD), reasons)


def test_profiles_go_by_name() -> None:
    assert profile_named("production") is PRODUCTION
    with pytest.raises(ConfigError, match="one of production"):
        profile_named("lenient")
