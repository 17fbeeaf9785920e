"""Rounding to bf16 by chance: right on average, of neighbours only, and the same wherever an element lies."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from froude.config import ConfigError, Run
from froude.optimizers import OPTIMIZERS
from froude.train.optimizers import build, stand_ins
from froude.train.parallel import World
from froude.train.precision import rounding
from froude.train.precision.rounding import Rounding, to_bf16
from froude.train.trainer import Trainer

NUMBERS = st.floats(
    width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**120), max_value=2.0**120
)


def rounded(
    values: torch.Tensor, *, seed: int = 0, step: int = 0, name: str = "w", first: int = 0
) -> torch.Tensor:
    into = torch.empty_like(values, dtype=torch.bfloat16)
    Rounding(seed, step)(values, into, name, first)
    return into


def test_chances_are_splitmix64() -> None:
    """Against whole numbers of Python, with the reference's first output for the key 0."""

    def reference(state: int) -> int:
        x = state
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    assert reference(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF  # published for seed 0
    key = int.from_bytes(hashlib.blake2b(b"5:7:layers.0.qkv", digest_size=8).digest(), "little")
    found = Rounding(5, 7).chances("layers.0.qkv", 1001, 50, torch.device("cpu")).tolist()
    numbers = [reference((key + 0x9E3779B97F4A7C15 * (i // 4 + 1)) % 2**64) for i in range(1001, 1051)]
    assert found == [number >> 16 * (i % 4) & 0xFFFF for i, number in enumerate(numbers, start=1001)]


def test_what_is_lost_is_nothing_on_average() -> None:
    """Each of some numbers, a million times: their means are theirs, to within four standard errors."""
    n = 1_000_000
    for value in (1.001, -0.3, 3e-39, 7.1e20):
        values = torch.full((n,), value)
        found = rounded(values).double()
        low, high = float(found.min()), float(found.max())
        exact, share = float(values[0]), float((found == high).double().mean())
        chance = (exact - low) / (high - low)
        assert abs(share - chance) < 4 * math.sqrt(chance * (1 - chance) / n)
        assert float(found.mean()) == pytest.approx(exact, rel=2e-5)


@given(st.lists(NUMBERS, min_size=1, max_size=40))
def test_the_result_is_a_neighbour_and_what_bf16_has_never_moves(numbers: list[float]) -> None:
    values = torch.tensor(numbers)
    found = rounded(values)
    toward_zero = (values.view(torch.int32) & -(2**16)).view(torch.float32)
    away = (toward_zero.view(torch.int32) + 2**16).view(torch.float32)
    assert ((found.float() == toward_zero) | (found.float() == away)).all()
    for step in range(5):
        assert torch.equal(rounded(found.float(), step=step).view(torch.int16), found.view(torch.int16))


@given(st.integers(0, 2**40), st.integers(1, 200), st.data())
def test_parts_are_rounded_as_the_whole(first: int, count: int, data: st.DataObject) -> None:
    """Also where a chunk ends."""
    values = torch.linspace(-1, 1, count)
    whole = rounded(values, first=first)
    cut = data.draw(st.integers(0, count))
    parts = [rounded(values[:cut], first=first), rounded(values[cut:], first=first + cut)]
    assert torch.equal(torch.cat(parts).view(torch.int16), whole.view(torch.int16))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounding, "CHUNK", data.draw(st.integers(1, 50)))
        assert torch.equal(rounded(values, first=first).view(torch.int16), whole.view(torch.int16))


def test_seed_step_and_name_each_make_other_chances() -> None:
    values = torch.linspace(0.1, 0.9, 1000)
    alone = rounded(values)
    for other in (
        rounded(values, seed=1),
        rounded(values, step=1),
        rounded(values, name="v"),
        rounded(values, first=1),
    ):
        assert 200 < int((other != alone).sum()) < 800


def test_no_number_stays_none() -> None:
    values = torch.tensor([math.inf, -math.inf, math.nan, -math.nan])
    found = rounded(values).float()
    assert found[:2].tolist() == [math.inf, -math.inf]
    assert found[2:].isnan().all()


RUN = Run(
    tokens=768 * 3,
    eval_windows=12,
    precision="bf16_stochastic",
    model={"width": 32, "depth": 1},
    parametrization="sp",
)


def test_updates_below_half_a_neighbour_arrive() -> None:
    """At a rate at which the nearest number is always the old one."""
    run = RUN.replace({"optimizer": {"name": "sgd", "lr": 1e-6, "weight_decay": 0.0, "beta1": 0.0}})
    model = nn.Linear(256, 256, bias=False)
    model.kinds, model.blocks = lambda: {"weight": "hidden"}, list  # type: ignore[assignment]
    with torch.no_grad():
        model.weight.fill_(1.0)
    to_bf16(model)
    optimizer = build(run, model, World())
    for step in range(100):
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.schedule(run, step)
        optimizer.step()
    assert model.weight.dtype == torch.bfloat16
    assert 1 - float(model.weight.detach().double().mean()) == pytest.approx(100e-6, rel=0.2)


@pytest.mark.parametrize(
    "name", [name for name, spec in OPTIMIZERS.items() if not spec.average and not spec.curvature]
)
def test_every_optimizer_keeps_its_state_in_fp32_and_its_fp32_weights_for_a_step_only(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = OPTIMIZERS[name].schedules
    run = RUN.replace({"optimizer": {"name": name}} | ({"schedule.name": schedule[0]} if schedule else {}))
    trainers = []
    for bucket in (2**24, 2000):
        monkeypatch.setattr(stand_ins, "STOOD_IN", bucket)
        trainer = Trainer(run.replace({"optimizer.implementation": "auto"}, reduction="fast"))
        trainer.state()
        before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
        result = trainer.step(run, 0)
        trainer.step(run, 1)
        assert result.finite
        assert any(not torch.equal(before[n], p) for n, p in trainer.model.named_parameters())
        trainers.append(trainer)
    for key, tensor in trainers[0].state().items():
        assert tensor.dtype == torch.bfloat16 if key.startswith("model.") else tensor.dtype != torch.bfloat16
    held = [p for part in trainers[1].optimizer.parts for g in part.param_groups for p in g["params"]]
    assert (
        sum(p.untyped_storage().nbytes() for p in held if p.dtype == torch.float32) <= 64
    )  # one number a matrix


def test_bf16_weights_learn_as_fp32_weights_do() -> None:
    run = RUN.replace(tokens=768 * 30)
    rounded_, plain = (Trainer(run.replace(precision=precision)) for precision in ("bf16_stochastic", "bf16"))
    for step in range(run.steps):
        rounded_.step(run, step)
        plain.step(run.replace(precision="bf16"), step)
    assert rounded_.evaluate() == pytest.approx(plain.evaluate(), abs=0.02)


def test_averages_and_curvature_are_refused() -> None:
    with pytest.raises(ConfigError, match=r'must not be "bf16_stochastic" with schedule_free_adamw'):
        RUN.replace({"optimizer.name": "schedule_free_adamw", "schedule.name": "constant"})
    for precision in ("bf16_stochastic", "fp16"):
        with pytest.raises(ConfigError, match=f'must not be "{precision}" with sophia_g'):
            RUN.replace({"optimizer.name": "sophia_g"}, precision=precision)
