"""Tables that would mislead a law or the gate without a word: what is certified, refused or said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from froude.cli import main
from froude.config import ConfigError, Run
from froude.promote.case import Case
from froude.promote.checks.rates import nearest_diverged
from froude.promote.checks.rows import unfinished
from froude.promote.fits import Fits, fit
from froude.promote.imported_runs.history import as_planned, best, doubts, make_study, rates, unnamed_data
from froude.promote.imported_runs.reading import reading
from froude.promote.planner.candidates import candidates, warmup
from froude.report.narrative import notes, subject
from froude.report.view import gather
from froude.study import Study

SIZES = {64: 10**7, 128: 4 * 10**7, 256: 16 * 10**7, 384: 36 * 10**7}
RATE = 2.0**-7
TARGET = Run(name="large", batch=768, slots=12, tokens=768 * 1300, model={"width": 192})


def law(params: float, tokens: float) -> float:
    return 1.8 + 400 / params**0.34 + 900 / tokens**0.28


def row(width: int, each: int, **more: Any) -> dict[str, Any]:
    params = SIZES[width]
    told = {
        "params": params,
        "tokens": each * params,
        "width": width,
        "loss": law(params, each * params),
        "seed": 0,
    }
    return told | more


def made(tmp_path: Path, rows: list[dict[str, Any]], target: Run | None = None) -> Study:
    pl.DataFrame(rows, infer_schema_length=None).write_parquet(tmp_path / "runs.parquet")
    return make_study(str(tmp_path / "runs.parquet"), str(tmp_path / "study"), target=target)


def counted(study: Study) -> pl.DataFrame:
    return study.trials().collect()


def certified(fits: Fits) -> bool:
    return fits.predict(params=10**9, tokens=2 * 10**10).certified


LADDER = [row(width, each, corpus="web") for width in SIZES for each in (10, 20, 40, 80)]


@pytest.mark.parametrize("name", ["lr", "schedule"])
def test_an_empty_cell_does_not_make_other_settings(name: str, tmp_path: Path) -> None:
    value = {"lr": 0.003, "schedule": "wsd"}[name]
    seeds = [row(64, 10, **{name: value}, seed=seed, loss=3.0 + seed / 100) for seed in range(3)]
    seeds[1][name] = None
    study = made(tmp_path, seeds)
    assert best(counted(study))["seed"].to_list() == [0, 1, 2]
    assert best(counted(study)).columns == counted(study).columns
    assert not reading(study).warnings


def test_runs_that_only_an_empty_cell_tells_apart_are_not_certified(tmp_path: Path) -> None:
    rows = [row(64, 10, lr=lr, loss=3.0 + n / 100) for n, lr in enumerate((0.003, None))]
    assert "does not say how several runs" in doubts(counted(made(tmp_path, rows)))[0]


def test_an_empty_cell_among_several_values_is_pointed_out(tmp_path: Path) -> None:
    rows = [row(64, 10, lr=lr, run=f"r{n}") for n, lr in enumerate((0.003, None, 0.006))]
    (warning,) = reading(made(tmp_path, rows)).warnings
    assert "run 'r1' does not say its lr" in warning


def test_a_ladder_of_two_corpora_is_not_certified(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    assert certified(fit(made(tmp_path / "one", LADDER)))
    easier = [
        {**each, "corpus": "code", "loss": 0.95 * each["loss"]} for each in LADDER if each["width"] > 128
    ]
    fits = fit(made(tmp_path, [*LADDER, *easier]))
    assert not certified(fits)
    assert any("more than one data source (code, web)" in doubt for doubt in fits.doubts)


def test_a_setting_that_mostly_diverges_is_passed_over(tmp_path: Path) -> None:
    steady = [{**each, "lr": 1e-3, "seed": seed} for each in LADDER for seed in range(3)]
    lucky = [
        {**each, "lr": 3e-3, "seed": seed, "loss": 0.97 * each["loss"] if seed == 0 else None}
        for each in LADDER
        for seed in range(3)
    ]
    rows = best(counted(made(tmp_path, [*steady, *lucky])))
    assert rows["lr"].unique().to_list() == [1e-3]
    assert rows.height == len(steady)


def test_points_of_survivors_alone_are_not_certified(tmp_path: Path) -> None:
    lost = [{**LADDER[-1], "seed": seed, "loss": None} for seed in (1, 2)]
    fits = fit(made(tmp_path, [*LADDER, *lost]))
    assert not certified(fits)
    (doubt,) = fits.doubts
    assert doubt.startswith("at 1 size and horizon (e.g. params 3.6e+08, tokens 2.88e+10) at least half")


def test_a_diverged_run_counts_where_it_was_to_end(tmp_path: Path) -> None:
    lost = [{**LADDER[-1], "seed": seed, "loss": None, "tokens": 3 * SIZES[384]} for seed in (1, 2)]
    fits = fit(made(tmp_path, [*LADDER, *lost]))
    (doubt,) = fits.doubts
    assert doubt.startswith("at 1 size and horizon (e.g. params 3.6e+08, tokens 3.6e+09) at least half")
    assert not certified(fits)


def test_a_rate_that_diverged_early_is_one_of_its_curve() -> None:
    told = {"params": 100, "width": 8, "status": "finished", "tokens": 1000}
    more = [{"status": "diverged", "tokens": 200}, {"status": "diverged", "tokens": 1010}, {"tokens": 200}]
    more += [{"status": "diverged", "tokens": 200, "batch": 8}, {"status": "diverged", "tokens": 2000}]
    rows = pl.DataFrame([told, *(told | each for each in more)], schema_overrides={"batch": pl.Int64})
    rows = rows.with_columns(batch=rows["batch"] if "batch" in rows.columns else pl.lit(None, pl.Int64))
    assert as_planned(rows.drop_nulls("tokens"))["tokens"].to_list() == [1000, 200, 1000, 200, 200, 2000]
    assert as_planned(rows.filter(pl.col("tokens") != 200, status="finished")).height == 1
    planned = as_planned(rows.filter((pl.col("status") == "diverged") | (pl.col("tokens") == 1000)))
    assert planned["tokens"].to_list() == [1000, 1000, 1000, 200, 2000]


def test_a_point_at_which_every_run_diverged_is_not_offered(tmp_path: Path) -> None:
    lost = [{**each, "loss": None} if each is LADDER[-1] else each for each in LADDER]
    rows = best(counted(made(tmp_path, lost)))
    assert rows.filter(status="diverged").height == 1
    offered = candidates(rows, 1e9, 1e11, 2.0, None, trust=False)
    assert offered.filter(params=SIZES[384], tokens=80 * SIZES[384]).is_empty()
    assert offered.filter(params=SIZES[384], tokens=40 * SIZES[384]).height == 1


@pytest.mark.parametrize(
    ("schedule", "share", "believed"),
    [
        ("cosine", None, False),
        ("Linear", 1.0, False),
        ("wsd", None, False),
        ("wsd", 0.2, True),
        ("cosine", 0.2, False),  # what a dump of settings says, and no cosine has
        ("constant_with_warmup", None, True),
        ("inverse-sqrt", None, True),
        (None, None, True),
    ],
)
def test_checkpoints_of_a_falling_rate_are_no_ends_of_runs(
    schedule: str | None, share: float | None, believed: bool, tmp_path: Path
) -> None:
    more = {"schedule": schedule, "decay_fraction": share}
    fits = fit(made(tmp_path, [{**each, "run": f"w{each['width']}", **more} for each in LADDER]))
    assert certified(fits) == believed
    assert [doubt for doubt in fits.doubts if "12 of these, e.g. run 'w128'" in doubt] == [*fits.doubts]
    assert len(fits.doubts) == (not believed)


def test_ends_of_runs_under_a_cosine_are_certified(tmp_path: Path) -> None:
    rows = [{**each, "run": f"r{n}", "schedule": "cosine"} for n, each in enumerate(LADDER)]
    assert certified(fit(made(tmp_path, rows)))


@pytest.mark.parametrize("how", [{"loss": None}, {"status": "running"}])
def test_a_largest_size_of_which_nothing_finished_is_named(tmp_path: Path, how: dict[str, Any]) -> None:
    rows = [{**each, "status": "finished"} for each in LADDER]
    more = [{**each, **how} for each in rows if each["width"] == 384]
    study = made(tmp_path, [*rows[:-4], *more])
    assert len(unfinished(study, counted(study))) == 4
    assert (
        unfinished(
            study, counted(study).vstack(counted(study).tail(1).with_columns(status=pl.lit("finished")))
        )
        == []
    )


def swept(widths: tuple[int, ...] = (64, 128, 256), each: int = 20, **more: Any) -> list[dict[str, Any]]:
    """Rates a factor of √2 apart around a best one that falls with width, as under SP; the highest diverge."""
    found = []
    for width in widths:
        for step in range(-5, 5):
            told = row(
                width,
                each,
                tokens=each * 10**8,
                lr=RATE * 64 / width * 2 ** (step / 2),
                batch=768,
                run=f"{width} {each} {step} {more}",
            )
            found.append(told | {"loss": None if step == 4 else told["loss"] + 0.02 * step**2} | more)
    return found


def test_a_rate_that_diverged_is_held_against_the_best_of_its_own_width(tmp_path: Path) -> None:
    target = TARGET.replace({"parametrization": "sp", "model.width": 1024})
    study = made(tmp_path, swept(schedule="wsd"), target)
    case = Case(study, fit(study), None, {})
    assert nearest_diverged(case) == pytest.approx(4.0, rel=0.02)


def test_rates_at_a_second_horizon_tell_a_drift_and_checkpoints_do_not(tmp_path: Path) -> None:
    rows = counted(made(tmp_path, [*swept(), *swept(each=5)]))
    here, others = rates(rows, "sp")
    assert set(here["tokens"]) == {20 * 10**8}
    assert others.height == here.height == 30
    same = [{**each, "run": " ".join(each["run"].split()[::2][:2])} for each in [*swept(), *swept(each=5)]]
    (tmp_path / "same").mkdir()
    assert rates(counted(made(tmp_path / "same", same)), "sp")[1].is_empty()


def test_rates_are_of_the_targets_optimizer_where_some_are(tmp_path: Path) -> None:
    both = [*swept(optimizer="AdamW"), *swept(optimizer="lion", seed=1)]
    rows = counted(made(tmp_path, both))
    assert set(rates(rows, "sp", TARGET)[0]["optimizer"]) == {"AdamW"}
    assert set(rates(rows, "sp", TARGET.replace({"optimizer.name": "muon"}))[0]["optimizer"]) == {
        "AdamW",
        "lion",
    }


def test_a_header_that_names_a_column_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("params,tokens,loss,loss\n10,20,3,4\n")
    with pytest.raises(ConfigError, match="header has the column 'loss' twice"):
        make_study(str(tmp_path / "runs.csv"), str(tmp_path / "study"))
    assert not (tmp_path / "study").exists()


def test_tokens_in_millions_are_pointed_out(tmp_path: Path) -> None:
    small = [{**each, "tokens": each["tokens"] // 1000} for each in LADDER]
    assert any("0.08 tokens per parameter" in said for said in reading(made(tmp_path, small)).warnings)


@pytest.mark.parametrize(
    ("unit", "warned"), [(1.0, False), (1.3, False), (4.0, False), (1e-15, True), (1e-3, True), (1e3, True)]
)
def test_flops_in_another_unit_are_pointed_out(unit: float, warned: bool, tmp_path: Path) -> None:
    rows = [{**each, "flops": unit * 6.0 * each["params"] * each["tokens"]} for each in LADDER]
    rows += [{**row(64, 15), "flops": None}] * (not warned)
    assert any(said.startswith("flops are") for said in reading(made(tmp_path, rows)).warnings) == warned


@pytest.mark.parametrize(("tokens", "warned"), [(1, False), (1024, True)])
def test_losses_that_are_no_nats_per_token_are_pointed_out(tokens: int, warned: bool, tmp_path: Path) -> None:
    rows = [{**each, "loss": tokens * each["loss"]} for each in LADDER]
    assert (
        any(said.startswith("no loss is below") for said in reading(made(tmp_path, rows)).warnings) == warned
    )


def test_the_data_that_froude_would_train_on_are_named_where_the_target_names_none() -> None:
    assert "KingJames" in unnamed_data({"history": {}}, TARGET)
    assert not unnamed_data({"loss_law": {}}, TARGET)
    assert not unnamed_data({"history": {}}, TARGET.replace({"data.source": "mine:Web"}))


@pytest.mark.parametrize("named", [False, True])
def test_the_report_of_a_table_names_no_data_that_nobody_used(named: bool, tmp_path: Path) -> None:
    target = TARGET.replace({"data.source": "mine:Web"}) if named else TARGET
    view = gather(made(tmp_path, LADDER, target))
    assert subject(view) == "Runs that froude did not train, from runs.parquet."
    said = [note.words for note in notes(view) if note.title == "Data not named"]
    assert [words.startswith("The target names none") for words in said] == [True] * (not named)


def test_the_report_tells_the_doubts_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = made(tmp_path, [*LADDER, {**LADDER[0], "loss": 3.0, "seed": 0}])
    assert main(["report", str(study.location)]) == 0
    capsys.readouterr()
    assert "No forecast from these rows is certified" in (tmp_path / "study" / "report.html").read_text()


def test_a_proxys_warmup_keeps_its_share_of_the_run_unless_the_ladder_shares_one() -> None:
    run = Run(name="proxy", batch=64, tokens=6400, schedule={"warmup_tokens": 640})
    told = {"status": ["finished"] * 2, "tokens": [6400, 12_800]}
    assert warmup(pl.DataFrame({**told, "warmup_tokens": [640, 1280]}), run, 25_600) == 2560
    assert warmup(pl.DataFrame({**told, "warmup_tokens": [640, 640]}), run, 25_600) == 640


def test_the_order_of_many_rows_moves_no_forecast(tmp_path: Path) -> None:
    rng, rows = np.random.default_rng(0), []
    for number in range(100):
        params = 10 ** rng.uniform(7, 9)
        for part in range(1, 11):
            tokens = 5 * part * params
            loss = law(params, tokens) * float(np.exp(0.003 * rng.standard_normal()))
            rows.append({"run": f"r{number}", "params": int(params), "tokens": int(tokens), "loss": loss})
    found = []
    for order in (np.arange(len(rows)), rng.permutation(len(rows))):
        place = tmp_path / str(len(found))
        place.mkdir()
        told = fit(made(place, [rows[i] for i in order])).predict(params=10**10, tokens=2 * 10**11)
        found.append((told.loss, told.low, told.high))
    assert found[0] == pytest.approx(found[1], rel=1e-6)
