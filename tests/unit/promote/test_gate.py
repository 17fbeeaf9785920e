"""The gate's table: each check at its bound, overrides, refusals."""

from __future__ import annotations

import math
from typing import Any

import polars as pl
import pytest

from froude.config import ConfigError, Run
from froude.laws.lr.drift import Drift
from froude.promote.case import beyond
from froude.promote.checks import RULES
from froude.promote.checks.batch import NO_STAGE, Batches
from froude.promote.checks.forecast import Certificate
from froude.promote.checks.rates import Curves, Rates
from froude.promote.checks.reach import BatchReach
from froude.promote.gate import PRODUCTION, Check, Profile, Refused, Rule, override, profile_named

Values = dict[str, Any]
BY_NAME: dict[str, Rule[Any]] = {rule.name: rule for rule in RULES}


def curves(joint: str = "ok", **widths: str) -> Values:
    """What the checks of curves look at: `w64="edge"` is the status at width 64."""
    found = Curves({32: "ok", 64: "ok", 128: "ok"} | {int(w[1:]): s for w, s in widths.items()}, joint)
    return dict.fromkeys(("lr_edge", "lr_flat", "lr_convex"), found)


def batches(critical: float, status: str = "ok", *reasons: str) -> Values:
    """What both checks of the batch look at, beside a target's batch of 768 tokens."""
    found = Batches(768, critical, status, reasons)
    return {"batch_edge": found, "batch_below_critical": found}


def drift(shift: float, half: float = 0.1, **more: Any) -> Drift:
    """A shift in ln rate and half its interval; half a percent of the loss is 0.5."""
    return Drift(shift, shift - half, shift + half, curvature=0.12, loss=3.0, noise=0.01, **more)


GOOD: Values = {
    "trials_failed": 0,
    "largest_finished": (),
    "one_precision": ("fp32",),
    "validation_leak": 0.05,
    "seeds": {"lr_transfer": 2, "loss_law": 2},
    "unstable_proxies": {"w128": 0},
    **curves(),
    "lr_points": Rates({32: 7, 64: 7, 128: 9}),
    "lr_one_minimum": {32: 0.02, 64: 0.0},
    "lr_interval": 0.35,
    "lr_transfers": drift(0.4, 0.0999),
    "diverged_near_optimum": math.inf,
    "extrapolation_params": 4.0,
    "extrapolation_tokens": 1.34,
    "extrapolation_compute": 5.3,
    "extrapolation_batch": BatchReach(1.0, 1.0),
    "sizes_agree": (),
    "forecast_interval": 0.04,
    "forecast_certified": Certificate(True),
    **batches(900.0),
}
ORDER = [
    "trials_failed",
    "largest_finished",
    "one_precision",
    "validation_leak",
    "seeds",
    "unstable_proxies",
    "lr_edge",
    "lr_points",
    "lr_flat",
    "lr_convex",
    "lr_one_minimum",
    "lr_interval",
    "lr_transfers",
    "diverged_near_optimum",
    "batch_edge",
    "extrapolation_params",
    "extrapolation_tokens",
    "extrapolation_compute",
    "extrapolation_batch",
    "sizes_agree",
    "forecast_interval",
    "forecast_certified",
    "batch_below_critical",
]


def judged(values: Values, profile: Profile = PRODUCTION) -> tuple[Check, ...]:
    """The gate's table for good values but for these."""
    have = GOOD | values
    return tuple(rule.judge(have[rule.name], profile.bound(rule)) for rule in RULES)


def failed(values: Values, profile: Profile = PRODUCTION) -> list[str]:
    return [check.name for check in judged(values, profile) if not check.passed]


def test_good_values_pass_every_check() -> None:
    assert [check.name for check in judged({})] == ORDER
    assert failed({}) == []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"trials_failed": 1}, "trials_failed"),
        ({"largest_finished": ("w128 (failed)",)}, "largest_finished"),
        ({"one_precision": ("bf16", "fp32")}, "one_precision"),
        ({"validation_leak": 0.051}, "validation_leak"),
        ({"seeds": {"lr_transfer": 2, "loss_law": 1}}, "seeds"),
        ({"unstable_proxies": {"w128": 0, "w96": 1}}, "unstable_proxies"),
        ({"lr_one_minimum": {32: 0.021}}, "lr_one_minimum"),
        ({"lr_transfers": drift(0.4, 0.101)}, "lr_transfers"),
        ({"lr_transfers": drift(-0.2, 0.4)}, "lr_transfers"),
        ({"lr_transfers": drift(-0.6)}, "lr_transfers"),
        ({"lr_transfers": drift(0.0, math.inf)}, "lr_transfers"),
        ({"lr_transfers": drift(math.nan, missing=("tokens",))}, "lr_transfers"),
        ({"lr_transfers": Drift(missing=("tokens", "depth"))}, "lr_transfers"),
        ({"lr_transfers": Drift(bad=("width 64, tokens 1,000: edge",))}, "lr_transfers"),
        ({"lr_transfers": Drift(off_line=("0.01 at width 64", "0.03 at width 128"))}, "lr_transfers"),
        ({"lr_transfers": None}, "lr_transfers"),
        ({"sizes_agree": ("26,624",)}, "sizes_agree"),
        (batches(900.0, "edge", "beyond the largest"), "batch_edge"),
        (batches(900.0, "at_bound"), "batch_edge"),
        (curves(w64="edge"), "lr_edge"),
        (curves("edge"), "lr_edge"),
        ({"lr_points": Rates({32: 7, 64: 6})}, "lr_points"),
        ({"lr_points": Rates({})}, "lr_points"),
        (curves(w32="flat"), "lr_flat"),
        (curves("not_convex"), "lr_convex"),
        ({"lr_interval": 0.351}, "lr_interval"),
        ({"lr_interval": math.nan}, "lr_interval"),
        ({"diverged_near_optimum": 1.9}, "diverged_near_optimum"),
        ({"diverged_near_optimum": 2.0}, "diverged_near_optimum"),
        ({"diverged_near_optimum": math.nan}, "diverged_near_optimum"),
        ({"extrapolation_params": 31.0}, "extrapolation_params"),
        ({"extrapolation_tokens": 31.0}, "extrapolation_tokens"),
        ({"extrapolation_compute": 101.0}, "extrapolation_compute"),
        ({"extrapolation_batch": BatchReach(5.0, 1.0)}, "extrapolation_batch"),
        ({"extrapolation_batch": BatchReach(0.2, 1.0)}, "extrapolation_batch"),
        ({"extrapolation_params": math.nan}, "extrapolation_params"),
        ({"forecast_interval": 0.051}, "forecast_interval"),
        ({"forecast_interval": math.nan}, "forecast_interval"),
        ({"forecast_certified": Certificate(False, ("one split",))}, "forecast_certified"),
    ],
)
def test_each_check_refuses_by_itself(change: Values, name: str) -> None:
    assert failed(change) == [name]
    checks = judged(change)
    (check,) = [check for check in checks if check.refuses]
    reasons = Refused(checks).reasons
    assert reasons == (check.line(),)
    assert reasons[0].startswith(f"{name}: must be ")
    assert check.remedy in reasons[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("extrapolation_params", 30.0),
        ("extrapolation_tokens", 30.0),
        ("extrapolation_compute", 100.0),
        ("extrapolation_batch", BatchReach(4.0, 1.0)),
        ("extrapolation_batch", BatchReach(0.25, 1.0)),
        ("forecast_interval", 0.05),
        ("diverged_near_optimum", 2.01),
    ],
)
def test_a_value_at_its_bound_passes(name: str, value: float) -> None:
    assert failed({name: value}) == []


def test_a_ladder_that_does_not_tell_its_batch_has_no_reach_in_it() -> None:
    rows = pl.DataFrame(
        {"params": [10], "tokens": [100], "batch": [None]}, schema_overrides={"batch": pl.Int64}
    )
    assert math.isnan(beyond(rows, Run(batch=768, tokens=768), 20)["batch"])


def test_a_profile_has_bounds_of_its_own_by_name() -> None:
    strict = Profile("strict", {"seeds": 3, "extrapolation_tokens": 1.3, "validation_leak": 0.001})
    assert failed({}, strict) == ["validation_leak", "seeds", "extrapolation_tokens"]
    bounds = {check.name: check.bound for check in judged({}, strict)}
    assert bounds["seeds"] == ">= 3 seeds"
    assert bounds["extrapolation_tokens"] == "<= 1.3× the largest proxy's tokens"
    assert bounds["validation_leak"] == "<= 0.1% of the validation data in the training data"
    assert bounds["lr_interval"] == "<= 0.35 in ln rate, half-width"


def test_no_profile_has_a_bound_for_what_is_no_check() -> None:
    assert set(PRODUCTION.bounds) <= set(BY_NAME)
    assert len(BY_NAME) == len(RULES)


@pytest.mark.parametrize(
    ("name", "close", "far"),
    [
        ("lr_points", Rates({32: 7}), Rates({32: 8})),
        ("extrapolation_params", 27.5, 26.5),
        ("extrapolation_batch", BatchReach(3.7, 1.0), BatchReach(3.5, 1.0)),
        ("extrapolation_batch", BatchReach(0.26, 1.0), BatchReach(0.3, 1.0)),
        ("diverged_near_optimum", 2.1, 2.3),
        ("validation_leak", 0.046, 0.044),
        ("lr_one_minimum", {32: 0.019}, {32: 0.017}),
        ("lr_transfers", drift(0.0, 0.49), drift(0.0, 0.47)),
    ],
)
def test_what_passes_by_less_than_a_tenth_of_its_bound_is_close(name: str, close: Any, far: Any) -> None:
    rule = BY_NAME[name]
    assert rule.judge(close, rule.bound).passed
    assert rule.is_close(close, rule.bound)
    assert rule.judge(far, rule.bound).passed
    assert not rule.is_close(far, rule.bound)


@pytest.mark.parametrize(
    ("found", "value", "remedy"),
    [
        (drift(-0.8), "-0.80 [-0.90, -0.70] in ln rate, which costs 1.3% of the loss", "the optimum moves"),
        (
            drift(0.1, 0.6),
            "unknown: +0.10 [-0.50, +0.70] in ln rate, neither within ±0.50 nor clearly beyond",
            "sweep the rates nearer",
        ),
        (
            Drift(missing=("tokens",)),
            "unknown: the target has another horizon, and the rates swept do not tell what that does",
            "sweep the rates at a second horizon as well",
        ),
        (
            Drift(bad=("width 64, tokens 1,000: edge",)),
            "unknown: no optimum at width 64, tokens 1,000: edge",
            "extend the rates of stage `lr_transfer` there",
        ),
    ],
)
def test_a_drift_is_told_from_what_is_not_known(found: Drift, value: str, remedy: str) -> None:
    check = BY_NAME["lr_transfers"].judge(found, 0.005)
    assert check.value == value
    assert remedy in check.remedy
    assert check.refuses


def test_rates_of_a_far_batch_are_refused_beside_a_ladder_of_the_targets() -> None:
    check = BY_NAME["extrapolation_batch"].judge(BatchReach(1.0, 1 / 12), 4.0)
    assert (check.passed, check.value) == (False, "1×; 0.0833× that of stage `lr_transfer`")
    assert "sweep the rates of stage `lr_transfer` at a nearer batch" in check.remedy


def test_what_fails_or_has_no_number_for_a_bound_is_not_close() -> None:
    assert not BY_NAME["lr_points"].is_close(Rates({32: 6}), 7)
    boundless = [rule for rule in RULES if math.isnan(rule.bound)]
    assert len(boundless) == 11
    assert not [rule.name for rule in boundless if rule.is_close(GOOD[rule.name], rule.bound)]


def test_a_large_batch_warns_and_states_its_price() -> None:
    (warning,) = [check for check in judged(batches(340.0)) if not check.passed]
    assert (warning.name, warning.kind, warning.refuses) == ("batch_below_critical", "warn", False)
    assert "226% more tokens" in warning.remedy


def test_an_unknown_critical_batch_warns() -> None:
    unmeasured, warning = [check for check in judged(batches(math.nan, "too_few_points")) if not check.passed]
    assert "too_few_points" in warning.value
    assert (warning.name, warning.kind) == ("batch_below_critical", "warn")
    assert (unmeasured.name, unmeasured.kind) == ("batch_edge", "unmeasured")
    assert not warning.refuses
    assert not unmeasured.refuses


def test_what_no_stage_measured_has_not_passed_and_does_not_refuse() -> None:
    checks = judged(batches(math.nan, NO_STAGE))
    found = [check for check in checks if not check.passed]
    assert [check.name for check in found] == ["batch_edge", "batch_below_critical"]
    for check in found:
        assert check.value == "not measured: no trials of the role critical_batch"
        assert (check.kind, check.refuses) == ("unmeasured", False)
    assert override(checks, {"batch_edge": "no time"}) == checks


@pytest.mark.parametrize(
    ("change", "name"),
    [({"validation_leak": None}, "validation_leak"), ({"unstable_proxies": {}}, "unstable_proxies")],
)
def test_what_no_trial_tells_warns(change: Values, name: str) -> None:
    (warning,) = [check for check in judged(change) if not check.passed]
    assert (warning.name, warning.kind, warning.refuses) == (name, "warn", False)
    assert warning.value.startswith("unknown")


FEW: Values = {"lr_points": Rates({64: 5})}


def test_an_override_needs_the_name_of_a_failed_check() -> None:
    checks = judged({"forecast_certified": Certificate(False), **FEW})
    passed = override(checks, {"lr_points": "five rates, fitted jointly", "lr_edge": "not needed"})
    assert [check.name for check in passed if check.refuses] == ["forecast_certified"]
    (points,) = [check for check in passed if check.overridden]
    assert (points.name, points.reason, points.passed) == ("lr_points", "five rates, fitted jointly", False)


def test_the_gate_names_the_rates_that_are_not_fitted() -> None:
    left_out = {32: "", 64: "0.02 (0.61 nats above the best)"}
    (points,) = [c for c in judged({"lr_points": Rates({32: 5, 64: 4}, left_out)}) if c.name == "lr_points"]
    assert points.value == "4 fitted rates at width 64, the fewest; left out: 0.02 (0.61 nats above the best)"
    assert "nearer to the best" in points.remedy


def test_a_warning_is_not_overridden() -> None:
    checks = judged(batches(340.0))
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
        override(judged({}), reasons)


def test_profiles_go_by_name() -> None:
    assert profile_named("production") is PRODUCTION
    with pytest.raises(ConfigError, match="one of production"):
        profile_named("lenient")
