"""What a table of other people's runs must say, or have, to be promoted, and what a recipe says where it does not."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from froude.cli import main
from froude.config import ConfigError, Run
from froude.promote import gate
from froude.promote.checks.rows import fewest_seeds
from froude.promote.fits import fit
from froude.promote.imported_runs.history import make_study
from froude.promote.promotion import promote
from froude.report.narrative import subject
from froude.report.tables import stages
from froude.report.text import NOTHING
from froude.report.view import gather

RATE = 2.0**-7
TARGET = Run(name="large", batch=768, slots=12, tokens=768 * 1300, model={"width": 192})


def grid(**more: Any) -> pl.DataFrame:
    """Three sizes and three horizons, at three rates each."""
    rows = [
        {
            "params": 26 * width**2,
            "tokens": 768 * steps,
            "loss": 1.5 + 30 / width + 50 / steps + 0.03 * octaves**2,
            "width": width,
            "lr": RATE * 2.0**octaves,
            "batch": 768,
        }
        for width in (32, 48, 64)
        for steps in (250, 500, 1000)
        for octaves in (-1, 0, 1)
    ]
    return pl.DataFrame([row | more for row in rows])


@pytest.mark.parametrize(
    ("table", "changes", "said"),
    [
        (
            grid(),
            {},
            "lacks search, lr_transfer; map schedule; map parametrization, or set the target's (it has mup",
        ),
        (grid(), {"parametrization": "sp"}, "lacks search; map schedule"),
        (grid(schedule="wsd"), {}, "lacks lr_transfer; map parametrization"),
        (grid(schedule="wsd").drop("width"), {"parametrization": "sp"}, "lacks lr_transfer; map width"),
        (
            grid(schedule="cosine"),
            {"parametrization": "sp"},
            "add finished runs of the target's schedule, wsd,",
        ),
        (
            grid(schedule="wsd").filter(lr=RATE),
            {"parametrization": "sp"},
            "add 3 rates or more of a width, all at one horizon and batch",
        ),
    ],
)
def test_what_a_table_lacks_to_be_promoted_is_named(
    table: pl.DataFrame, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    table.write_parquet(tmp_path / "runs.parquet")
    study = make_study(
        str(tmp_path / "runs.parquet"), str(tmp_path / "study"), target=TARGET.replace(changes)
    )
    with pytest.raises(ConfigError) as error:
        promote(study)
    assert said in str(error.value)
    assert "froude sweep" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "warm", "beta2", "warmup"),
    [
        ({}, 13, "the target's own: the table", "the target's own, 1.0% of the tokens: the table"),
        ({}, 0, "the target's own: the table", "the target has none: the table"),
        ({"beta2": 0.97, "warmup_tokens": 7680}, 0, "best trial", "1.0% of the tokens, the share"),
    ],
)
def test_what_a_table_does_not_tell_is_said_to_be_the_targets_own(
    more: dict[str, Any],
    warm: int,
    beta2: str,
    warmup: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    grid(schedule="wsd", parametrization="mup", **more).write_parquet(tmp_path / "runs.parquet")
    target = TARGET.replace({"schedule.warmup_tokens": 768 * warm})
    study = make_study(str(tmp_path / "runs.parquet"), str(tmp_path / "study"), target=target)
    fits = fit(study)
    assert ("beta2" in fits.lines()[0], "warmup" in fits.lines()[0]) == (bool(more), bool(more))
    for name in ("best", "best_overall"):
        assert ({"beta2", "warmup_tokens"} <= set(fits.summary()[name])) == bool(more)
    with pytest.raises(gate.Refused) as refusal:
        promote(study)
    refused = [check.name for check in refusal.value.checks if check.refuses]
    given = [text for check in refused for text in ("--override", check, "--reason", "a history")]
    assert main(["promote", study.location.url, "--for", "external", *given]) == 0
    said = capsys.readouterr().out
    assert any(beta2 in line for line in said.splitlines() if "knob      optimizer.beta2" in line)
    assert any(warmup in line for line in said.splitlines() if "knob      schedule.warmup_tokens" in line)
    assert ("warning   warmup: none" in said) == (not warm and not more)
    # Nothing of froude's trained these runs, or will train the target, and nobody knows how long they took.
    view = gather(study, fits=fits)
    assert subject(view) == "Runs that froude did not train, from runs.parquet."
    table = stages(view)
    assert table is not None
    assert table.rows[0][-1] == NOTHING


def test_runs_that_do_not_tell_their_seeds_may_have_one() -> None:
    rows = pl.DataFrame({"status": ["finished"] * 3, "params": [1] * 3, "seed": [0, None, 0]})
    assert fewest_seeds(rows, "params") == 1
    assert fewest_seeds(rows.with_columns(seed=pl.lit(None, pl.Int64)), "params") == 1
    assert fewest_seeds(rows.with_columns(seed=pl.Series([0, None, 1])), "params") == 2
