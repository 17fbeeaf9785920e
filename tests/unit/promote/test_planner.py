"""The next runs of a study: ranked, chosen within a budget, written as a space that joins the study."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from small_study import law

from froude.cli import main
from froude.cli.plan import _template
from froude.config import ConfigError, Run
from froude.launch.sweep import open_study
from froude.laws import loss_law
from froude.laws.loss import calibration
from froude.promote.fits import fit, fit_trials
from froude.promote.planner.candidates import _widths
from froude.promote.planner.next_runs import NextRuns, next_runs, short
from froude.promote.planner.next_space import space_source
from froude.space import load_space
from froude.store import Location
from froude.study import Study
from froude.sweep import trial_store

pytestmark = pytest.mark.slow

LARGE = {"params": 26 * 192.0**2, "tokens": 768 * 1300.0}


@pytest.fixture(scope="module")
def planned(small_study: Path) -> NextRuns:
    return next_runs(fit(Study(small_study)), **LARGE, budget=3e6)


def test_candidates_are_ranked_by_worth_for_cost(planned: NextRuns) -> None:
    ranked = planned.ranked
    assert planned.sought == "shrink"
    assert ranked["value"].is_sorted(descending=True)
    assert ranked["shrink"].is_between(0, 1).all()
    assert (ranked["value"] - ranked["shrink"] / ranked["tokens"]).abs().max() == pytest.approx(0)
    assert (ranked["flops"] < 6 * LARGE["params"] * LARGE["tokens"]).all()
    assert ranked["params"].max() <= 2 * 26 * 96**2 * 1.001
    assert ranked["tokens"].max() <= LARGE["tokens"]


def test_repeats_are_other_seeds(planned: NextRuns) -> None:
    tried = planned.ranked.filter(pl.col("params") == 26 * 96**2, pl.col("tokens") == 768 * 972)
    assert tried["seed"].to_list() == [2]  # the study has seeds 0 and 1 there
    new = planned.ranked.filter(pl.col("tokens") > 768 * 972)
    assert set(new["seed"]) == {0}


def test_runs_that_diverged_are_not_offered_again(small_study: Path) -> None:
    fits = fit(Study(small_study))
    rows = fits.rows["loss_law"]
    here = (pl.col("params") == 26 * 96**2) & (pl.col("tokens") == 768 * 972)
    for which, seeds in ((here, []), (here & (pl.col("seed") == 1), [2])):
        status = pl.when(which).then(pl.lit("diverged")).otherwise("status")
        changed = {**fits.rows, "loss_law": rows.with_columns(status=status)}
        ranked = next_runs(replace(fits, rows=changed), **LARGE).ranked
        assert ranked.filter(here)["seed"].to_list() == seeds


def test_the_set_keeps_to_the_budget_and_names_no_run_twice(planned: NextRuns) -> None:
    assert planned.chosen.height >= 2
    assert planned.chosen["cost"].sum() <= 3e6
    assert not planned.chosen.select("params", "tokens", "seed").is_duplicated().any()
    assert planned.after < planned.forecast.half_width
    # What a run adds is worth less after those before it, and together they give what is promised.
    alone = planned.ranked.filter(pl.col("shrink") == pl.col("shrink").max())["shrink"][0]
    assert planned.chosen["shrink"].max() <= alone
    assert planned.after == pytest.approx(
        planned.forecast.half_width * math.prod(1 - planned.chosen["shrink"]), rel=0.02
    )


def test_the_gates_failing_checks_are_named(planned: NextRuns) -> None:
    assert "forecast_certified" in planned.failing
    assert "`froude promote` makes all of them" in planned.paragraph()
    assert "forecast_certified" in planned.paragraph()
    far = next_runs_far(planned)
    assert far == {"extrapolation_params", "extrapolation_tokens", "extrapolation_compute"}


def next_runs_far(planned: NextRuns) -> set[str]:
    from froude.promote.gate import PRODUCTION
    from froude.promote.planner.bounds import failing_checks

    grown = dict.fromkeys(planned.forecast.extrapolation, 1e4)
    forecast = planned.forecast.__class__(**{**planned.forecast.__dict__, "extrapolation": grown})
    failing, beyond = failing_checks(forecast, PRODUCTION)
    assert beyond
    return {name for name in failing if name.startswith("extrapolation")}


def test_beyond_the_bounds_runs_are_ranked_by_what_brings_the_target_nearer(small_study: Path) -> None:
    found = next_runs(fit(Study(small_study)), params=26 * 96**2 * 50.0, tokens=768 * 9720.0, budget=1e7)
    assert found.sought == "closes"
    assert set(found.failing) >= {"extrapolation_params", "extrapolation_compute"}
    first = found.chosen.row(0, named=True)
    assert first["closes"] == pytest.approx(found.ranked["closes"].max())
    assert first["params"] > 2 * 26 * 96**2
    assert "bounds on extrapolation" in found.paragraph()


def test_widths_on_offer_are_whole_heads_whatever_was_tried() -> None:
    template = Run(model={"width": 128, "head_dim": 32}, tokens=7680)
    widths = [width for _, width in _widths(template, {48, 96, 160}, 0.0, 3e6, trust=False)]
    assert {96, 160} <= set(widths)
    assert not any(width % 32 for width in widths if width)


def test_a_set_begins_with_the_larger_runs_that_a_certificate_lacks(
    small_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "NEEDED", 9)  # this study has four
    fits = fit(Study(small_study))
    found = next_runs(fits, **LARGE, budget=1e8)
    have, needed, beyond = found.held_out
    assert needed == 9
    assert 0 < have < needed
    first = found.chosen.head(needed - have)
    assert (first["flops"] > beyond).all()
    assert f"asks for 9 held-out larger runs, those of more than {short(beyond)} FLOPs" in found.paragraph()
    # With those runs, wherever their losses fall on the law, so many are held out.
    rows = fits.rows["loss_law"].select("params", "tokens", "loss", "trial")
    new = (
        first.select("params", "tokens", "seed")
        .with_row_index("trial")
        .with_columns(
            loss=pl.struct("params", "tokens").map_elements(lambda x: law(**x), pl.Float64),
            trial=pl.format("new-{}", "trial"),
        )
    )
    more = pl.concat([rows.cast({"params": pl.Float64, "tokens": pl.Float64}), new.select(rows.columns)])
    assert loss_law(more, groups="trial").held_out().runs >= needed
    # A seed more of the largest run that all splits are fitted to is no evidence.
    edge = rows.filter(6.0 * pl.col("params") * pl.col("tokens") <= beyond).sort(
        pl.col("params") * pl.col("tokens")
    )[-1:]
    again = pl.concat([rows, *(edge.with_columns(trial=pl.lit(f"again-{i}")) for i in range(3))])
    assert loss_law(again, groups="trial").held_out().runs == have
    # A budget that is too small for one is spent on what narrows.
    dear = found.ranked.filter(pl.col("flops") > beyond)["cost"].min()
    assert (next_runs(fits, **LARGE, budget=dear - 1).chosen["flops"] <= beyond).all()


def test_a_set_ends_where_the_interval_is_as_narrow_as_asked(small_study: Path, planned: NextRuns) -> None:
    fits = fit(Study(small_study))
    now = planned.forecast.half_width
    enough = (now + planned.after) / 2
    found = next_runs(fits, **LARGE, budget=3e6, enough=enough)
    assert 0 < found.chosen.height < planned.chosen.height
    assert found.after <= enough
    assert next_runs(fits, **LARGE, enough=enough).after <= enough  # without a budget, too
    none = next_runs(fits, **LARGE, enough=2 * now)
    assert none.chosen.height == 0
    assert "no run is needed" in none.paragraph()


def test_the_weakest_link_is_named(planned: NextRuns) -> None:
    assert sum(planned.shares.values()) == pytest.approx(1)
    assert "Of the forecast's variance" in planned.paragraph()
    assert planned.to_dict(1)["variance"] == planned.shares


def test_costs_may_be_flops(small_study: Path) -> None:
    found = next_runs(fit(Study(small_study)), **LARGE, unit="flops")
    assert (found.ranked["cost"] == found.ranked["flops"]).all()
    assert found.chosen.height == 1


@pytest.mark.parametrize("far", [1.0, 60.0])
def test_runs_on_offer_are_taken_once_each(small_study: Path, far: float) -> None:
    fits = fit(Study(small_study))
    here = [(26 * 64**2, 768 * 400.0), *[(26 * 144**2, 768 * 1300.0)] * 2]
    offers = pl.DataFrame(here, schema=["params", "tokens"], orient="row").with_row_index("id")
    target = {**LARGE, "tokens": LARGE["tokens"] * far}  # far: beyond the gate's bounds
    found = next_runs(fits, **target, budget=1e8, offers=offers)
    assert found.sought == ("shrink" if far == 1.0 else "closes")
    assert found.ranked.height == 3
    assert found.chosen.height
    assert found.chosen["id"].is_unique().all()
    assert "seed" not in found.lines(3)[0]
    with pytest.raises(ConfigError, match="none of the runs on offer"):
        next_runs(fits, **target, offers=offers.with_columns(params=1e9))


def test_what_cannot_be_planned_is_refused(small_study: Path) -> None:
    study = Study(small_study)
    trials, stages = study.trials().collect(), study.meta["stages"]
    target = fit(study).target
    none = fit_trials(trials.filter(pl.col("stage") != "law"), stages=stages, target=target)
    with pytest.raises(ConfigError, match="begin with a few sizes"):
        next_runs(none, **LARGE)
    few = fit_trials(trials.filter(pl.col("stage") == "law").head(3), stages=stages, target=target)
    with pytest.raises(ConfigError, match="too_few_points"):
        next_runs(few, **LARGE)
    with pytest.raises(ConfigError, match="cost less"):
        next_runs(fit(study), params=1e3, tokens=1e4)


def test_the_written_space_joins_the_study(
    tmp_path: Path, study_factory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = study_factory(tmp_path / "study")
    file = tmp_path / "next.py"
    arguments = ["plan", "--next", str(folder), "--budget", "3e6", "--write", str(file), "--json"]
    assert main(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["space"] == str(file)
    space = load_space(file)
    trials = space.planned()["next1"]
    assert sum(trial.tokens for trial in trials) == sum(row["tokens"] for row in said["chosen"]) <= 3e6
    assert all(row["seed"] == 0 for row in said["ranked"] if row["width"] not in (32, 48, 64, 96))
    # Sizes are those of real models of the template's shape.
    assert {trial.runs[0].model.width for trial in trials} == {row["width"] for row in said["chosen"]}
    before = Study(folder).meta["stages"]
    for _ in range(2):
        agenda = open_study(space, Location.parse(folder), trust=False, fresh=False)
        assert len(agenda.left()) == len(trials)
    after = Study(folder).meta["stages"]
    assert all(before[name].items() <= after[name].items() for name in before)
    assert after["next1"]["role"] == "loss_law"

    trial = trials[0]
    row = trial_store.read(Location.parse(folder), "w96-s0").rows.to_pylist()[-1]
    run = trial.runs[0]
    mine = {"run": run.name, "trial": trial.name, "stage": "next1", "loss": 1.3, "seed": run.seed}
    trial_store.write(Location.parse(folder), trial, trials=[{**row, **mine, "fingerprint": run.fingerprint}])
    assert "next1" in fit(Study(folder)).rows["loss_law"]["stage"].to_list()
    # The study's own space can be swept again; the stage stays.
    assert main(arguments) == 2
    assert "new Python file" in capsys.readouterr().err


def test_a_space_needs_to_know_the_whole_run(small_study: Path, planned: NextRuns) -> None:
    study = Study(small_study)
    imported = study.meta | {"stages": {"history": {"role": "history"}}}
    for meta, message in ((imported, "made of a table"), (study.meta, "the size of every width")):
        with pytest.raises(ConfigError, match=message):
            space_source(planned, template=None, fits=fit(study), meta=meta, study="s", file="f")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "neither"),
        (["a.py", "--next", "b"], "both"),
        (["a.py", "--budget", "1e6"], "--next"),
        (["--next", "STUDY", "--target", "params=1"], "tokens is missing"),
        (["--next", "STUDY", "--target", "params=x,tokens=1"], "positive number"),
        (["--next", "STUDY", "--target", "parms=1,tokens=1"], "did you mean params"),
        (["--next", "STUDY", "--write", "next.txt"], "new Python file"),
        (["--next", "STUDY", "--budget", "0"], "above 0"),
        (["--next", "STUDY", "--until", "0"], "part of the loss, such as 0.01"),
        (["--next", "nowhere"], "froude sweep"),
    ],
)
def test_bad_options(
    arguments: list[str], words: str, small_study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *(str(small_study) if a == "STUDY" else a for a in arguments)]) == 2
    assert words in capsys.readouterr().err


def test_a_budget_that_buys_nothing_is_said_without_a_set(
    small_study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--next", str(small_study), "--budget", "10"]) == 0
    out = capsys.readouterr().out
    assert "set of" not in out
    assert "Within 10 tokens no candidate" in " ".join(out.split())


def test_json_has_what_belongs_beside_a_forecast(
    small_study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--next", str(small_study), "--json"]) == 0
    own = json.loads(capsys.readouterr().out)
    assert {"naive", "comparator", "compute_line", "noise", "proxies_over_target"} <= own["forecast"].keys()
    assert own["variance"].keys() == {"law", "reach", "noise", "rate"}
    to = ["--target", "params=1e6,tokens=1e6", "--json"]
    assert main(["plan", "--next", str(small_study), *to]) == 0
    other = json.loads(capsys.readouterr().out)
    assert other["forecast"]["proxies_over_target"] > 0
    assert "rate" not in other


def test_a_told_size_is_of_one_width(small_study: Path) -> None:
    study = Study(small_study)
    fits = replace(fit(study), rows={})
    assert _template(study, fits) is not None
    told = fits.target.replace(
        {"workers": 1, "trainer.command": ("train",), "trainer.params": 1000}, name="large"
    )
    assert _template(study, replace(fits, large=told)) is None


def test_the_table_is_for_people(small_study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--next", str(small_study), "--budget", "2e6", "--top", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["next", "params", "tokens"]
    assert "e+" not in lines[1]
    assert [line.split()[0] for line in lines[1:4]] == ["1", "2", "3"]
    assert any(line.startswith("set of") for line in lines)
    assert any(line.startswith("The forecast for") for line in lines)
    beside = " ".join(" ".join(lines).split())
    assert "reach params 4×, tokens 1.34×, compute 5.36× the largest proxy; all proxies cost " in beside
    assert "others the largest proxy's loss " in beside
    assert "published exponents " in beside
    assert "noise " in beside
    assert max(map(len, lines)) <= 110


def test_no_runs_are_bought_for_a_certificate_that_they_cannot_earn(
    small_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "NEEDED", 9)
    fits = fit(Study(small_study))
    sound = next_runs(fits, **LARGE, budget=1e8)
    doubted = next_runs(replace(fits, doubts=("the target's schedule is cosine",)), **LARGE, budget=1e8)
    assert doubted.chosen.height < sound.chosen.height or not doubted.chosen.equals(sound.chosen)
    assert "a set begins with the missing ones" in sound.paragraph()
    assert "a set begins with the missing ones" not in doubted.paragraph()
