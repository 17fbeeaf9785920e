"""Decay as a timescale and beta2 as a half-life: what they come to, what they give way to, where they are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from froude import schedules
from froude.config import ConfigError, Run
from froude.space import Choice, LogUniform, Search, Trial
from froude.train import api
from froude.train.local_critical_batch import _alone
from froude.train.optimizers import build
from froude.train.parallel import World
from froude.train.probe.coordcheck import check, short
from froude.train.rows import describe
from froude.train.trainer import Trainer

SMALL = {"width": 32, "depth": 1, "context": 16, "base_width": 16}
MUON = {"name": "muon", "rest": {"timescale": 0.1}}


def run_of(steps: int = 100, batch: int = 64, **optimizer: Any) -> Run:
    return Run(tokens=batch * steps, batch=batch, eval_windows=16, model=SMALL, optimizer=optimizer)


steps, windows = st.integers(1, 10**6), st.integers(1, 10**4)
rates, shares = st.floats(1e-6, 1.0), st.floats(1e-3, 10.0)


@given(steps, windows, rates, shares)
def test_a_timescale_and_its_decay_are_one_thing(steps: int, windows: int, lr: float, share: float) -> None:
    share = max(share, 1.001 / steps)
    timed = run_of(steps, 16 * windows, lr=lr, timescale=share)
    decay = timed.optimizer.weight_decay
    # Wang & Aitchison 2405.13698: 1 / (rate * decay) steps, over those of the run.
    assert 1 / (lr * decay) / steps == pytest.approx(share)
    plain = run_of(steps, 16 * windows, lr=lr, weight_decay=decay)
    for run in (timed, plain):
        assert describe(run)["timescale"] == pytest.approx(share)
        assert describe(run)["weight_decay"] == decay
    assert timed.fingerprint != plain.fingerprint


@given(windows, st.floats(1.0, 1e12))
def test_a_half_life_in_tokens_gives_beta2_at_any_batch(windows: int, half_life: float) -> None:
    batch = 16 * windows
    run = run_of(batch=batch, beta2_half_life=half_life)
    exact = 0.5 ** (batch / half_life)
    assert run.optimizer.beta2 == min(max(exact, 0.9), 0.9999)
    assert run.optimizer.beta2_clipped == (not 0.9 < exact < 0.9999)
    if not run.optimizer.beta2_clipped:
        assert batch * math.log(0.5) / math.log(run.optimizer.beta2) == pytest.approx(half_life, rel=1e-6)


def test_a_stored_run_has_the_time_and_not_its_number() -> None:
    run = run_of(timescale=0.2, beta2_half_life=1e3).replace({"optimizer.clip": 2.0})
    stored = run.to_dict()["optimizer"]
    assert (stored["timescale"], stored["beta2_half_life"]) == (0.2, 1e3)
    assert not {"weight_decay", "beta2"} & set(stored)
    assert Run.from_toml(run.to_toml()) == run
    longer = run.replace(tokens=2 * run.tokens)
    assert longer.optimizer.weight_decay == run.optimizer.weight_decay / 2
    assert longer.optimizer.beta2 == run.optimizer.beta2
    muon = run_of(**MUON)
    assert Run.from_toml(muon.to_toml()) == muon
    assert not {"timescale", "beta2_half_life", "decay_width", "multipliers"} & set(
        run_of().to_dict()["optimizer"]
    )


def test_the_same_settings_serve_runs_of_other_sizes() -> None:
    settings = run_of(timescale=0.2).optimizer
    for batch in (64, 128):
        found = Run(tokens=64 * 100, batch=batch, model=SMALL, optimizer=settings)
        assert describe(found)["timescale"] == pytest.approx(0.2)
    assert settings.weight_decay == run_of(timescale=0.2).optimizer.weight_decay


def test_a_time_and_its_number_take_each_others_place() -> None:
    run = run_of(weight_decay=0.3)
    timed = run.replace({"optimizer.timescale": 0.5})
    assert timed.optimizer.weight_decay == pytest.approx(1 / (100 * 0.5 * run.optimizer.lr))
    assert timed.replace({"optimizer.weight_decay": 0.3}) == run
    assert run.replace({"optimizer.timescale": 0.0}) == run
    assert (
        timed.pinned().replace(tokens=2 * run.tokens).optimizer.weight_decay == timed.optimizer.weight_decay
    )
    assert run.pinned() == run
    half = run.replace({"optimizer.beta2_half_life": 1e3})
    assert half.replace({"optimizer.beta2": 0.95}) == run
    with pytest.raises(ConfigError, match=r"`optimizer\.timescale` stands for `optimizer\.weight_decay`"):
        run.replace({"optimizer.timescale": 0.5, "optimizer.weight_decay": 0.3})


REFUSED = [
    (
        {"timescale": 0.1, "weight_decay": 0.1},
        "stands for `optimizer.weight_decay`, but got both, 0.1 and 0.1",
    ),
    ({"beta2_half_life": 1e4, "beta2": 0.9}, "stands for `optimizer.beta2`, but got both"),
    (
        {"name": "muon", "rest": {"timescale": 0.1, "weight_decay": 0.1}},
        "`optimizer.rest.timescale` stands for",
    ),
    ({"timescale": 0.009}, "`optimizer.timescale` must be at least a step, 0.01 of the run"),
    (
        {"name": "muon", "rest": {"timescale": 0.009}},
        "`optimizer.rest.timescale` must be at least a step, 0.01 of",
    ),
    ({"timescale": -1.0}, "`optimizer.timescale` must be greater than or equal to 0"),
    ({"name": "muonh", "timescale": 0.1}, "with muonh, which does not decay its matrices"),
    ({"name": "adamh", "decay_width": "inverse"}, "with adamh, which does not decay its matrices"),
    ({"name": "sgd", "timescale": 0.1}, "with sgd, which adds decay to the gradient"),
    ({"name": "adam", "timescale": 0.1}, "with adam, which adds decay to the gradient"),
    ({"name": "rmsprop", "decay_width": "inverse"}, "`optimizer.decay_width` must be left out with rmsprop"),
    ({"name": "sgd", "beta2_half_life": 1e4}, "unlike sgd; leave it out"),
    ({"name": "muon", "beta2_half_life": 1e4}, "unlike muon; set `optimizer.rest.beta2_half_life`"),
    (
        {"name": "muonh", "weight_decay": 0.2},
        "`optimizer.weight_decay` must be left out with muonh, which has none",
    ),
    ({"name": "muon", "beta2": 0.9}, "leave it out, or set that of `optimizer.rest`"),
    ({"name": "lion", "eps": 1e-6}, "`optimizer.eps` must be left out with lion"),
    ({"name": "rmsprop", "beta1": 0.5}, "`optimizer.beta1` must be left out with rmsprop"),
    (
        {"name": "sgd", "beta1": 0.0, "options": {"nesterov": True}},
        "`optimizer.options.nesterov` needs a momentum",
    ),
    ({"name": "ademamix", "options": {"beta3": 1.0}}, "`optimizer.options.beta3` must be at most"),
    ({"name": "shampoo", "options": {"ridge": 0.0}}, "`optimizer.options.ridge` must be at least"),
    ({"lr": 1e-310, "timescale": 0.2}, "`optimizer.timescale` of 0.2 comes to no finite decay"),
    ({"name": "..:x"}, "`optimizer.name` must be"),
    ({"decay_width": "sqrt"}, "`optimizer.decay_width` must be 'constant', 'inverse_sqrt' or 'inverse'"),
]


@pytest.mark.parametrize(("optimizer", "message"), REFUSED)
def test_what_has_no_meaning_is_refused_by_name(optimizer: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        run_of(**optimizer)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("optimizer", "parametrization"),
    [
        ({"name": "sgd"}, "sp"),
        ({"name": "adam", "weight_decay": 0.1}, "sp"),
        ({"name": "adamh"}, "mup"),
        ({"weight_decay": 0.0}, "mup"),
    ],
)
def test_where_nothing_is_forgotten_the_column_is_null(
    optimizer: dict[str, Any], parametrization: str
) -> None:
    run = Run(
        tokens=6400, batch=64, model={"context": 16}, parametrization=parametrization, optimizer=optimizer
    )
    assert describe(run)["timescale"] is None
    assert describe(run)["beta2_half_life"] is None


@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("optimizer", [{"timescale": 0.3}, {"timescale": 0.3, **MUON}])
def test_all_that_decays_does_so_over_the_timescale_at_every_width(
    width: int, optimizer: dict[str, Any]
) -> None:
    run = run_of(**optimizer).replace({"model.width": width})
    groups = build(run, api.build_model(run, "meta"), World()).param_groups
    found = {
        round(1 / (group["peak"] * group["weight_decay"]) / run.steps, 9)
        for group in groups
        if group["weight_decay"]
    }
    assert found == ({0.3, 0.1} if "name" in optimizer else {0.3})


def test_a_run_by_times_has_the_bits_of_one_by_its_numbers() -> None:
    timed = run_of(8, timescale=0.5, beta2_half_life=2e3)
    numbers = {"weight_decay": timed.optimizer.weight_decay, "beta2": timed.optimizer.beta2}
    one, other = Trainer(timed), Trainer(run_of(8, **numbers))
    for step in range(3):
        assert one.step(timed, step).loss == other.step(other.run, step).loss
    ours, theirs = one.snapshot(), other.snapshot()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize(
    "optimizer", [{"timescale": 0.3, "beta2_half_life": 2e3}, {"timescale": 0.3, **MUON}]
)
def test_a_few_steps_of_a_run_decay_as_it_does(optimizer: dict[str, Any]) -> None:
    run = run_of(**optimizer)
    for few in (short(run, 10), _alone(run, 4, 1)):
        assert few.steps != run.steps
        assert few.optimizer.weight_decay == run.optimizer.weight_decay
        assert few.optimizer.rest.weight_decay == run.optimizer.rest.weight_decay
    rows, alone = run.optimizer.by_rows, _alone(run, 4, 1).optimizer
    assert short(run, 10).optimizer.beta2 == run.optimizer.beta2
    assert alone.by_rows.beta2 == rows.beta2**4
    share = 2 * schedules.at_step(run, 1)
    assert (alone.lr, alone.by_rows.lr) == pytest.approx((run.optimizer.lr * share, rows.lr * share))


def test_branches_share_their_trunks_decay() -> None:
    run = run_of(weight_decay=0.1)
    branches = [run.replace(tokens=64 * steps, name=f"b{steps}") for steps in (50, 100)]
    assert len(Trial("t", tuple(branches)).runs) == 2
    timed = [branch.replace({"optimizer.timescale": 0.2}) for branch in branches]
    with pytest.raises(ConfigError, match="branches of a trial share their trunk's decay"):
        Trial("t", tuple(timed))
    half = [branch.replace({"optimizer.beta2_half_life": 1e3}) for branch in branches]
    assert len(Trial("t", tuple(half)).runs) == 2


def test_they_are_axes_of_a_search() -> None:
    axes = {
        "optimizer.timescale": LogUniform(0.05, 1.0),
        "optimizer.beta2_half_life": LogUniform(1e3, 1e6),
        "optimizer.decay_width": Choice(("constant", "inverse_sqrt", "inverse")),
        "optimizer.multipliers.embedding": LogUniform(0.25, 4.0),
        "optimizer.lr": LogUniform(1e-3, 1e-2),
    }
    default = {
        "optimizer.timescale": 0.2,
        "optimizer.beta2_half_life": 1e4,
        "optimizer.decay_width": "constant",
        "optimizer.multipliers.embedding": 1.0,
        "optimizer.lr": 5e-3,
    }
    search = Search("s", run_of(), axes, trials=2, startup=1, default=default)
    (run,) = search.trial(1, {**default, "optimizer.decay_width": "inverse", "optimizer.lr": 1e-2}).runs
    assert describe(run)["timescale"] == pytest.approx(0.2)
    assert (run.optimizer.decay_width, run.optimizer.multipliers) == ("inverse", {"embedding": 1.0})
    with pytest.raises(ConfigError, match="stands for"):
        Search(
            "s",
            run_of(),
            {"optimizer.timescale": LogUniform(0.05, 1.0), "optimizer.weight_decay": LogUniform(0.01, 1.0)},
            trials=2,
            startup=1,
            default={"optimizer.timescale": 0.2, "optimizer.weight_decay": 0.1},
        )


def test_a_coordinate_check_has_its_control_without_the_rule_of_width() -> None:
    run = run_of(decay_width="inverse", timescale=0.5).replace({"model.head_dim": 8})
    found = check(run, "width", (16, 32, 64), seeds=1, times=(1,))
    assert {row["parametrization"] for row in found.rows} == {"mup", "sp"}
