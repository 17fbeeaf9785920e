"""The scale of an fp16 run's loss: an overflow is tried again, nothing is left out, and there is an end to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from froude.config import Run
from froude.train.exact.reduce import Totals
from froude.train.loop import Diverged, Loop
from froude.train.objective import Objective, minimised
from froude.train.precision import scaling
from froude.train.precision.scaling import GROWTH, INITIAL, LossScale
from froude.train.stability.spikes import Decision, SpikePolicy
from froude.train.step import train_step
from froude.train.trainer import Trainer
from froude.train.trial import InMemory, run_trial

RUN = Run(tokens=192 * 6, batch=192, eval_windows=3, precision="fp16", model={"width": 16, "depth": 1})


class Overflows:
    """A reduction whose gradient is finite up to a scale; `loss` is what it tells."""

    def __init__(self, model: nn.Module, most: float, loss: float = 2.0) -> None:
        self.model, self.most, self.loss, self.scales = model, most, loss, list[float]()

    def backward(
        self, windows: Tensor, *, batch: int = 0, noise: bool = False, objective: Objective = minimised
    ) -> Totals:
        scale = float(objective(self.model, windows, RUN)[0])
        self.scales.append(scale)
        value = scale if scale <= self.most else math.inf
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, value)
        return Totals(self.loss, value, value**2 if noise else None, {"w": value})


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """A model whose loss is 1."""
    monkeypatch.setattr(scaling, "minimised", lambda *_: (torch.ones(()), torch.ones(())))
    return nn.Linear(2, 2)


def tried(scale: LossScale, model: nn.Module, reduction: Overflows, *, noise: bool = False) -> Totals:
    return scale.backward(model, reduction, torch.empty(0), 192, noise)  # type: ignore[arg-type]


def test_the_same_batch_is_tried_at_half_the_scale_until_it_is_finite(model: nn.Module) -> None:
    scale, reduction = LossScale(), Overflows(model, INITIAL / 4)
    found = tried(scale, model, reduction, noise=True)
    assert reduction.scales == [INITIAL, INITIAL / 2, INITIAL / 4]
    assert found == Totals(2.0, 1.0, 1.0, {"w": 1.0})
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters())
    assert scale.state() == {"scale": INITIAL / 4, "good": 1}


def test_it_doubles_after_so_many_good_steps_and_an_overflow_begins_the_count_anew(model: nn.Module) -> None:
    scale, reduction = LossScale(), Overflows(model, INITIAL)
    for _ in range(GROWTH):
        tried(scale, model, reduction)
    assert scale.state() == {"scale": 2 * INITIAL, "good": 0}
    scale.good = 7
    tried(scale, model, reduction)
    assert scale.state() == {"scale": INITIAL, "good": 1}
    other = LossScale()
    other.rewind(scale.state())
    assert other == scale
    other.rewind({})
    assert other == LossScale()


def test_a_loss_that_is_no_number_is_the_policys(model: nn.Module) -> None:
    scale, reduction = LossScale(), Overflows(model, 0.0, loss=math.nan)
    assert math.isnan(tried(scale, model, reduction).loss)
    assert (len(reduction.scales), scale.scale, scale.why) == (1, INITIAL, "")


def test_a_scale_that_runs_to_its_floor_ends_the_run_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(RUN, Trainer(RUN), InMemory(), ledger=False)  # type: ignore[arg-type]
    before = loop.trainer.snapshot()
    judged = list[float]()
    monkeypatch.setattr(loop, "_judge", lambda loss, norm: judged.append(norm) or Decision())
    reduction: Any = loop.trainer.reduction
    backward: Callable[..., Totals] = reduction.backward
    monkeypatch.setattr(reduction, "backward", lambda *a, **k: backward(*a, **k)._replace(norm=math.nan))
    with pytest.raises(
        Diverged, match=r"stopped at step 1 .* the loss scale fell below its floor of 0\.000976562"
    ):
        loop.advance()
    assert len(judged) == 1
    assert math.isnan(judged[0])
    assert loop.trainer.scaling is not None
    assert loop.trainer.scaling.state() == {"scale": INITIAL, "good": 0}
    assert all(torch.equal(before[name], tensor) for name, tensor in loop.trainer.state().items())


def test_a_batch_whose_gradient_is_no_number_is_left_out_as_in_any_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = Trainer(RUN)
    policy, rounds = SpikePolicy(RUN), [math.nan]
    reduction: Any = trainer.reduction
    backward: Callable[..., Totals] = reduction.backward

    def poisoned(*a: Any, **k: Any) -> Totals:
        found = backward(*a, **k)
        return found._replace(norm=math.nan) if rounds else found

    monkeypatch.setattr(reduction, "backward", poisoned)
    assert trainer.step(RUN, 0, judge=partial(policy.judge, 1)).decision.action == "skip"
    rounds.clear()
    assert trainer.scaling is not None
    assert trainer.scaling.state() == {"scale": INITIAL, "good": 0}
    assert trainer.step(RUN, 0, batch=1, judge=partial(policy.judge, 1)).finite


def test_the_policy_sees_steps_without_an_overflow_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "INITIAL", 2.0**40)
    trainer, seen = Trainer(RUN), list[tuple[float, float]]()

    def judge(loss: float, norm: float) -> Decision:
        seen.append((loss, norm))
        return Decision()

    assert trainer.step(RUN, 0, judge=judge).finite
    assert len(seen) == 1
    assert all(map(math.isfinite, seen[0]))
    assert trainer.scaling is not None
    assert 1 < trainer.scaling.scale < 2.0**40


def test_a_trial_in_fp16_ends_near_one_in_fp32_and_its_branches_are_the_runs_alone() -> None:
    short, long = RUN.replace(tokens=192 * 4, name="short"), RUN.replace(name="long")
    together = run_trial([short, long], trial="t").trials
    alone = [run_trial([run], trial="t").trials[0] for run in (short, long)]
    assert [row["loss"] for row in together] == [row["loss"] for row in alone]
    (plain,) = run_trial([long.replace(precision="fp32")], trial="t").trials
    assert together[1]["loss"] == pytest.approx(plain["loss"], abs=2e-3)


def test_a_step_without_a_scale_of_its_own_finds_one() -> None:
    trainer = Trainer(RUN)
    windows = trainer.draw(0).windows
    result = train_step(trainer.model, trainer.optimizer, trainer.reduction, windows, RUN, 0)
    assert result.finite
