"""The spike policy: what it notices, what it does, and that a run which went back never saw what it left out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from cut_runs import StopsAt
from spiky import HIGH, NAN, STEEP, marked

from froude import schedules
from froude.checkpoint.retention import Keep
from froude.checkpoint.run_store import RunStore
from froude.checkpoint.tensors import Tensors, digest
from froude.config import Run
from froude.promote.token_audit import token_account
from froude.runlog import LogReader
from froude.store import Location
from froude.study import Study
from froude.train.loop import Diverged
from froude.train.stability import spikes
from froude.train.stability.spikes import Decision, Detector, SpikePolicy
from froude.train.worker import run_worker

RUN = Run(
    name="large",
    tokens=256 * 640,
    batch=256,
    slots=2,
    reduction="exact",
    checkpoint_every=80,
    eval_windows=16,
    parametrization="sp",
    model={"factory": "spiky:Spiky", "width": 16},
    data={"source": "spiky:Marked"},
    optimizer={"lr": 1e-2},
    schedule={"warmup_tokens": 256 * 20},
)


def train(folder: Path, run: Run, stop: int = 0, **options: Any) -> Study:
    place = Location.parse(folder) / "runs" / run.name
    store = RunStore(place, run.name, Keep(3, 0, 2 * spikes.reach(run)))
    run_worker(run, store, StopsAt(store.open_attempt("recipe"), stop), device="cpu", **options)
    return Study(folder)


def bits(study: Study) -> tuple[str, list[float]]:
    place = study.location / "runs" / RUN.name
    losses = study.steps().sort("step").collect()["loss"].to_list()
    return digest(place, LogReader(place).lineage()[-1]), losses


def actions(study: Study) -> list[tuple[int, str]]:
    rows = study.events().filter(~pl.col("action").is_in(["warn", "spike"])).collect()
    return list(rows.select("batch", "action").iter_rows())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "sophia_g"])
@pytest.mark.parametrize("mark", [NAN, STEEP], ids=["gradient that is no number", "poisoned batch"])
def test_an_update_that_would_do_harm_is_left_out(tmp_path: Path, mark: int, name: str) -> None:
    """Sophia's next estimate is due in the very step that is made of another batch."""
    run = marked({100: mark}, RUN.replace({"tokens": 256 * 130, "optimizer.name": name}))
    study = train(tmp_path / "spiky", run)
    assert actions(study) == [(100, "skip")]
    assert bits(study) == bits(train(tmp_path / "calm", run, left_out=[(100, 101)]))
    account = token_account(study, run.name, run)
    assert account.to_dict() == {
        "expected": run.tokens,
        "trained": run.tokens,
        "skipped": 0,
        "repeated": 0,
        "skipped_by_policy": run.batch,
    }


@pytest.mark.slow
def test_a_run_that_eases_off_trains_every_token_once_at_the_rate_that_it_says(tmp_path: Path) -> None:
    run = marked(dict.fromkeys(range(90, 93), STEEP), RUN.replace(tokens=256 * 130))
    study = train(tmp_path / "whole", run)
    assert actions(study) == [(90, "skip"), (91, "skip"), (92, "ease")]
    shares = study.steps().sort("step").collect()["lr"].to_numpy() / RUN.optimizer.lr
    expected = np.array([schedules.at_step(run, step) for step in range(130)])
    expected[90:100] *= 0.5
    assert shares == pytest.approx(expected)
    assert token_account(study, run.name, run).whole
    train(tmp_path / "halved", run, stop=95)
    assert bits(train(tmp_path / "halved", run)) == bits(study)


@pytest.mark.long
@pytest.mark.slow
def test_a_step_in_the_loss_is_gone_back_from(tmp_path: Path) -> None:
    run = marked(dict.fromkeys(range(300, 501), HIGH), RUN)
    study = train(tmp_path / "spiky", run)
    assert actions(study) == [(320, "ease"), (500, "rollback")]
    calm = bits(train(tmp_path / "calm", run, left_out=[(200, 500)]))
    assert bits(study) == calm
    account = token_account(study, run.name, run)
    assert (account.whole, account.skipped_by_policy) == (True, 300 * run.batch)
    records = LogReader(study.location / "runs" / run.name).records()
    assert [record.step for record in records if record.base == -1 and record.kind == "checkpoint"] == [80]
    train(tmp_path / "stopped", run, stop=520)
    assert bits(train(tmp_path / "stopped", run)) == calm


@pytest.mark.long
def test_a_run_whose_batch_is_ramped_goes_back_by_whole_steps(tmp_path: Path) -> None:
    ramped = RUN.replace({"tokens": 256 * 1100, "schedule.ramp": [[256 * 100, 2]]})
    run = marked(dict.fromkeys(range(300, 702), HIGH), ramped)
    study = train(tmp_path, run)
    assert "rollback" in dict(actions(study)).values()
    account = token_account(study, run.name, run)
    assert (account.whole, account.expected) == (True, run.tokens)
    last = LogReader(study.location / "runs" / run.name).lineage()[-1]
    left_out = spikes.policy_batches(run, last.scalars["stability"])
    assert account.skipped_by_policy == len(left_out) * run.batch


def test_a_rollback_soon_after_a_ramp_begins_goes_back_before_all_that_it_leaves_out() -> None:
    run = RUN.replace({"tokens": 256 * 8000, "schedule.ramp": [[256 * 1000, 4]]})
    policy = SpikePolicy(run)
    policy.rollbacks = [spikes.Rollback(spikes.Place(1011, 1040), 640, 1840, lowered=False)]
    assert run.phases.tokens_at(policy.back_to) <= 640 * 256
    assert policy.back_to == 640
    policy.rollbacks = [spikes.Rollback(spikes.Place(500, 499), 399, 699, lowered=False)]
    assert policy.back_to == 399


def test_a_batch_that_stops_a_run_is_not_among_those_left_out() -> None:
    made, step, left_out = policy(tokens=256 * 100_000), 200, set()
    made.rollbacks = [spikes.Rollback(spikes.Place(150, 149), 49, 149, lowered=True)]
    while True:
        here, step = made.batch, step + 1
        decision = made.judge(step, 3.0, math.nan)
        if decision.action == "stop":
            break
        assert decision.action == "skip"
        left_out.add(here)
        step -= 1
    assert spikes.policy_batches(RUN, made.state()) - set(range(49, 149)) == left_out


def test_a_step_of_a_ramp_that_would_be_torn_is_passed_over_from_its_first_batch_on() -> None:
    run = RUN.replace({"schedule.ramp": [[256 * 4, 2]]})
    policy = SpikePolicy(run, {"batch": 4})
    policy.rollbacks = [spikes.Rollback(spikes.Place(9, 8), 5, 9, lowered=False)]
    assert policy.leave_out(5) == range(4, 9)
    assert policy.leave_out(5) == range(9, 9)
    assert spikes.policy_batches(run, policy.state()) == {4, 5, 6, 7, 8}


@pytest.mark.long
def test_a_spike_that_comes_again_lowers_the_rate_and_then_ends_the_run(tmp_path: Path) -> None:
    twice = [*range(100, 103), *range(350, 353)]
    study = train(tmp_path / "lowered", marked(dict.fromkeys(twice, NAN), RUN.replace(tokens=256 * 120)))
    assert [each for each in actions(study) if each[1] != "skip"] == [(102, "rollback"), (352, "lower")]
    # Batches 2 to 301 and 252 to 551 are left out, so the third step is made of batch 552, at a lower rate.
    shares = study.steps().sort("step").collect()["lr"] / RUN.optimizer.lr
    assert shares[1:3].to_list() == pytest.approx(
        [schedules.at_step(RUN, 1), 0.7 * schedules.at_step(RUN, 2)]
    )
    thrice = marked(dict.fromkeys([*twice, *range(600, 603)], NAN), RUN.replace(tokens=256 * 120))
    with pytest.raises(Diverged, match="spiked again at a lower rate"):
        train(tmp_path / "ended", thrice)
    assert actions(Study(tmp_path / "ended"))[-1] == (602, "stop")


@pytest.mark.slow
def test_noise_is_no_spike() -> None:
    noise, value = np.random.default_rng(0).standard_normal(20_000), 0.0
    detector = Detector()
    for each in noise:
        value = 0.3 * value + math.sqrt(1 - 0.3**2) * each
        assert detector.deviation(0.02 * value) <= spikes.SPIKE
        detector.accept(0.02 * value)


def policy(**changes: Any) -> SpikePolicy:
    """One that has seen 200 calm steps of noise 0.02."""
    made = SpikePolicy(RUN.replace(changes))
    rng = np.random.default_rng(1)
    for step in range(1, 201):
        assert made.judge(step, 3 + 0.02 * rng.standard_normal(), 1.0) == Decision()
    return made


def test_a_loss_half_a_nat_too_high_is_seen_at_once_and_again_ten_steps_later() -> None:
    made = policy()
    for step in range(201, 222):
        made.judge(step, 3.5 if step in (205, 215) else 3.0, 1.0)
    assert [(each["step"], each["action"]) for each in made.events] == [(205, "spike"), (215, "spike")]


def test_a_slow_climb_that_every_window_follows_is_gone_back_from() -> None:
    made, step = policy(), 200
    while (decision := made.judge(step := step + 1, 3 + (step - 200) * 0.002, 1.0)).action == "update":
        assert step < 800
    assert decision.action == "rollback"
    assert "average loss" in decision.why


def test_nothing_but_numbers_that_are_none_is_acted_on_while_the_rate_warms_up() -> None:
    made = policy(**{"schedule.warmup_tokens": 256 * 250})
    assert made.judge(201, 9.0, 50.0).action == "update"
    assert made.judge(202, math.nan, 1.0).action == "skip"


EASED = Decision("update", "", 0.5, 1.0, 1.0)  # a norm of one is the median


def test_outliers_in_a_row_are_not_their_batches_fault_and_a_run_eases_off_before_it_goes_back() -> None:
    made = policy()
    assert [made.judge(201, 3.0, 50.0).action for _ in range(2)] == ["skip", "skip"]
    assert [made.judge(step, 3.0, 50.0) for step in range(201, 205)] == [EASED] * 4
    assert [made.judge(step, 3.0, 1.0) for step in range(205, 214)] == [EASED] * 9
    assert made.judge(214, 3.0, 1.0) == Decision()
    # What came before does not count again, but what comes next is no longer met by patience.
    assert [made.judge(300, 3.0, 50.0).action for _ in range(3)] == ["skip", "skip", "rollback"]
    assert [each["action"] for each in made.events] == ["skip", "skip", "ease", "skip", "skip", "rollback"]


def test_outliers_that_easing_off_does_not_end_are_gone_back_from() -> None:
    made, step = policy(), 201
    for _ in range(2):
        made.judge(step, 3.0, 50.0)
    while (decision := made.judge(step, 3.0, 50.0)) == EASED:
        step += 1
    assert (decision.action, step) == ("rollback", 251)
    assert made.rollbacks[-1].spike.step == 201
    assert made.back_to == 100


def test_outliers_far_apart_are_gone_back_from_at_once() -> None:
    made = policy()
    steps = range(201, 302)
    decided = [made.judge(step, 3.0, 50.0 if step % 50 == 1 else 1.0).action for step in steps]
    assert [(step, action) for step, action in zip(steps, decided, strict=True) if action != "update"] == [
        (201, "skip"),
        (251, "skip"),
        (301, "rollback"),
    ]


def test_a_loss_that_does_not_come_back_is_eased_before_it_is_gone_back_from() -> None:
    made = policy()
    decided = [made.judge(step, 3.3, 1.0) for step in range(201, 402)]
    assert decided[:20] == [Decision()] * 20
    assert decided[20:200] == [EASED] * 180
    assert decided[200].action == "rollback"


def test_a_state_that_was_stored_decides_alike() -> None:
    made = policy()
    for _ in range(3):
        made.judge(201, 3.0, 50.0)
    again = SpikePolicy(RUN, json.loads(json.dumps(made.state())))
    for step in range(201, 300):
        loss, norm = 3.0 + 0.3 * (step % 40 == 0), 50.0 if step % 45 == 0 else 1.0
        assert made.judge(step, loss, norm) == again.judge(step, loss, norm)
    assert made.state() == again.state()


@pytest.mark.slow
def test_norms_by_layer_are_those_of_the_whole_model(tmp_path: Path) -> None:
    run = RUN.replace({"tokens": 256 * 4, "norms_every": 2, "schedule.warmup_tokens": 0})
    study = train(tmp_path, run)
    rows = study.norms().collect()
    assert rows["step"].unique(maintain_order=True).to_list() == [2, 4]
    last = rows.filter(step=4)
    gradients = last.filter(kind="gradient")["value"]
    whole = study.steps().filter(step=4).collect()["grad_norm"].item()
    assert math.sqrt((gradients**2).sum()) == pytest.approx(whole, rel=1e-6)
    place = study.location / "runs" / RUN.name
    with Tensors(place, LogReader(place).lineage()[-1]) as tensors:
        for name, value in last.filter(kind="parameter").select("name", "value").iter_rows():
            assert value == pytest.approx(tensors[f"model.{name}"].double().norm().item(), rel=1e-9)
    (activation,) = last.filter(kind="activation")["value"]
    assert activation > 0


def test_off_it_stops_at_the_first_number_that_is_none() -> None:
    made = SpikePolicy(RUN.replace(stability="off"))
    assert [made.judge(step, 9.0**step, 1.0).action for step in (1, 2, 3)] == ["update"] * 3
    assert made.judge(4, math.inf, 1.0).action == "stop"


def test_a_run_that_stopped_meets_the_batch_that_stopped_it_again() -> None:
    run = RUN.replace(stability="off")
    made = SpikePolicy(run)
    made.judge(1, 3.0, 1.0)
    made.judge(2, 3.0, math.nan)
    again = SpikePolicy(run, json.loads(json.dumps(made.state())))
    assert again.batch == 1
    assert again.judge(2, 3.0, 1.0) == Decision()
    assert again.batch == 2
