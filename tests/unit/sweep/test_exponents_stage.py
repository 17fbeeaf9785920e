"""The stage that moves one setting at a time: what its trials hold, which rates come second, and what it refuses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from played_sweep import play

from froude import laws
from froude.config import ConfigError, Run
from froude.laws.lr.exponents import settings
from froude.space import Exponents, Space, load_space
from froude.space.exponents import decay
from froude.sweep.agenda import Agenda

BASE = Run(batch=768, tokens=768 * 64, schedule={"warmup_tokens": 768 * 6}, seed=3)


def loss(run: Run) -> float:
    """The best rate at the base is 5.5e-3, rises with the root of the batch and stays over tokens."""
    u = math.log2(run.optimizer.lr / 5.5e-3) - 0.5 * math.log2(run.batch / 768)
    timescale = run.batch / (run.optimizer.lr * run.optimizer.weight_decay * run.tokens)
    half_life = run.batch * math.log(0.5) / math.log(run.optimizer.beta2)
    return 3 + 0.04 * u**2 + 0.01 * math.log(timescale / 0.2) ** 2 + 0.01 * math.log(half_life / 10_378) ** 2


def swept(stage: Exponents, of: Any = loss) -> tuple[Agenda, pl.DataFrame]:
    agenda = Agenda(Space("x", 0, (stage,), BASE), {})
    play(agenda, of)
    return agenda, settings(agenda.rows(["e"]))


def test_each_part_moves_one_setting_and_holds_the_others() -> None:
    stage = Exponents("e", BASE)
    agenda, rows = swept(stage)
    assert rows.height == len(stage.planned()) == 162
    assert stage.role == "transfer_exponents"
    near = (pl.col("timescale") / 0.2 - 1).abs() < 1e-9
    horizons = rows.filter(near, batch=768)
    assert horizons.group_by("tokens").agg(pl.col("lr").n_unique()).sort("tokens")["lr"].to_list() == [
        9,
        9,
        9,
    ]
    assert (horizons["warmup_tokens"] / horizons["tokens"]).to_list() == pytest.approx(
        [6 / 64] * horizons.height
    )
    batches = rows.filter(near, pl.col("half_life").is_between(10_378, 10_379), tokens=BASE.tokens)
    middle = batches.group_by("batch").agg(pl.col("lr").unique().sort().get(4)).sort("batch")
    assert middle["lr"].to_list() == pytest.approx([2.75e-3, 5.5e-3, 1.1e-2])
    assert rows["seed"].unique().sort().to_list() == [3, 4]
    found = laws.exponents(rows.with_columns(status=pl.lit("finished")))
    assert found["lr_tokens"].measured.value == pytest.approx(0.0, abs=1e-3)
    assert found["lr_batch"].measured.value == pytest.approx(0.5, abs=1e-3)
    assert agenda.counts() == {"e": (162, 162)}


def test_timescales_and_half_lives_come_second_at_the_best_rates() -> None:
    def higher(run: Run) -> float:
        return loss(run.replace({"optimizer.lr": run.optimizer.lr / 2}))

    stage = Exponents("e", BASE, seeds=1)
    agenda, rows = swept(stage, higher)
    second = rows.filter((pl.col("timescale") / 0.2 - 1).abs() > 0.01)
    assert second["lr"].unique().to_list() == [1.1e-2]
    assert second.group_by("tokens").agg(pl.col("timescale").n_unique())["timescale"].to_list() == [6, 6, 6]
    beta2 = rows.filter((pl.col("half_life") / 10_378.3 - 1).abs() > 0.01)
    assert sorted(beta2["lr"].unique().to_list()) == pytest.approx([5.5e-3, 1.1e-2, 2.2e-2])
    again = Agenda(Space("x", 0, (stage,), BASE), dict(list(agenda.results.items())[:50]))
    play(again, higher, slots=3, seed=1)
    assert {t.name for t in again.stages[0].trials} == {t.name for t in agenda.stages[0].trials}


def test_a_sweep_with_its_best_at_an_end_has_two_more_rates_there() -> None:
    def high(run: Run) -> float:
        return loss(run.replace({"optimizer.lr": run.optimizer.lr / 5}))

    stage = Exponents("e", BASE, batches=(), half_lives=(), timescales=(), seeds=1)
    _, rows = swept(stage, high)
    assert rows.height == 3 * (9 + 2)
    assert rows["lr"].max() == pytest.approx(5.5e-3 * 2**3, rel=1e-3)
    _, lost = swept(stage, lambda run: math.nan)
    assert lost["status"].unique().to_list() == ["diverged"]
    assert lost.height == 3 * 9


def test_a_failed_seed_says_nothing_of_its_rate() -> None:
    def one_fails(run: Run) -> float:
        return -1.0 if run.optimizer.lr == 5.5e-3 and run.seed == 4 else loss(run)

    stage = Exponents("e", BASE, horizons=(1.0,), batches=(), half_lives=(), seeds=2)
    _, rows = swept(stage, one_fails)
    second = rows.filter((pl.col("timescale") / 0.2 - 1).abs() > 0.01)
    assert second["lr"].unique().to_list() == [5.5e-3]


def test_parts_can_be_left_out() -> None:
    only = Exponents("e", BASE, horizons=(), batches=(), half_lives=())
    runs = [trial.runs[0] for trial in only.planned()]
    assert len(runs) == 7 * 2
    assert {(run.optimizer.lr, run.batch, run.tokens) for run in runs} == {(5.5e-3, 768, BASE.tokens)}
    _, rows = swept(only)
    assert rows["timescale"].n_unique() == 7
    assert only.undecided(()) == "rates of the second part; more rates at an edge"


def test_the_base_is_exactly_itself_where_nothing_moves() -> None:
    (run,) = (
        trial.runs[0]
        for trial in Exponents("e", BASE, seeds=1).planned()
        if trial.runs[0].optimizer.lr == 5.5e-3 and trial.name.endswith("d49152-b768-lr0.0055-t1-h1-s3")
    )
    wanted = BASE.replace(
        {"optimizer.weight_decay": decay(lr=5.5e-3, batch=768, tokens=BASE.tokens, timescale=0.2)}
    )
    assert run.fingerprint == wanted.as_proxy().fingerprint
    assert run.optimizer.weight_decay == pytest.approx(768 / (5.5e-3 * 0.2 * 49_152))


def test_the_search_space_is_planned(root: Path) -> None:
    (stage,) = load_space(root / "search_spaces" / "transfer_exponents.py", seed=1).stages
    runs = [trial.runs[0] for trial in stage.planned()]
    assert len(runs) == 324
    assert len({run.tokens for run in runs}) == len({run.batch for run in runs}) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"horizons": (1, 1, 2)}, "`horizons` of stage 'e' must be different positive multiples"),
        ({"batches": (0, 1)}, "`batches` of stage 'e'"),
        ({"rates": (0, 1, 2)}, "`rates` of stage 'e' must have at least 4 values"),
        ({"half_lives": (1, 2)}, "or leave it out with ()"),
        ({"seeds": 0}, "seeds >= 1"),
        ({"horizons": (), "batches": (), "timescales": (), "half_lives": ()}, "every part left out"),
        ({"base": BASE.replace({"optimizer.name": "adam", "optimizer.weight_decay": 0.0})}, "use adamw"),
        ({"base": BASE.replace({"optimizer.beta2": 0.0})}, "`optimizer.beta2` must be above 0"),
        (
            {"base": BASE.replace({"schedule.ramp": [[768 * 32, 2]]})},
            "`schedule.ramp` of stage 'e' must be left out",
        ),
        ({"base": BASE.replace({"optimizer.name": "muon"})}, "muon does not have both"),
        ({"role": "exponents"}, "a stage's role must be one of"),
    ],
)
def test_what_it_cannot_do_is_an_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Exponents(**{"name": "e", "base": BASE, **changes})
    assert message in str(error.value)
