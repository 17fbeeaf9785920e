"""A run that leaves its forecast is noticed soon, and one that follows it is left alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from froude import schedules
from froude.config import Run
from froude.promote.forecast import BandPoint, Forecast, score
from froude.promote.monitor import PATIENCE, Alarm, alarms

STEPS, BATCH = 2000, 1000
HORIZON = STEPS * BATCH
RUN = Run(
    model={"context": 100},
    batch=BATCH,
    tokens=HORIZON,
    optimizer={"lr": 2e-3},
    schedule={"name": "wsd", "warmup_tokens": 50 * BATCH},
    eval_windows=1,
)


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
    lr = [RUN.optimizer.lr * schedules.at_step(RUN, n) for n in range(STEPS)]
    return pl.DataFrame({"tokens": step * BATCH, "loss": loss, "lr": lr})


def stretch(first: int, last: int, height: float) -> NDArray[np.float64]:
    at = np.arange(1, STEPS + 1)
    return np.where((at > first) & (at <= last), height, 0.0)


@pytest.mark.slow
def test_runs_that_follow_the_forecast_raise_no_alarm() -> None:
    assert sum(len(alarms(forecast(), RUN, run(seed))) for seed in range(15)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("level", [-0.02, 0.02])
def test_a_law_that_was_off_within_its_interval_raises_none(level: float) -> None:
    assert sum(len(alarms(forecast(level), RUN, run(seed))) for seed in range(8)) == 0


@pytest.mark.parametrize(
    ("height", "kind"), [(0.035, "shape"), (1.0, "band"), (-0.035, "shape"), (math.nan, "band")]
)
def test_a_stretch_of_other_data_is_noticed_within_a_twentieth_of_the_run(height: float, kind: str) -> None:
    found = alarms(forecast(), RUN, run(0, stretch(1200, 1300, height)))
    assert found[0].kind == kind
    assert 1195 * BATCH <= found[0].since <= 1215 * BATCH
    assert found[0].tokens - 1200 * BATCH <= 0.05 * HORIZON
    assert found[0].tokens - found[0].since > PATIENCE * HORIZON


def test_one_alarm_until_the_loss_is_back_and_then_another() -> None:
    found = alarms(forecast(), RUN, run(1, stretch(600, 700, 0.5) + stretch(1500, 1600, 0.5)))
    assert [alarm.since // (100 * BATCH) for alarm in found] == [6, 15]


def test_a_run_that_lies_beside_the_band_from_its_start_is_noticed_at_once() -> None:
    found = alarms(forecast(), RUN, run(2, 0.15))
    assert found[0].kind == "band"
    assert found[0].tokens < (0.1 + 0.05) * HORIZON


@pytest.mark.parametrize("banded", [True, False])
@pytest.mark.parametrize("factor", [8.0, 0.125, 0.7])
def test_a_rate_that_is_not_the_recipes_is_noticed_at_once_and_said_once(factor: float, banded: bool) -> None:
    made = forecast() if banded else replace(forecast(), band=(), block=0)
    here = pl.col("tokens").is_between(1001 * BATCH, 1500 * BATCH)
    steps = run(0).with_columns(lr=pl.when(here).then(factor * pl.col("lr")).otherwise("lr"))
    (found,) = alarms(made, RUN, steps)
    assert (found.kind, found.since, found.tokens) == ("rate", 1000 * BATCH, 1001 * BATCH)
    assert found.seen / found.expected == pytest.approx(factor)
    assert ("above" if factor > 1 else "below") in found.line()


def test_a_rate_that_does_not_decay_is_noticed_where_the_decay_begins() -> None:
    (found,) = alarms(forecast(), RUN, run(0).with_columns(lr=pl.col("lr").cum_max()))
    assert found.kind == "rate"
    assert 0.8 * HORIZON < found.tokens <= 0.81 * HORIZON


def test_without_a_band_there_is_nothing_to_leave() -> None:
    assert alarms(replace(forecast(), band=(), block=0), RUN, run(0, 5.0)) == []


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
    assert line.startswith("training loss 2.500 has been above the sealed band (2.000) since 1,000 tokens;")
