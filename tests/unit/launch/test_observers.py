"""What watches a run on a cluster tells its head, and nothing twice."""

from __future__ import annotations

from typing import Any

import pytest

from froude import schedules
from froude.config import Run
from froude.launch import control_channel
from froude.launch.control_channel import ControlChannel
from froude.launch.observers.forecast import ForecastMonitor
from froude.launch.observers.spike_news import PolicyNews
from froude.promote.forecast import BandPoint, Forecast
from froude.promote.monitor import Monitor
from froude.train.stability.spikes import SpikePolicy

RUN = Run(name="large", tokens=768 * 100)
BAND = tuple(BandPoint(768 * step, 2.0, 1.9, 2.1, 0.05) for step in (10, 100))
FORECAST = Forecast(2.0, 1.9, 2.1, 0.9, True, "ok", (), 2.5, block=768, band_level=0.99, band=BAND)


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> ControlChannel:
    kept: dict[str, dict] = {}
    monkeypatch.setattr(control_channel, "put_value", kept.__setitem__)
    monkeypatch.setattr(control_channel, "get_value", kept.get)
    return ControlChannel("run")


def row(step: int, loss: float) -> dict[str, Any]:
    return {
        "tokens": 768 * step,
        "loss": loss,
        "lr": RUN.optimizer.lr * schedules.at_step(RUN, step - 1),
    }


def test_a_run_that_leaves_its_forecast_raises_one_alarm_also_where_it_was_held(
    head: ControlChannel,
) -> None:
    """A held group goes on with another loop, and with the same monitor."""
    observer = ForecastMonitor(Monitor(FORECAST, RUN), head)
    for steps in (range(1, 31), range(31, 101)):
        observer.begin(object())  # type: ignore[arg-type]
        assert not hasattr(observer, "loop")  # whose model the next one has no memory for
        for step in steps:
            observer.wrote(row(step, 2.0 if step <= 20 else 3.0))
            observer.rewind({})  # nothing of it is in checkpoints
    (alarm,) = head.alarms()
    assert alarm.startswith("training loss 3.000 has been above the sealed band (2.000) since 15,360 tokens")
    assert not observer.name


def test_after_a_rollback_the_forecast_s_monitor_is_as_in_a_new_attempt(head: ControlChannel) -> None:
    """What left the forecast never was; what leaves it again is told again."""
    went_back, anew = (ForecastMonitor(Monitor(FORECAST, RUN), head) for _ in range(2))
    for step in range(1, 61):
        went_back.wrote(row(step, 2.0 if step <= 50 else 3.0))
    for step in range(41, 56):
        for observer in (went_back, anew):
            observer.wrote(row(step, 2.0))
    assert went_back.monitor == anew.monitor
    first = head.alarms()
    for step in range(56, 66):
        went_back.wrote(row(step, 3.0))
    assert len(first) == 1
    assert len(head.alarms()) == 2
    assert "since 42,240 tokens" in head.alarms()[1]


def test_what_the_policy_does_is_said_and_what_it_only_notices_is_not(
    head: ControlChannel,
) -> None:
    policy = SpikePolicy(RUN.replace(tokens=768 * 100_000))
    for step in range(1, 70):
        policy.judge(step, 3.0 + 0.01 * (step % 3), 1.0)
    policy.judge(70, 9.0, 1.0)  # noticed
    for step in (71, 72, 73):
        policy.judge(step, float("nan"), 1.0)
    assert {event["action"] for event in policy.events} == {"spike", "skip", "rollback"}
    PolicyNews(head).decided(policy.events)
    said = head.said()
    assert [line.split(":")[0] for line in said] == [
        "batch 70 is left out at step 71",
        "batch 71 is left out at step 72",
        "back to before step 73",
    ]
    assert "loss nan" in said[0]
    assert "are left out: 3 updates left out" in said[2]
    assert head.alarms() == ()
    head.clear(0)
    assert not head.said()
