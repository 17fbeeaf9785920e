"""recipe.toml: round trip, seal, and what happens to one edited by hand."""

from __future__ import annotations

import json
import math
import re
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from froude.config import ConfigError, Run
from froude.promote.forecast import Forecast, score
from froude.promote.gate import Check
from froude.promote.recipe import Recipe, digest, read, seal
from froude.store import Location

FORECAST = Forecast(1.298, 1.251, 1.341, 0.9, False, "prior_driven", ("one split",), 1.42, 1.27)


def recipe(loss: float = 1.298) -> Recipe:
    return seal(
        run=Run(name="large", batch=768, slots=12, tokens=768 * 1300, workers=(1, 3)),
        profile="production",
        fits={"alpha": 0.35, "transfer": {"mup": -0.1}, "note": "größer"},
        fingerprints={"loss_law": "0" * 64},
        extrapolation={"params": 4.0, "tokens": 1.34, "compute": 5.3, "batch": 1.0},
        checks=(
            Check(
                "lr_points",
                False,
                "5 rates",
                ">= 7 rates",
                "add rates",
                overridden=True,
                reason="a study of minutes",
            ),
        ),
        forecast=Forecast(loss, loss - 0.05, loss + 0.05, 0.9, False, "prior_driven", ("one split",), 1.42),
    )


@pytest.fixture
def written(tmp_path: Path) -> Path:
    recipe().write(Location.parse(tmp_path) / "recipe.toml")
    return tmp_path / "recipe.toml"


def test_what_is_written_is_read(written: Path) -> None:
    stored = read(str(written))
    assert stored.run == recipe().run
    assert stored.run.fingerprint == recipe().run.fingerprint
    assert stored.overrides == {"lr_points": "a study of minutes"}
    assert stored.to_toml() == written.read_text()
    assert digest(stored.content()) == stored.sha256
    assert datetime.fromisoformat(stored.sealed_at).utcoffset() is not None


def test_a_study_names_its_recipe(written: Path) -> None:
    assert read(str(written.parent)) == read(str(written))


def test_the_forecast_lies_beside_it(written: Path) -> None:
    content = json.loads((written.parent / "forecast.json").read_text())
    assert content["sha256"] == read(str(written)).sha256
    assert content["loss"] == 1.298


@given(st.floats(0.5, 10, exclude_min=True))
def test_every_float_survives(loss: float) -> None:
    import tomllib

    one = recipe(loss)
    content = tomllib.loads(one.to_toml())
    assert content.pop("seal") == {"sha256": one.sha256}
    assert digest(content) == one.sha256


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lr = 0.0055", "lr = 0.0056"),
        ("high = 1.348", "high = 1.4"),
        ("seed = 0", "seed = 1"),
        ("overridden = true", "overridden = false"),
        ('profile = "production"', 'profile = "Production"'),
        ('profile = "production"', "profile = 2026-11-21"),
        ("high = 1.348", "high = inf"),
        ("[seal]", "[another]"),
    ],
)
def test_an_edit_by_hand_is_refused(written: Path, old: str, new: str) -> None:
    text = written.read_text()
    assert text.count(old) >= 1
    written.write_text(text.replace(old, new, 1))
    with pytest.raises(
        ConfigError, match=r"as it was sealed.*edited: restore it, or delete it and run `froude promote`"
    ):
        read(str(written))


def test_comments_and_layout_are_not_sealed(written: Path) -> None:
    written.write_text("# a note\n\n" + written.read_text())
    assert read(str(written)).run.name == "large"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("froude = [", "valid TOML"),
        ('froude = "study"\nschema = 1\n', "of schema 1"),
        ('froude = "recipe"\nschema = 99\n', "schema = 99"),
    ],
)
def test_what_is_no_recipe_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "recipe.toml").write_text(content)
    with pytest.raises(ConfigError, match=re.escape(message)):
        read(str(tmp_path / "recipe.toml"))


def test_a_missing_recipe_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="froude promote"):
        read(str(tmp_path / "recipe.toml"))


def test_a_forecast_survives_toml_and_json() -> None:
    assert Forecast.from_dict(json.loads(json.dumps(FORECAST.to_dict()))) == FORECAST
    bare = Forecast.from_dict({k: v for k, v in FORECAST.to_dict().items() if k != "free_loss"})
    assert math.isnan(bare.free_loss)
    assert "free_loss" not in bare.to_dict()


def test_a_forecast_lies_in_its_interval() -> None:
    with pytest.raises(ConfigError, match="must lie in its interval"):
        Forecast(1.5, 1.2, 1.4, 0.9, False, "ok", (), 1.4)


@pytest.mark.parametrize(
    ("actual", "inside", "error", "better"),
    [(1.280, True, 0.0140625, True), (1.36, False, -0.0455882, False), (1.251, True, 0.037569, True)],
)
def test_score(actual: float, inside: bool, error: float, better: bool) -> None:
    got = score(FORECAST, actual)
    assert (got.loss, got.inside, got.better_than_naive) == (actual, inside, better)
    assert got.relative_error == pytest.approx(error, abs=1e-6)


@pytest.mark.parametrize("actual", [0.0, -1.0, math.nan, math.inf])
def test_no_score_without_a_loss(actual: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        score(FORECAST, actual)


def test_another_recipes_forecast_beside_it_is_written_anew(written: Path) -> None:
    """As `froude train` finds it after a promotion that was killed between the two files."""
    beside, kept = written.parent / "forecast.json", read(str(written))
    for left in (recipe(1.3).forecast_json(), b""):
        beside.write_bytes(left)
        kept.restore_forecast(Location.parse(written))
        assert beside.read_bytes() == kept.forecast_json()
    beside.unlink()
    kept.restore_forecast(Location.parse(written))
    assert beside.read_bytes() == kept.forecast_json()
