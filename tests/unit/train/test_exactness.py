"""Exact runs in one process: what they refuse, and what they record."""

import sys
from types import SimpleNamespace

import pytest
import torch

from froude.config import ConfigError, Optimizer, Run
from froude.optimizers import OPTIMIZERS, Spec, moments
from froude.train import api
from froude.train.exact import environment
from froude.train.optimizers.exactness import repeats, works_by_rows
from froude.train.trainer import Trainer

RUN = Run(
    name="large", tokens=7680, batch=768, slots=12, reduction="exact", model={"width": 32}, eval_windows=64
)


@pytest.fixture(autouse=True)
def as_before():
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, spec in OPTIMIZERS.items() if spec.unit in ("row", "model")])
def test_an_optimizer_of_rows_has_the_same_bits_on_parts(name):
    settings = Optimizer(name=name)
    assert works_by_rows(settings, settings.spec.plain, "cpu")


@pytest.mark.parametrize(
    "name", [name for name, spec in OPTIMIZERS.items() if spec.unit in ("matrix", "tensor")]
)
def test_an_optimizer_of_whole_matrices_repeats(name):
    assert repeats(Optimizer(name=name), "cpu")


def test_fused_adamw_does_not_work_by_rows():
    assert not works_by_rows(Optimizer(), "fused", "cpu")


class Blind(torch.optim.Optimizer):
    """Looks exact where one does not look for it: on parts, from the global generator, or beyond a size."""

    def __init__(self, groups, fault):
        super().__init__(groups, {"fault": fault})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if group["fault"] == "mean":
                    p.sub_(p.grad - p.grad.mean())
                elif group["fault"] == "random":
                    p.add_(torch.randn(()))
                elif group["fault"] == "blocks" and p.numel() >= 4096 and p.numel() % 256 == 0:
                    p.sub_(p.grad.half().float())
                else:
                    p.sub_(p.grad)


@pytest.mark.parametrize("fault", ["", "mean", "random", "blocks"])
def test_a_fault_in_exactness_is_seen(monkeypatch, fault):
    spec = Spec(
        name="blind",
        factory="blind:Blind",
        arguments=lambda settings: {"fault": fault},
        family="Adam",
        state=moments(),
        options={"fault": fault},
    )
    monkeypatch.setitem(sys.modules, "blind", SimpleNamespace(Blind=Blind))
    monkeypatch.setitem(OPTIMIZERS, "blind", spec)
    settings = Optimizer(name="blind", options={"fault": fault})
    assert works_by_rows(settings, "auto", "cpu") == (not fault)
    assert repeats(settings, "cpu") == (fault != "random")


def test_an_exact_run_refuses_an_optimizer_that_is_not():
    with pytest.raises(ConfigError, match=r"fused adamw does not on cpu; use implementation \"foreach\""):
        Trainer(RUN.replace({"optimizer.implementation": "fused"}))


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_an_exact_run_refuses_hooks_on_gradients(monkeypatch, kind):
    def hooked(run, workers):
        model = build_model(run)
        getattr(next(model.parameters()), kind)(lambda gradient: None)
        return model

    build_model = api.build_model
    monkeypatch.setattr(api, "build_model", hooked)
    with pytest.raises(ConfigError, match="has hooks on gradients"):
        Trainer(RUN)


def test_exact_and_fast_train_alike():
    exact, fast = Trainer(RUN), Trainer(RUN.replace(reduction="fast"))
    for step in range(3):
        ours, theirs = exact.step(RUN, step), fast.step(RUN, step)
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-4)
    assert exact.evaluate() == pytest.approx(fast.evaluate(), rel=1e-5)


@pytest.mark.parametrize("changed", ["threads", "instructions", "torch", "processor"])
def test_a_build_that_is_not_the_runs_is_found(changed):
    here = environment.describe(torch.device("cpu"))
    other = {**here, changed: "other"}
    assert environment.unlike([here, dict(here)], here) == {}
    assert environment.unlike([other, here], here) == {
        0: f"{changed} is 'other' instead of {here[changed]!r}"
    }
    with pytest.raises(ConfigError, match=rf"must go on as it began, but its {changed} is"):
        environment.require(here, other, "a run must go on as it began, but its")


def test_before_the_first_attempt_most_decide_what_build_a_run_has():
    here = environment.describe(torch.device("cpu"))
    other = {**here, "instructions": "DEFAULT", "ATEN_CPU_CAPABILITY": "default"}
    how = f"instructions is 'DEFAULT' instead of {here['instructions']!r}"
    assert environment.unlike([other, here, here]) == {
        0: f"ATEN_CPU_CAPABILITY is 'default' instead of None, {how}"
    }
    assert list(environment.unlike([here, other])) == [1]


def test_a_build_says_what_rounds(monkeypatch):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    found = environment.describe(torch.device("cpu"))
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert found["ATEN_CPU_CAPABILITY"] == "default"
