"""A run that leaves its forecast is noticed soon, and one that follows it is left alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from froude.promote.forecast import BandPoint, Forecast, score
from froude.promote.monitor import PATIENCE, Alarm, alarms

STEPS, BATCH = 2000, 1000
HORIZON = STEPS * BATCH


def course(step: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1.2 + 3.0 * step**-0.3


def forecast(level: float = 0.0) -> Forecast:
    """A band of 3% about the course, whose shape is known to 0.0125 nats."""
    at = np.linspace(0.1 * STEPS, STEPS, 60)
    points = [
        BandPoint(round(s) * BATCH, loss + level, 0.97 * (loss + level), 1.03 * (loss + level), 0.0125)
        for s, loss in zip(at, course(at), strict=True)
    ]
    end = points[-1]
    return Forecast(
        end.loss,
        end.low,
        end.high,
        0.9,
        True,
        "ok",
        (),
        1.6,
        block=5 * BATCH,
        band_level=0.99,
        band=tuple(points),
    )


def run(seed: int, bend: NDArray[np.float64] | float = 0.0) -> pl.DataFrame:
    step = np.arange(1, STEPS + 1)
    loss = course(step) + bend + 0.02 * np.random.default_rng(seed).standard_normal(STEPS)
    return pl.DataFrame({"tokens": step * BATCH, "loss": loss})


def stretch(first: int, last: int, height: float) -> NDArray[np.float64]:
    at = np.arange(1, STEPS + 1)
    return np.where((at > first) & (at <= last), height, 0.0)


@pytest.mark.slow
def test_runs_that_follow_the_forecast_raise_no_alarm() -> None:
    assert sum(len(alarms(forecast(), HORIZON, run(seed))) for seed in range(15)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("level", [-0.02, 0.02])
def test_a_law_that_was_off_within_its_interval_raises_none(level: float) -> None:
    assert sum(len(alarms(forecast(level), HORIZON, run(seed))) for seed in range(8)) == 0


@pytest.mark.parametrize(
    ("height", "kind"), [(0.035, "shape"), (1.0, "band"), (-0.035, "shape"), (math.nan, "band")]
)
def test_a_stretch_of_other_data_is_noticed_within_a_twentieth_of_the_run(height: float, kind: str) -> None:
    found = alarms(forecast(), HORIZON, run(0, stretch(1200, 1300, height)))
    assert found[0].kind == kind
    assert 1195 * BATCH <= found[0].since <= 1215 * BATCH
    assert found[0].tokens - 1200 * BATCH <= 0.05 * HORIZON
    assert found[0].tokens - found[0].since > PATIENCE * HORIZON


def test_one_alarm_until_the_loss_is_back_and_then_another() -> None:
    found = alarms(forecast(), HORIZON, run(1, stretch(600, 700, 0.5) + stretch(1500, 1600, 0.5)))
    assert [alarm.since // (100 * BATCH) for alarm in found] == [6, 15]


def test_a_run_that_lies_beside_the_band_from_its_start_is_noticed_at_once() -> None:
    found = alarms(forecast(), HORIZON, run(2, 0.15))
    assert found[0].kind == "band"
    assert found[0].tokens < (0.1 + 0.05) * HORIZON


def test_without_a_band_there_is_nothing_to_leave() -> None:
    assert alarms(replace(forecast(), band=(), block=0), HORIZON, run(0, 5.0)) == []


def test_a_forecast_with_a_band_comes_back_whole() -> None:
    made = forecast()
    assert Forecast.from_dict(made.to_dict()) == made
    assert "band" not in replace(made, band=(), block=0, band_level=0.0).to_dict()
    middle = (made.band[0].tokens + made.band[1].tokens) // 2
    assert made.band[0].loss > made.at(middle).loss > made.band[1].loss
    with pytest.raises(ValueError, match="no band"):
        replace(made, band=()).at(1000)


@pytest.mark.parametrize(("bend", "erred"), [(0.12, "law"), (stretch(1600, 2000, 0.12), "curve"), (0.0, "")])
def test_an_error_is_laid_at_the_stage_that_made_it(bend: NDArray[np.float64] | float, erred: str) -> None:
    end = float(course(np.array([float(STEPS)]))[0]) + float(np.asarray(bend).reshape(-1)[-1])
    assert score(forecast(), end, run(0, bend)).erred == erred


def test_an_alarm_says_what_to_look_at() -> None:
    line = Alarm("band", 1000, 2000, 2.5, 2.0).line()
    assert line.startswith("training loss 2.500 is above the sealed band (2.000) since 1,000 tokens;")
