"""What proxies took of compute: a trunk once, what was not trained not at all, over the target's."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from froude import Study, schemas
from froude.config import Run
from froude.promote.fits import fit
from froude.promote.imported_runs.history import make_study
from froude.space import Trial
from froude.sweep.spent import by_trial, proxies_over_target, proxy_flops, run_flops, trained_flops
from froude.sweep.trial_store import Stored
from froude.train.rows import describe
from froude.train.size import size_of
from froude.train.speed.timing import model_size


def test_a_trunk_counts_once_and_what_was_not_trained_not_at_all() -> None:
    # 4 FLOPs a token, batches of 768: a trunk of 80 steps with tails of 10 and 20, and a third branch that the stop at
    # a loss left out; a run of 50 steps that diverged; one that failed.

    def run(name: str, steps: int) -> Run:
        return Run(name=name, batch=768, tokens=768 * steps)

    def stored(name: str, runs: list[Run], trained: int, flops: float | None) -> Stored:
        rows = [
            {"run": run.name, "tokens": run.tokens, "flops": flops and flops * run.tokens}
            for run in runs[:trained]
        ]
        return Stored(Trial(name, tuple(runs), stop_loss=2.0), schemas.table(schemas.TRIALS, rows))

    branches = [run("a", 50), run("b", 100), run("c", 200)]
    trials = [
        stored("branches", branches, 2, 4.0),
        stored("diverged", [run("d", 50)], 1, 4.0),
        stored("failed", [run("e", 50)], 1, None),
    ]
    assert trained_flops(trials) == pytest.approx(4 * 768 * (80 + 10 + 20 + 50))


def test_branches_that_a_command_trains_are_runs_of_their_own() -> None:
    runs = [
        Run(name=name, batch=768, tokens=768 * steps, trainer={"command": ["train"]})
        for name, steps in (("a", 250), ("b", 500), ("c", 1000))
    ]
    trial = Trial("branches", tuple(runs))
    assert (trial.steps, trial.tokens) == (1750, 1750 * 768)
    rows = [
        {
            **describe(run),
            "trial": "branches",
            "status": "finished",
            "flops": 4.0 * run.tokens,
            "trainer": "external",
            "params": 1000,
        }
        for run in runs
    ]
    assert trained_flops([Stored(trial, schemas.table(schemas.TRIALS, rows))]) == 4.0 * 1750 * 768
    found = by_trial(pl.from_dicts(rows).with_columns(stage=pl.lit("law")))
    assert found.select("tokens", "flops").row(0) == (1750 * 768, 4.0 * 1750 * 768)


@pytest.mark.slow
def test_proxies_are_held_against_the_whole_target(small_study: Path) -> None:
    target = fit(Study(small_study)).target
    assert run_flops(target) == pytest.approx(model_size(target)[0] * target.tokens)
    cost = proxies_over_target(Study(small_study), target)
    assert cost == pytest.approx(
        2 * proxies_over_target(Study(small_study), target.replace({"tokens": 2 * target.tokens}))
    )


@pytest.mark.parametrize("told", [False, True])
def test_a_tables_proxies_are_held_against_the_target_as_they_are_counted(told: bool, tmp_path: Path) -> None:
    target = Run(name="large", batch=768, tokens=768 * 100, model={"width": 64})
    flops = ",9e12" if told else ""
    (tmp_path / "runs.csv").write_text(
        f"params,tokens,loss{',flops' * told}\n1e4,1e6,3.1{flops}\n2e4,2e6,2.9{flops}\n"
    )
    study = make_study(str(tmp_path / "runs.csv"), str(tmp_path / "study"), target=target)
    params = size_of(target).params
    expected = 18e12 / run_flops(target) if told else (1e10 + 4e10) / (params * target.tokens)
    assert proxies_over_target(study, target) == pytest.approx(expected)


SIZES, HORIZONS = (2e7, 4e7, 8e7), (4e8, 8e8, 1.6e9)
ALL = 6 * sum(SIZES) * sum(HORIZONS)


@pytest.mark.parametrize(
    ("run", "trial", "share", "expected"),
    [
        ("{n} {d} {s}", None, 0.0, 2 * ALL),
        ("{n} {d} {s}", "seed {s}", 0.0, 2 * ALL),  # whole runs that are resampled together
        ("{n} {d} {s}", "{n}", 0.0, 2 * ALL),
        ("{n} {s}", None, 0.0, 2 * 6 * sum(SIZES) * 1.6e9),  # checkpoints
        ("{n} {s}", "seed {s}", 0.0, 2 * 6 * sum(SIZES) * 1.6e9),
        ("{n} {d} {s}", "{n} {s}", 0.2, 2 * 6 * sum(SIZES) * (1.6e9 + 0.2 * 1.2e9)),  # branches of a trunk
        (
            "{n} {d} {s}",
            "seed {s}",
            0.2,
            2 * 6 * sum(SIZES) * (1.6e9 + 0.2 * 1.2e9),
        ),  # trunks resampled together
        ("{n} {d} {s}", "one", 1.0, 2 * ALL),
    ],
)
def test_a_table_costs_what_its_runs_took_whatever_is_resampled_together(
    run: str, trial: str | None, share: float, expected: float, tmp_path: Path
) -> None:
    rows = [
        {"params": int(n), "tokens": int(d), "seed": s, "loss": 3.0, "decay_fraction": share}
        | {"run": run.format(n=n, d=d, s=s)}
        | ({"trial": trial.format(n=n, s=s)} if trial else {})
        for n in SIZES
        for d in HORIZONS
        for s in (0, 1)
    ]
    pl.DataFrame(rows).write_csv(tmp_path / "runs.csv")
    study = make_study(str(tmp_path / "runs.csv"), str(tmp_path / "study"))
    assert proxy_flops(study) == pytest.approx(expected)


def test_a_trial_that_froude_trained_is_one_trunk_also_in_rows_that_tell_no_tail() -> None:
    rows = [
        {"stage": "law", "trial": "t", "run": f"b{n}", "status": "finished", "tokens": n, "flops": 6.0 * n}
        for n in (100, 200)
    ]
    trials = pl.from_arrow(schemas.table(schemas.TRIALS, rows))
    assert isinstance(trials, pl.DataFrame)
    assert by_trial(trials)["flops"].to_list() == [1200.0]
