"""torch.compile by block: what it is refused for, what it falls back from, and that it changes nothing it may not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from froude.config import ConfigError, Run
from froude.train import model as own
from froude.train.parallel import World
from froude.train.speed import compiled
from froude.train.trainer import Trainer

RUN = Run(
    tokens=256 * 3, batch=256, slots=2, eval_windows=8, model={"width": 16}, compute={"compile": "blocks"}
)


class Broken(own.Block):
    """A block that looks at a number on the way."""

    def forward(self, x: torch.Tensor, *shared: Any) -> torch.Tensor:
        return super().forward(x * 2 if x.sum().item() > 1e9 else x, *shared)


def broken(run: Run) -> own.Transformer:
    made = own.Transformer(run)
    for i in range(len(made.layers)):
        made.layers[i] = Broken(run, f"layers.{i}", 0)
    return made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Dynamo and autograd as they are, without the C++ compiler."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    yield
    torch.compiler.reset()


def trained(run: Run) -> tuple[list[float], float]:
    trainer = Trainer(run)
    return [trainer.step(run, step).loss for step in range(run.steps)], trainer.evaluate()


@pytest.mark.long
@pytest.mark.own_process
@pytest.mark.parametrize("reduction", ["exact", "fast"])
def test_what_is_compiled_to_the_same_bits_trains_the_same_bits(reduction: str) -> None:
    run = RUN.replace(reduction=reduction)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="blocks are not compiled")
        assert trained(run) == trained(run.replace({"compute.compile": "none"}))


@pytest.mark.long
@pytest.mark.own_process
def test_the_passes_of_training_are_compiled_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counting(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        def forward(*args: Any) -> Any:
            calls.append(1)
            return graph.forward(*args)

        return forward

    monkeypatch.setattr(compiled, "BACKEND", counting)
    trainer = Trainer(RUN.replace({"model.depth": 3}))
    calls.clear()
    trainer.evaluate()
    assert not calls
    trainer.step(trainer.run, 0)
    assert len(calls) == 3


def test_passes_of_every_size_that_training_has_are_compared() -> None:
    one = World()
    ramped = RUN.replace(
        {"model.context": 16, "reduction": "exact", "schedule.ramp": ((512, 4),), "tokens": 512 * 5}
    )
    assert [len(each) for each in compiled._windows(ramped, one)] == [8] * 3 + [32] * 3
    rest = RUN.replace({"model.context": 16, "reduction": "exact", "micro_batch": 48})
    assert [len(each) for each in compiled._windows(rest, one)] == [2] * 3 + [3] * 3


@pytest.mark.long
@pytest.mark.own_process
def test_a_graph_break_is_named_and_a_fast_run_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "Block", Broken)
    words = r"blocks are not compiled, and the run goes on without: the graph of .* breaks: .*test_compiled.py:\d+"
    with pytest.warns(UserWarning, match=words):
        found = trained(RUN)
    assert found == trained(RUN.replace({"compute.compile": "none"}))


@pytest.mark.long
@pytest.mark.own_process
def test_an_exact_run_with_a_graph_break_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "Block", Broken)
    with pytest.raises(
        ConfigError, match=r"changes no bit, but the graph of .* breaks: .*`compute\.compile`"
    ):
        Trainer(RUN.replace(reduction="exact"))


@pytest.mark.long
@pytest.mark.own_process
def test_an_exact_run_whose_bits_would_change_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_bits(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        def forward(*args: Any) -> Any:
            return tuple(out * (1 + 2**-20) for out in graph.forward(*args))

        return forward

    monkeypatch.setattr(compiled, "BACKEND", other_bits)
    with pytest.raises(ConfigError, match=r"but \d+ of \d+ losses and gradients get other bits; leave"):
        Trainer(RUN.replace(reduction="exact"))
    Trainer(RUN)  # a fast run may have them


@pytest.mark.long
@pytest.mark.own_process
def test_a_compiler_that_fails_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_here(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(compiled, "BACKEND", none_here)
    with pytest.warns(UserWarning, match=r"can't compile .*no C\+\+ compiler"):
        Trainer(RUN)


@pytest.mark.parametrize(
    ("changes", "words"), [({"device": "cpu"}, "a cpu"), ({"device": "cuda", "workers": 2}, "2 workers")]
)
def test_graphs_are_for_one_gpu(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"one worker with a GPU, but got {words}"):
        RUN.replace({"compute.compile": "graphs", **changes})
    with pytest.raises(ConfigError, match="one worker with a GPU, but got a cpu"):
        Trainer(RUN.replace({"compute.compile": "graphs"}))  # on this machine


def test_the_fingerprint_is_anothers_only_where_blocks_are_compiled() -> None:
    plain = RUN.replace({"compute.compile": "none"})
    assert (
        plain.fingerprint
        == Run.from_dict({k: v for k, v in plain.to_dict().items() if k != "compute"}).fingerprint
    )
    assert plain.fingerprint != RUN.fingerprint


@pytest.mark.campaign
@pytest.mark.own_process
def test_inductor_trains_to_nearly_the_same_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "inductor")
    losses, loss = trained(RUN)
    expected, plain = trained(RUN.replace({"compute.compile": "none"}))
    assert [*losses, loss] == pytest.approx([*expected, plain], rel=1e-5)
