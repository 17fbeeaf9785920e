"""Failure knobs have a name and say what they mean."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from froude.launch import cluster, knobs, ray_internals
from froude.launch.knobs import NAMED, Knobs, in_force
from froude.launch.ray_internals import DRIVER_SETTINGS, FAST_KNOBS, MODERATE_KNOBS


def checks(name: str) -> dict[str, int]:
    return {
        knob.removeprefix("RAY_"): int(value)
        for knob, value in NAMED[name].items()
        if knob.startswith("RAY_health_check")
    }


@pytest.mark.parametrize("name", NAMED)
def test_known_values_have_a_name(name: str) -> None:
    assert Knobs(checks(name), poll=0.5, hung=20).name == name


def test_one_value_of_their_own_makes_them_somebodys() -> None:
    odd = checks("fast") | {"health_check_failure_threshold": 9}
    assert Knobs(odd, poll=0.5, hung=20).name == "set by hand"
    assert "dead after 9 failures" in str(Knobs(odd, poll=0.5, hung=20))


def test_what_is_not_known_is_not_claimed() -> None:
    assert str(Knobs({}, poll=2, hung=600)) == (
        "unknown: workers polled every 2 s, a hung one ended after 600 s"
    )


def test_the_driver_knows_of_its_workers_from_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs, "health_checks", lambda: checks("Ray's defaults"))
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.25")
    monkeypatch.delenv("RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S", raising=False)
    assert str(in_force()) == (
        "Ray's defaults: nodes checked every 3 s, dead after 5 failures (time-out 10 s); "
        "workers polled every 0.25 s, a hung one ended after 600 s"
    )


def test_what_the_user_has_set_wins_on_a_simulated_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {"RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "300", "RAY_health_check_timeout_ms": "60000"}
    for name in {**FAST_KNOBS, **DRIVER_SETTINGS}:
        monkeypatch.setenv(name, "")  # so that it is put back, whatever is set below
        monkeypatch.delenv(name)
    monkeypatch.setattr(ray_internals, "_prepared", set())
    for name, value in theirs.items():
        monkeypatch.setenv(name, value)
    ray_internals.prepare_driver()  # of an earlier cluster in this process: not what the user has set
    seen: dict[str, str] = {}

    def start(_log: Path) -> None:
        seen.update(os.environ)
        raise InterruptedError

    monkeypatch.setattr(cluster, "_host", start)
    with pytest.raises(InterruptedError), cluster.simulated(1, log_dir=tmp_path):
        pass
    assert seen.items() >= {**FAST_KNOBS, **theirs}.items()


def test_moderate_means_those_of_cluster_yaml(root: Path) -> None:
    found = re.findall(r"(RAY_health_check_\w+)=(\d+)", (root / "cluster.yaml").read_text(encoding="utf-8"))
    assert dict(found) == MODERATE_KNOBS


def test_environment_variables_are_those_that_ray_reads() -> None:
    import ray
    from ray.train import constants
    from ray.train.v2._internal import constants as v2

    known = {value for module in (constants, v2) for value in vars(module).values() if isinstance(value, str)}
    names = {*ray_internals.FAST_KNOBS, *ray_internals.DRIVER_SETTINGS}
    assert {name for name in names if not name.startswith("RAY_health_check_")} <= known
    config = ray._raylet.Config
    for name in names:
        if name.startswith("RAY_health_check_"):
            assert hasattr(config, name.removeprefix("RAY_")), name
