"""ZClip and AdaGC against their formulas, and what does not move their averages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from spiky import STEEP, marked

from froude.checkpoint.retention import Keep
from froude.checkpoint.run_store import RunStore
from froude.checkpoint.tensors import Tensors
from froude.config import ConfigError, Run
from froude.runlog import LogReader
from froude.store import Location
from froude.study import Study
from froude.train.api import Unsupervised
from froude.train.objective import minimised
from froude.train.optimizers.clipping import AdaGC, ZClip
from froude.train.stability.spikes import Decision
from froude.train.trainer import Trainer
from froude.train.worker import run_worker

Array = NDArray[np.float64]
RUN = Run(
    name="large",
    tokens=256 * 130,
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


def noisy(steps: int, outliers: dict[int, float], tensors: int = 1) -> Array:
    """Norms around one, with factors on some of them."""
    norms = np.exp(0.1 * np.random.default_rng(0).standard_normal((steps, tensors)))
    for step, factor in outliers.items():
        norms[step] *= factor
    return norms


def zclip(norms: Array) -> list[float]:
    """2504.02507, algorithm 1: the norms that are left."""
    left = list(norms[:25])
    mean, variance = float(np.mean(left)), float(np.var(left))
    for norm in norms[25:]:
        z = (norm - mean) / (np.sqrt(variance) + 1e-6)
        left.append(mean + 2.5**2 / z * np.sqrt(variance) if z > 2.5 else norm)
        mean = 0.97 * mean + 0.03 * left[-1]
        variance = 0.97 * variance + 0.03 * (left[-1] - mean) ** 2
    return left


def adagc(norms: Array, bound: float) -> Array:
    """2502.11034, algorithm 1, begun with the weighted mean of the warm-up: the norms of each tensor that are left."""
    left = norms.copy()
    wholes = np.sqrt((norms[:100] ** 2).sum(1, keepdims=True))
    left[:100] *= np.minimum(1, bound / (wholes + 1e-6))
    weights = 0.98 ** np.arange(99, -1, -1)
    average = (weights[:, None] * left[:100]).sum(0) / weights.sum()
    for step in range(100, len(norms)):
        left[step] = np.minimum(norms[step], 1.05 * average)
        average = 0.98 * average + 0.02 * left[step]
    return left


def test_zclip_is_the_published_algorithm() -> None:
    norms = noisy(300, {60: 3.0, 61: 30.0, 200: 1.6})[:, 0]
    clipping, expected = ZClip(["a", "b"]), zclip(norms)
    for norm, wanted in zip(norms, expected, strict=True):
        left, factors = clipping.shrink(float(norm), {}, 1.0)
        assert left == pytest.approx(wanted, rel=1e-9)
        assert factors == ({} if wanted == norm else {"a": pytest.approx(wanted / norm), "b": factors["a"]})
    cut = [step for step in range(300) if expected[step] < norms[step]]
    assert {60, 61, 200} <= set(cut)
    assert len(cut) < 20
    assert expected[61] < expected[60]  # the further out, the less is left


def test_adagc_is_the_published_algorithm() -> None:
    norms = noisy(300, {50: 5.0, 150: 8.0}, tensors=2)
    norms[200, 1] *= 20.0
    clipping, expected = AdaGC(["a", "b"]), adagc(norms, 1.2)
    for step, (a, b) in enumerate(norms):
        whole = float(np.hypot(a, b))
        left, factors = clipping.shrink(whole, {"a": float(a), "b": float(b)}, 1.2)
        if step < 100:
            assert (left, factors) == (whole, {})  # the bound is the caller's affair
        else:
            scales = np.array([factors.get("a", 1.0), factors.get("b", 1.0)])
            assert scales * norms[step] == pytest.approx(expected[step], rel=1e-9)
            assert left == pytest.approx(np.linalg.norm(expected[step]), rel=1e-9)
        if step == 200:
            assert factors["b"] < 0.1
            assert factors.get("a", 1.0) > 0.7


def test_a_tensor_that_has_no_gradient_at_first_is_not_held_still_for_good() -> None:
    clipping = AdaGC(["late"])
    for step in range(300):
        _, factors = clipping.shrink(1.0, {"late": 0.0 if step < 120 else 1.0}, 10.0)
        assert not factors


@pytest.mark.parametrize("clipping", ["zclip", "adagc"])
@pytest.mark.parametrize("reduction", ["exact", "fast"])
def test_a_step_scales_gradients_by_tensor_and_then_by_the_bound(
    monkeypatch: pytest.MonkeyPatch, clipping: str, reduction: str
) -> None:
    monkeypatch.setattr(ZClip, "WARMUP", 1)
    monkeypatch.setattr(AdaGC, "WARMUP", 1)
    settings = {"optimizer.clipping": clipping, "optimizer.clip": 0.05, "reduction": reduction}
    run = RUN.replace(settings)
    trainer = Trainer(run)
    for name, tensor in trainer.optimizer.clipping.state().items():  # as if all norms had been small
        tensor.fill_(1e-3 if name != "count" else 1.0)
    windows = trainer.draw(0).windows
    objective, _ = minimised(trainer.model, windows, run)
    gradients = torch.autograd.grad(objective / run.batch, list(trainer.model.parameters()))
    used: list[float] = []
    monkeypatch.setattr(
        trainer.optimizer,
        "step",
        lambda: used.extend(float(p.grad.double().norm()) for p in trainer.model.parameters()),
    )
    result = trainer.step(run, 0)
    norms = np.array([float(g.double().norm()) for g in gradients])
    assert result.grad_norm == pytest.approx(np.linalg.norm(norms), rel=1e-5)
    if clipping == "zclip":
        z = (result.grad_norm - 1e-3) / (1e-3**0.5 + 1e-6)
        assert z > 2.5
        left = np.full(len(norms), (1e-3 + 2.5**2 / z * 1e-3**0.5) / result.grad_norm) * norms
    else:
        left = np.minimum(norms, 1.05e-3)
    left *= min(1.0, 0.05 / (np.linalg.norm(left) + 1e-6))
    assert used == pytest.approx(left.tolist(), rel=1e-4)


@pytest.mark.parametrize("clipping", ["zclip", "adagc"])
def test_an_update_that_is_left_out_moves_no_average(clipping: str) -> None:
    trainer = Trainer(RUN.replace({"optimizer.clipping": clipping}))
    trainer.step(RUN, 0)
    before = trainer.snapshot()
    assert float(before["optimizer.clipping.count"]) == 1
    trainer.step(RUN, 1, judge=lambda loss, norm: Decision("skip"))
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.state().items())


def train(folder: Path, run: Run, stop: int = 0, **options: Any) -> dict[str, torch.Tensor]:
    """The tensors of its last checkpoint."""

    class Stops(Unsupervised):
        def poll(self, step: int) -> Any:
            return "stop" if step == stop else "none"

    place = Location.parse(folder) / "runs" / run.name
    store = RunStore(place, run.name, Keep(3, 0, 300))
    run_worker(run, store, Stops(store.open_attempt("recipe")), device="cpu", **options)
    with Tensors(place, LogReader(place).lineage()[-1]) as tensors:
        return {name: tensors[name] for name in tensors}


@pytest.mark.long
@pytest.mark.parametrize("clipping", ["zclip", "adagc"])
def test_averages_go_through_checkpoints_and_past_what_the_policy_leaves_out(
    tmp_path: Path, clipping: str
) -> None:
    run = RUN.replace({"optimizer.clipping": clipping})
    spiky = marked({115: STEEP}, run)
    whole = train(tmp_path / "whole", spiky)
    assert Study(tmp_path / "whole").events().collect()["action"].to_list().count("skip") == 1
    assert float(whole["optimizer.clipping.count"]) == run.steps
    train(tmp_path / "halved", spiky, stop=110)
    calm = train(tmp_path / "calm", spiky, left_out=[(115, 116)])
    for other in (train(tmp_path / "halved", spiky), calm):
        assert other.keys() == whole.keys()
        assert all(torch.equal(tensor, whole[name]) for name, tensor in other.items())


def test_another_word_for_clipping_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"`optimizer.clipping` must be 'global', 'zclip' or 'adagc'"):
        RUN.replace({"optimizer.clipping": "adaptive"})
