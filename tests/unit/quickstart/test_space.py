"""The quickstart's study: its sizes as measured, and stages that use what the ones before returned."""

import importlib.util
import math

import polars as pl
import pytest
from played_sweep import play, tank

from froude.space import load_space
from froude.sweep.agenda import Agenda


@pytest.fixture(scope="module")
def path(root):
    return root / "search_spaces" / "quickstart.py"


@pytest.fixture(scope="module")
def space(path):
    return load_space(path)


@pytest.fixture(scope="module")
def swept(space):
    agenda = Agenda(space, {})
    play(agenda, tank)
    return agenda


def runs(agenda, stage):
    (found,) = (s for s in agenda.stages if s.spec.name == stage)
    return [run for trial in found.trials for run in trial.runs]


def test_the_plan_has_the_measured_sizes(space):
    planned = space.planned()
    trials = {name: len(found) for name, found in planned.items()}
    assert trials == {"search": 16, "lr_transfer": 25, "critical_batch": 10, "loss_law": 4}
    tokens = {name: sum(trial.tokens for trial in found) / 1e6 for name, found in planned.items()}
    assert tokens["search"] == pytest.approx(2.1, abs=0.05)
    assert tokens["lr_transfer"] == pytest.approx(3.3, abs=0.05)
    assert tokens["loss_law"] == pytest.approx(3.6, abs=0.1)
    assert [r.steps for r in planned["loss_law"][0].runs] == [432, 648, 972]
    target = space.target
    assert (target.model.width, target.steps, target.batch, target.slots, target.workers) == (
        160,
        1000,
        768,
        6,
        (1, 3),
    )
    assert space.stage_table()["critical_batch"]["target_loss"] == 2.2


def test_every_width_and_parametrization_is_covered_and_the_base_width_shared(space):
    cells = [(r.parametrization, r.model.width) for t in space.planned()["lr_transfer"] for r in t.runs]
    assert {cell: cells.count(cell) for cell in cells} == {
        ("mup", 32): 5,
        ("mup", 64): 5,
        ("mup", 128): 5,
        ("sp", 32): 5,
        ("sp", 128): 5,
    }
    assert all(r.model.base_width == 64 for t in space.planned()["lr_transfer"] for r in t.runs)


def test_branches_of_the_batch_ladder_leave_the_trunk_after_its_warmup(space):
    for trial in space.planned()["critical_batch"]:
        warmup = max(10, 12288 // trial.runs[0].batch)
        assert all(
            r.schedule.warmup_tokens == warmup * r.batch and 0.8 * r.steps >= warmup for r in trial.runs
        )
        assert trial.runs[-1].steps >= 2 * 66 * (1 + 475 / trial.runs[0].batch)
        assert trial.stop_loss == 2.2


def test_another_seed_changes_every_run(path, space):
    other = load_space(path, seed=7)
    seeds = {run.seed for found in other.planned().values() for trial in found for run in trial.runs}
    assert seeds | {other.target.seed, other.seed} == {7}


def test_stages_use_what_the_search_returned(swept):
    """The centre of the grids moves to the best quarter's rates, halfway; beta2 is the best trial's."""
    rows = swept.rows(["search"])
    best = rows.filter((pl.col("batch") == 768) & (pl.col("schedule") == "wsd")).sort("loss")
    grid = [
        run for run in runs(swept, "lr_transfer") if run.parametrization == "mup" and run.model.width == 64
    ]
    assert {run.optimizer.beta2 for run in runs(swept, "lr_transfer")} == {best["beta2"][0]}
    quarter = best.head(round(best.height / 4))["lr"].log(2).median()
    centre = sorted(math.log2(run.optimizer.lr) for run in grid)[2]
    assert abs(centre - (quarter - 7.5) / 2) <= 0.125
    assert centre * 4 == pytest.approx(round(centre * 4))


def test_later_stages_train_at_the_pooled_optimum(swept):
    """The tank's optimum is 2^-7.25 under muP at any width, and follows the root of the batch."""
    for run in runs(swept, "loss_law"):
        assert math.log2(run.optimizer.lr) == pytest.approx(-7.25, abs=0.02)
    for run in runs(swept, "critical_batch"):
        octaves = math.log2(run.optimizer.lr) - 0.5 * math.log2(run.batch / 768)
        assert min(abs(octaves + 7.25), abs(octaves + 6.25)) < 0.02
        beta2 = runs(swept, "loss_law")[0].optimizer.beta2
        assert run.optimizer.beta2 == pytest.approx(min(0.99, max(0.9, beta2 ** (run.batch / 768))))


def test_grids_are_extended_where_the_optimum_is_at_their_edge(space):
    """An optimum five octaves higher than expected: each curve gets two more rates above, and only there."""

    def far(run):
        return tank(run.replace({"optimizer.lr": run.optimizer.lr / 2**3}))

    agenda = Agenda(space, {})
    play(agenda, far)
    grid = pl.DataFrame(
        {
            "cell": [f"{r.parametrization}{r.model.width}" for r in runs(agenda, "lr_transfer")],
            "lr": [math.log2(r.optimizer.lr) for r in runs(agenda, "lr_transfer")],
        }
    )
    counts = dict(grid.group_by("cell").len().iter_rows())
    assert set(counts.values()) <= {5, 7}
    assert 7 in counts.values()
    for cell, count in counts.items():
        mine = sorted(grid.filter(pl.col("cell") == cell)["lr"])
        if count == 7:
            assert mine[-1] - mine[2] == pytest.approx(3.0)
    assert agenda.done


def test_a_sweep_whose_trials_all_diverged_still_ends(space):
    agenda = Agenda(space, {})
    play(agenda, lambda run: math.nan)
    assert agenda.done
    assert agenda.with_status("diverged") == len(agenda.results)


def test_the_file_needs_nothing_but_the_package(path):
    spec = importlib.util.spec_from_file_location("anywhere", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.space(3).seed == 3
