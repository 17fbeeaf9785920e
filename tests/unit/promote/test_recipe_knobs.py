"""Knobs in the recipe: sealed with it, absent from recipes of before, which stay; and in words for people."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from small_study import TARGET

from froude.cli import main
from froude.config import ConfigError
from froude.promote.choice import step_time
from froude.promote.choice.knob import Knob
from froude.promote.choice.recipe_run import searched_run
from froude.promote.fits import fit
from froude.promote.promotion import chosen, parameters, predict, promote
from froude.promote.recipe import read, seal
from froude.study import Study
from froude.train.speed import timing

pytestmark = pytest.mark.slow

OVERRIDE = {"forecast_certified": "a study of minutes"}


@pytest.fixture
def study(tmp_path: Path, study_factory: Callable[..., Path]) -> Study:
    """Three slots of a window, so that 192 tokens are a whole batch; the small study's own target has twelve."""
    return Study(study_factory(tmp_path / "study", target=TARGET.replace({"slots": 3}, name=TARGET.name)))


def test_knobs_are_sealed_and_read(study: Study) -> None:
    written = promote(study, overrides=OVERRIDE)
    stored = read(study.location)
    assert stored.sha256 == written.sha256
    assert stored.to_toml() == written.to_toml()
    names = [knob.name for knob in stored.knobs]
    assert names == [
        "optimizer.lr",
        "batch",
        "optimizer.beta2",
        "optimizer.weight_decay",
        "schedule.warmup_tokens",
        "schedule.name",
        "schedule.decay_fraction",
    ]
    by_name = {knob.name: knob for knob in stored.knobs}
    assert by_name["optimizer.lr"].value == stored.run.optimizer.lr
    assert by_name["optimizer.lr"].source == "measured"  # rates at two horizons, and the target's batch
    assert by_name["optimizer.lr"].low < stored.run.optimizer.lr < by_name["optimizer.lr"].high
    assert (by_name["batch"].value, by_name["batch"].source) == (768, "set by you")
    assert "costs 0." in by_name["batch"].rule
    text = (Path(study.location.path) / "recipe.toml").read_text()
    (Path(study.location.path) / "recipe.toml").write_text(text.replace("set by you", "measured", 1))
    with pytest.raises(ConfigError, match="as it was sealed"):
        read(study.location)


@pytest.mark.long
def test_a_preference_is_sealed_and_another_makes_another_recipe(study: Study) -> None:
    first = promote(study, overrides=OVERRIDE)
    assert first.prefer == ""
    preferred = promote(study, overrides=OVERRIDE, prefer="loss")
    assert (preferred.prefer, read(study.location).prefer) == ("loss", "loss")
    assert preferred.sha256 != first.sha256
    assert promote(study, overrides=OVERRIDE, prefer="loss").sha256 == preferred.sha256
    assert promote(study, overrides=OVERRIDE).prefer == ""


def test_a_recipe_of_before_has_none_and_stays(study: Study) -> None:
    fits = fit(study)
    first = promote(study, overrides=OVERRIDE)
    run = searched_run(fits)
    assert run is not None
    assert run != first.run
    before = seal(
        run=run,
        profile=first.profile,
        fits=first.fits,
        fingerprints=first.fingerprints,
        extrapolation=first.extrapolation,
        checks=first.checks,
        forecast=first.forecast,
    )
    assert "knobs" not in before.content()
    before.write(study.location / "recipe.toml")
    assert read(study.location).knobs == ()
    assert promote(study, overrides=OVERRIDE).sha256 == before.sha256
    # Who asks for another batch asks for another recipe.
    assert promote(study, overrides=OVERRIDE, prefer="loss").run.batch < 768


def test_a_batch_outside_the_ladder_is_forecast_by_its_worth_and_not_certified(study: Study) -> None:
    fits = fit(study)
    params = parameters(fits.target)
    own, small = chosen(study, fits), chosen(study, fits, prefer="loss")
    assert small.run is not None
    assert small.batches is not None
    assert small.run.batch == small.fits.target.batch == small.batches.chosen("loss") < 768
    assert own.fits is fits
    before, after = predict(fits, params), predict(small.fits, params)
    assert before is not None
    assert after is not None
    saved = small.batches.own.loss - small.batches.at(small.run.batch).loss
    assert before.loss - after.loss == pytest.approx(saved, rel=0.1)
    assert after.high - after.low > before.high - before.low
    assert any("batch is" in reason for reason in after.reasons)
    assert not any("batch is" in reason for reason in before.reasons)


def test_no_dash_in_what_is_not_known() -> None:
    knob = Knob("batch", 768, "set by you", rule="what it costs is not known")
    assert knob.to_dict() == {
        "name": "batch", "value": 768, "source": "set by you", "rule": "what it costs is not known"
    }  # fmt: skip
    assert Knob.from_dict(json.loads(json.dumps(knob.to_dict()))).line() == knob.line()
    assert math.isnan(knob.regret)
    assert knob.line() == "batch 768 (set by you): what it costs is not known"


@pytest.mark.long
def test_the_terminal_shows_every_knob_and_takes_a_preference(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ["--override", "forecast_certified", "--reason", "a study of minutes"]
    assert main(["promote", study.location.url, *overrides]) == 0
    shown = capsys.readouterr().out
    assert shown.count("\nknob ") == 7
    assert "knob      schedule.name wsd (set by you): schedules were not compared" in shown
    assert main(["promote", study.location.url, "--prefer", "loss", *overrides, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert next(knob for knob in content["knobs"] if knob["name"] == "batch")["rule"].startswith(
        "--prefer loss"
    )
    assert main(["promote", study.location.url, "--prefer", "speed"]) == 2
    assert main(["plan", "--next", study.location.url]) == 0
    assert "batch 768 tokens: costs 0." in capsys.readouterr().out


@pytest.mark.long
def test_where_trials_tell_no_times_steps_are_timed_here(
    study: Study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(timing, "_time", lambda run: 0.5 + timing.step_flops(run) / 1e9)
    monkeypatch.setattr(step_time, "of_trials", lambda trials: None)
    for prefer in (None, "time"):
        written = promote(study, overrides=OVERRIDE, prefer=prefer)
        rule = next(knob.rule for knob in written.knobs if knob.name == "batch")
        assert "hours (estimated as by a plan: a thread of this machine, timed; " in rule


@pytest.mark.long
def test_a_target_of_a_batch_that_was_not_searched_is_promoted(
    tmp_path: Path, study_factory: Callable[..., Path]
) -> None:
    far = TARGET.replace({"slots": 3, "batch": 3072, "tokens": 3072 * 325}, name=TARGET.name)
    study = Study(study_factory(tmp_path / "far", target=far))
    names = dict.fromkeys(("forecast_certified", "forecast_interval"), "a study of minutes")
    written = promote(study, overrides=names)
    by_name = {knob.name: knob for knob in written.knobs}
    assert by_name["batch"].value == 3072
    assert "saves" in by_name["batch"].rule
    assert "at batch 1,536, the nearest searched" in by_name["optimizer.beta2"].rule


def test_a_search_of_another_schedule_is_named(tmp_path: Path, study_factory: Callable[..., Path]) -> None:
    other = TARGET.replace({"schedule.name": "constant"}, name=TARGET.name)
    study = Study(study_factory(tmp_path / "other", target=other))
    with pytest.raises(
        ConfigError, match=r"lacks search \(it has .* where the target has constant\); sweep trials of"
    ):
        promote(study)
