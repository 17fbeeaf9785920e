"""Matrices that lie in one tensor: which rows are whose, by what the forward pass does with them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from odd_tensors import QUERIES_SHARE, Tensors, drawn
from torch import Tensor, nn

from froude.config import ConfigError, Run
from froude.train.api import Part
from froude.train.model import Transformer
from froude.train.optimizers import build
from froude.train.optimizers.fused import fused, matrices
from froude.train.parallel import World
from froude.train.probe.soundness import check_model

RUN = Run(name="fused", tokens=128, batch=128, model={"width": 32, "head_dim": 16, "depth": 2})
QKV, GATE_UP = "layers.0.qkv", "layers.0.gate_up"


class Wrong(Transformer):
    """The package's own model, whose parts leave rows over."""

    def fused(self):
        return {QKV: [Part("q", self.shape.width)]}


class Declared(nn.Module):
    """A matrix of 12 rows and a gain, with these parts."""

    def __init__(self, **parts):
        super().__init__()
        self.matrix, self.gain = nn.Parameter(torch.ones(12, 3)), nn.Parameter(torch.ones(3))
        self.parts = parts

    def kinds(self):
        return {"matrix": "hidden", "gain": "norm"}

    def fused(self):
        return self.parts


@torch.no_grad()
def moved(zeroed: tuple[str, slice], changed: tuple[str, slice | tuple[slice, slice]]) -> bool:
    """Whether logits depend on the changed rows (or columns) where the zeroed rows are zero."""
    torch.manual_seed(0)
    model = Transformer(RUN.replace({"model.readout_sd": 1.0}))
    tokens = torch.randint(RUN.model.vocab, (2, RUN.model.context))
    for layer in range(RUN.model.depth):
        name, rows = zeroed
        model.get_parameter(name.replace("0", str(layer)))[rows] = 0.0
    before = model(tokens)
    for layer in range(RUN.model.depth):
        name, where = changed
        part = model.get_parameter(name.replace("0", str(layer)))[where]
        part += torch.randn_like(part)
    return not torch.allclose(before, model(tokens), atol=1e-6)


def test_the_parts_of_our_own_model_are_what_their_names_say() -> None:
    found = matrices(Transformer(RUN))
    qkv, gate_up = found[QKV], found[GATE_UP]
    assert list(qkv) == ["q", "k", "v"]
    assert list(gate_up) == ["gate", "up"]
    assert found["layers.1.down"] == {"": slice(None)}
    assert "embedding" not in found
    assert not moved((QKV, qkv["q"]), (QKV, qkv["k"]))  # without queries all keys are alike
    assert moved((QKV, qkv["q"]), (QKV, qkv["v"]))
    assert not moved((QKV, qkv["v"]), (QKV, slice(0, qkv["k"].stop)))
    assert not moved((GATE_UP, gate_up["gate"]), (GATE_UP, gate_up["up"]))


def test_heads_are_rows_of_their_own() -> None:
    heads = matrices(Transformer(RUN), heads=True)[QKV]
    assert list(heads) == ["q.0", "q.1", "k.0", "k.1", "v.0", "v.1"]
    first, second = (slice(16 * head, 16 * head + 16) for head in range(2))
    assert not moved((QKV, heads["v.1"]), ("layers.0.attention_out", (slice(None), second)))
    assert moved((QKV, heads["v.1"]), ("layers.0.attention_out", (slice(None), first)))


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=5), st.booleans())
def test_matrices_cover_each_row_once(sizes: list[tuple[int, int]], heads: bool) -> None:
    parts = [Part(f"part {i}", number * height, number) for i, (number, height) in enumerate(sizes)]
    model = Declared(matrix=parts)
    rows = sum(part.rows for part in parts)
    model.matrix = nn.Parameter(torch.ones(rows, 3))
    found = matrices(model, heads=heads)["matrix"]
    assert [row for part in found.values() for row in range(rows)[part]] == list(range(rows))
    assert len(found) == (sum(number for number, _ in sizes) if heads else len(sizes))


def muon_steps(model: Tensors, gradients: dict[str, list[Tensor]], heads: bool) -> dict[str, Tensor]:
    """Hidden tensors after steps of muon, each on a gradient of its own."""
    options = {"heads": heads, "scale": "match_rms"}
    run = Run(tokens=768, parametrization="sp", optimizer={"name": "muon", "options": options})
    optimizer = build(run, model, World())
    for step in range(3):
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name][step]
        optimizer.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("heads", [False, True])
def test_queries_that_share_keys_are_updated_as_if_the_three_were_apart(heads: bool) -> None:
    """Thirds of the tensor, as the parts were with as many keys as queries, are other matrices."""
    together = Tensors({"qkv": (18, 10)}, {"qkv": QUERIES_SHARE})
    rows = {"q": slice(0, 12), "k": slice(12, 15), "v": slice(15, 18)}
    apart = Tensors({name: (r.stop - r.start, 10) for name, r in rows.items()}, {"q": QUERIES_SHARE[:1]})
    thirds = Tensors({"qkv": (18, 10)}, {"qkv": [Part(name, 6) for name in rows]})
    with torch.no_grad():
        for name, part in apart.named_parameters():
            part.copy_(together.qkv[rows[name]])
    whole = [drawn(f"gradient {step}", 18, 10) for step in range(3)]
    found = muon_steps(together, {"qkv": whole}, heads)["qkv"]
    due = muon_steps(apart, {name: [g[r] for g in whole] for name, r in rows.items()}, heads)
    assert torch.equal(found, torch.cat([due[name] for name in rows]))
    assert not torch.allclose(found, muon_steps(thirds, {"qkv": whole}, heads)["qkv"])


def test_parts_are_rows_from_first_to_last() -> None:
    names = list(matrices(Tensors({"qkv": (18, 10)}, {"qkv": QUERIES_SHARE[::-1]}))["qkv"].items())
    assert names == [("v", slice(0, 3)), ("k", slice(3, 6)), ("q", slice(6, 18))]


def test_experts_are_matrices_each_and_a_convolution_is_its_rows_by_the_rest() -> None:
    """An expert is what one row of the tensor holds, if the model says that rows are apart; filters go together."""
    experts = Tensors({"w": (3, 5, 4)}, {"w": [Part(str(i), 1) for i in range(3)]})
    apart = Tensors({str(i): (5, 4) for i in range(3)}, {})
    filters, flat = Tensors({"w": (3, 5, 4)}, {}), Tensors({"w": (3, 20)}, {})
    with torch.no_grad():
        for i, parameter in enumerate(apart.parameters()):
            parameter.copy_(experts.w[i])
        flat.w.copy_(filters.w.flatten(1))
    whole = [drawn(f"gradient {step}", 3, 5, 4) for step in range(3)]
    found = muon_steps(experts, {"w": whole}, False)["w"]
    due = muon_steps(apart, {str(i): [g[i] for g in whole] for i in range(3)}, False)
    assert torch.equal(found, torch.stack(list(due.values())))
    together = muon_steps(filters, {"w": whole}, False)["w"]
    assert torch.equal(
        together.flatten(1), muon_steps(flat, {"w": [g.flatten(1) for g in whole]}, False)["w"]
    )
    assert not torch.allclose(found, together)


@pytest.mark.parametrize(
    "parts, why",
    [
        ({"matrix": [Part("q", 4), Part("k", 4)]}, "has 8 of 12 rows"),
        ({"matrix": [Part("q", 4), Part("k", 10)]}, "has 14 of 12 rows"),
        ({"matrix": [Part("q", 6), Part("q", 6)]}, "has the name 'q' twice"),
        ({"matrix": [Part("q", 6, heads=4), Part("k", 6)]}, "divides 6 rows of 'q' among 4 heads"),
        ({"matrix": [Part("q", 12), Part("k", 0)]}, "divides 0 rows of 'k'"),
        ({"gain": [Part("q", 3)]}, "names gain; leave it out"),
        ({"other": [Part("q", 3)]}, "names other; leave it out"),
    ],
)
def test_parts_that_are_not_the_tensor_are_refused(parts: dict, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        fused(Declared(**parts))


@pytest.mark.parametrize("said", [None, {"matrix": None}, {"matrix": [("q", 12)]}, [Part("q", 12)]])
def test_what_is_no_mapping_to_parts_is_refused(said: object) -> None:
    model = Declared()
    model.parts = said
    with pytest.raises(
        ConfigError, match=r"lists of froude.train.api.Part, but fused\(\) of Declared returned"
    ):
        fused(model)


@pytest.mark.parametrize("own", [True, nn.Linear(2, 2)])
def test_an_attribute_of_that_name_which_is_no_method_is_the_models_own(own: object) -> None:
    model = nn.Module()
    model.fused = own
    assert fused(model) == {}


def test_the_probe_refuses_them_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"fused\(\) of Wrong has 32 of 96 rows for layers.0.qkv"):
        check_model(RUN.replace({"model.factory": f"{__name__}:Wrong"}))
