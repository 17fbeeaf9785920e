"""Weights made as they are shared out are those of a model that is built whole."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from froude.config import ConfigError, Run
from froude.sweep.sizes import sizes_of
from froude.train import api
from froude.train.memory import weights
from froude.train.model import Block, Transformer
from froude.train.objective import minimised
from froude.train.parallel import World
from froude.train.probe.soundness import check_model
from froude.train.speed import compiled

RUN = Run(tokens=256 * 3, batch=256, slots=2, eval_windows=8, model={"width": 32, "head_dim": 16})
EVERYTHING = {
    "model.qk_norm": True,
    "model.attention_bias": True,
    "model.mlp_bias": True,
    "model.kv_heads": 1,
    "model.readout_sd": 0.25,
}


class Halved(Transformer):
    """Knows what it changes, and says so unless it is told not to."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        with torch.no_grad():
            self.embedding.mul_(0.5)

    def initial(self, name: str) -> Tensor:
        found = super().initial(name)
        forgets = name == "embedding" and self.run.seed == 13
        return found if forgets or name != "embedding" else found * 0.5


class Silent(Transformer):
    """Inherits an `initial` that knows nothing of the change."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        with torch.no_grad():
            self.embedding.mul_(0.5)


class Tied(Transformer):
    """One of its parameters has two names."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        spare = nn.Parameter(torch.ones(3))
        self.spare, self.shared = spare, spare

    def initial(self, name: str) -> Tensor:
        return torch.ones(3) if name == "spare" else super().initial(name)

    def kinds(self) -> dict[str, Any]:
        return {name: "norm" if name == "spare" else kind for name, kind in super().kinds().items()}


class Shuffled(Transformer):
    """Draws more than weights from torch's generator."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.spare = nn.Linear(4, 4)
        self.order = torch.randperm(run.model.vocab, device="cpu").tolist()

    def initial(self, name: str) -> Tensor:
        if not name.startswith("spare"):
            return super().initial(name)
        torch.manual_seed(self.run.seed)
        return nn.Linear(4, 4).get_parameter(name.removeprefix("spare."))

    def kinds(self) -> dict[str, Any]:
        return {name: "bias" if name.startswith("spare") else kind for name, kind in super().kinds().items()}

    def forward(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        return super().forward(tokens)[..., self.order] + self.spare.weight.sum() + self.spare.bias.sum()


class Odd(Transformer):
    """One fault, by the run's seed: a shape, or a buffer that comes from weights."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        if run.seed == 1:
            self.register_buffer("size", self.embedding.detach().square().sum(), persistent=False)

    def initial(self, name: str) -> Tensor:
        return super().initial(name)[: None if self.run.seed else 1]


class Broken(Block):
    """Looks at a number on the way, at which a graph breaks."""

    def forward(self, x: Tensor, *shared: Any) -> Tensor:
        return super().forward(x * 2 if x.sum().item() > 1e9 else x, *shared)


def late(run: Run) -> nn.Module:
    """Built for two workers."""
    return api.build_model(run, workers=2)


def of(cls: type, **changes: Any) -> Run:
    return RUN.replace({"model.factory": f"{__name__}:{cls.__name__}", **changes})


@pytest.mark.parametrize(
    "changes", [{}, {"model.tied": True}, {"model.parallel": True}, EVERYTHING, {"parametrization": "sp"}]
)
def test_a_models_weights_are_absent_and_then_those_of_one_built_whole(changes: dict[str, Any]) -> None:
    run = RUN.replace(changes)
    model, whole = late(run), api.build_model(run)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert all(torch.equal(b, dict(model.named_buffers())[name]) for name, b in whole.named_buffers())
    make = weights.maker(model)
    first, *_ = model.blocks()  # type: ignore[operator]
    make(first)
    assert {p.is_meta for p in first.parameters()} == {False}
    assert next(iter(model.parameters())).is_meta  # the embedding is outside of the block
    make(model)
    found, expected = dict(model.named_parameters()), dict(whole.named_parameters())
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_what_a_checkpoint_will_fill_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    model = late(RUN)
    monkeypatch.setattr(Transformer, "initial", None)
    weights.maker(model, blank=True)(model)
    assert not any(bool(parameter.any()) or parameter.is_meta for parameter in model.parameters())


def test_what_is_shared_stays_shared_and_keeps_its_dtype() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            with weights.absent():
                self.one, self.other = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
                self.frozen = nn.Parameter(torch.ones(2).bfloat16(), requires_grad=False)
            self.other.weight = self.one.weight

        def initial(self, name: str) -> Tensor:
            return torch.full((2,) if name == "frozen" else (3, 3), 1.0 + 2**-12)

    model = Tied()
    weights.maker(model)(model)
    assert model.one.weight is model.other.weight
    assert model.frozen.dtype == torch.bfloat16
    assert not model.frozen.requires_grad
    assert not nn.Linear(1, 1).weight.is_meta


def test_only_a_class_that_says_so_itself_is_built_late() -> None:
    assert next(late(of(Halved)).parameters()).is_meta
    silent = late(of(Silent))
    assert all(torch.equal(p, q) for p, q in zip(silent.parameters(), Silent(RUN).parameters(), strict=True))
    assert [sizes_of(of(cls)).built_whole for cls in (Halved, Silent)] == [False, True]


def test_the_probe_compares_what_initial_gives_with_what_the_factory_does() -> None:
    check_model(of(Halved))
    for run, words in (
        (
            of(Halved, seed=13),
            "differs in embedding when built by its `initial`; have `initial` give what the",
        ),
        (
            of(Shuffled),
            "computes other logits of the same weights when built by its `initial`; draw nothing but",
        ),
        (
            of(Odd),
            r"must give a parameter's whole values, but that of Odd gives embedding as \[1, 32\] instead of",
        ),
        (
            of(Odd, seed=1),
            "built without weights, but buffer size of Odd is computed from some; compute it in",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            check_model(run)


def test_a_parameter_with_two_names_stays_one() -> None:
    check_model(of(Tied), ["gradients"])
    model: Any = late(of(Tied))
    weights.maker(model)(model)
    assert model.spare is model.shared
    assert len(list(model.parameters())) == len(list(Tied(RUN).parameters()))


def test_what_initial_keeps_is_not_the_parameters_memory() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
            self.kept = torch.ones(2)

        def initial(self, name: str) -> Tensor:
            return self.kept

    with weights.absent():
        model = Cached()
    weights.maker(model)(model)
    with torch.no_grad():
        model.one.add_(1)
    assert [float(each.detach()[0]) for each in (model.one, model.other, model.kept)] == [2, 1, 1]


def test_compiled_blocks_of_an_exact_run_are_compared_with_all_weights_there() -> None:
    run = RUN.replace({"compute.compile": "blocks"})
    assert next(late(run).parameters()).is_meta
    assert not next(late(run.replace(reduction="exact")).parameters()).is_meta


@pytest.mark.long
@pytest.mark.own_process
@pytest.mark.parametrize("breaks", [False, True])
def test_a_block_without_weights_is_tried_when_it_trains(
    breaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    run = RUN.replace({"compute.compile": "blocks"})
    model, whole = late(run), api.build_model(run)
    if breaks:
        for block in (*model.layers, *whole.layers):  # type: ignore[misc]
            block.__class__ = Broken
    compiled.compile_blocks(run, model, model.blocks(), World())  # type: ignore[operator]
    weights.maker(model)(model)
    windows = torch.arange(2 * 65).view(2, 65) % 256
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [minimised(model, windows, run)[0] for _ in range(2)]
    said = [str(each.message) for each in caught if "blocks are not compiled" in str(each.message)]
    assert len(said) == (len(model.layers) if breaks else 0)  # type: ignore[arg-type]
    assert all("a block of froude.train.model:Transformer: " in line for line in said)
    assert found == [minimised(whole, windows, run)[0]] * 2
    if not breaks:  # more sizes than torch compiles: those past its limit go on without
        for n in range(1, 11):
            some = windows[:1].repeat(n, 1)
            losses = [float(minimised(each, some, run)[0].detach()) for each in (model, whole)]
            assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    torch.compiler.reset()
