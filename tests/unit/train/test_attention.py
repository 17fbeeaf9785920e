"""Options of attention and blocks, against a plain reference in fp64; what they count as, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from froude.config import Run
from froude.train import api
from froude.train.attention import rope, seen
from froude.train.model import NORM_EPS
from froude.train.optimizers.fused import matrices
from froude.train.parametrization import parameter_groups

YARN = {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_original": 16}
LLAMA3 = {"rope_scaling": "llama3", "rope_factor": 8.0, "rope_original": 32, "rope_base": 500_000.0}


def run_of(**model: Any) -> Run:
    sizes = {"width": 32, "head_dim": 8, "depth": 3, "context": 24, "vocab": 64, "base_width": 16}
    return Run(tokens=2400, batch=240, model={**sizes, "readout_sd": 0.5, **model})


def perturbed(run: Run) -> Any:
    """The run's model in fp64, each parameter moved so that none is zero or one."""
    model = api.build_model(run).double()
    drawn = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=drawn, dtype=torch.float64)
            parameter.add_(0.3 * noise * (float(parameter.std()) or 1.0))
    return model


def drawn_tokens(run: Run, windows: int = 2) -> Tensor:
    return torch.randint(
        run.model.vocab, (windows, run.model.context), generator=torch.Generator().manual_seed(1)
    )


def reference(run: Run, model: Any, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
    """Logits, token by token and head by head, as the options are defined."""
    w, shape = dict(model.named_parameters()), run.model
    H, G, K, T = (
        shape.width // shape.head_dim,
        shape.kv_heads or shape.width // shape.head_dim,
        shape.head_dim,
        0,
    )
    T = tokens.shape[1]
    cos, sin = (table.double() for table in rope.tables(shape))

    def norm(x: Tensor, gain: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + NORM_EPS).sqrt() * gain

    def turn(x: Tensor) -> Tensor:
        left, right = x[:, : K // 2], x[:, K // 2 :]
        return x * cos[:T] + torch.cat((-right, left), 1) * sin[:T]

    def bias(name: str) -> Tensor | float:
        return w.get(f"{name}_bias", 0.0)

    out = []
    for number, row in enumerate(tokens):
        x = w["embedding"][row]
        for i in range(shape.depth):
            at = f"layers.{i}"
            is_global = shape.global_every and (i + 1) % shape.global_every == 0
            h = norm(x, w[f"{at}.attention_norm"])
            q, k, v = (h @ w[f"{at}.qkv"].T + bias(f"{at}.qkv")).split((H * K, G * K, G * K), 1)
            heads = []
            for head in range(H):
                group = head // (H // G)
                one, key, value = (
                    q[:, head * K : (head + 1) * K],
                    k[:, group * K : (group + 1) * K],
                    v[:, group * K : (group + 1) * K],
                )
                if shape.qk_norm:
                    one, key = norm(one, w[f"{at}.q_gain"]), norm(key, w[f"{at}.k_gain"])
                scores = turn(one) @ turn(key).T * api.multiplier(run, "attention")
                for a in range(T):
                    for b in range(T):
                        far = shape.sliding_window and not is_global and a - b >= shape.sliding_window
                        other = documents is not None and documents[number, a] != documents[number, b]
                        if b > a or far or other:
                            scores[a, b] = -math.inf
                heads.append(scores.softmax(-1) @ value)
            attended = torch.cat(heads, 1) @ w[f"{at}.attention_out"].T + bias(f"{at}.attention_out")
            after = x + attended
            h = h if shape.parallel else norm(after, w[f"{at}.mlp_norm"])
            gate, up = (h @ w[f"{at}.gate_up"].T + bias(f"{at}.gate_up")).chunk(2, 1)
            x = after + (gate * gate.sigmoid() * up) @ w[f"{at}.down"].T + bias(f"{at}.down")
        x = norm(x, w["norm"])
        out.append(x @ w["readout"].T * api.multiplier(run, "logits"))
    return torch.stack(out)


def agrees(run: Run, documents: Tensor | None = None) -> None:
    model, tokens = perturbed(run), drawn_tokens(run)
    with torch.no_grad():
        found, due = model(tokens, documents), reference(run, model, tokens, documents)
    assert (found - due).abs().max() <= 1e-10 * due.abs().max()


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "kv_heads": {"kv_heads": 2},
    "one kv head, qk_norm": {"kv_heads": 1, "qk_norm": True},
    "sliding_window": {"sliding_window": 5},
    "window, some global": {"sliding_window": 5, "global_every": 2},
    "rope_base": {"rope_base": 500.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "biases": {"attention_bias": True, "mlp_bias": True},
    "parallel": {"parallel": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_is_what_the_reference_computes(name: str) -> None:
    agrees(run_of(**OPTIONS[name]))


def cut(T: int, *ends: int) -> Tensor:
    """Numbers of documents, neither from 0 nor rising, that end before these tokens."""
    numbers = (7, 3, 3, 9, 1)  # two neighbours of one number are one document
    return torch.tensor([numbers[sum(t >= end for end in ends)] for t in range(T)])


@pytest.mark.slow
@settings(max_examples=12)
@given(
    heads=st.sampled_from((1, 2, 4, 6)),
    share=st.sampled_from((1, 2, 4)),
    window=st.integers(0, 30),
    global_every=st.integers(0, 3),
    ends=st.lists(st.integers(0, 24), max_size=4).map(sorted),
    qk_norm=st.booleans(),
    parallel=st.booleans(),
    attention_bias=st.booleans(),
)
def test_options_together_are_what_the_reference_computes(
    heads: int, share: int, window: int, global_every: int, ends: list[int], **flags: bool
) -> None:
    kv_heads = heads // share if heads % share == 0 else 0
    run = run_of(
        width=8 * heads,
        depth=2,
        kv_heads=kv_heads,
        sliding_window=window,
        global_every=global_every if window else 0,
        documents=True,
        **flags,
    )
    agrees(run, torch.stack((cut(24, *ends), cut(24))))


def test_documents_of_a_window_are_as_if_alone() -> None:
    run = run_of(documents=True, kv_heads=2, sliding_window=6, global_every=3)
    model, tokens = perturbed(run), drawn_tokens(run, 1)
    documents = torch.tensor([[4] * 10 + [5] * 14])
    with torch.no_grad():
        together = model(tokens, documents)
        first, second = model(tokens[:, :10]), model(tokens[:, 10:])
        apart = model(tokens)
    alone = torch.cat((first, second), 1)
    # Positions are relative, so the second may begin at 0; but the table of angles is rounded to fp32.
    assert (together - alone).abs().max() <= 1e-7 * alone.abs().max()
    assert (apart - alone)[:, 10:].abs().min(-1).values.max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("scaling", ["llama3", "yarn"])
@pytest.mark.parametrize(
    "factor, original, base", [(8.0, 8192, 500_000.0), (4.0, 64, 10_000.0), (1.5, 32, 100.0)]
)
@pytest.mark.parametrize("head_dim", [8, 64, 128])
def test_frequencies_are_those_of_transformers(
    scaling: str, factor: float, original: int, base: float, head_dim: int
) -> None:
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_type": scaling, "rope_theta": base, "factor": factor}
    parameters |= {"original_max_position_embeddings": original}
    if scaling == "llama3":
        parameters |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = LlamaConfig(
        head_dim=head_dim, rope_parameters=parameters, max_position_embeddings=int(factor * original)
    )
    theirs, size = ROPE_INIT_FUNCTIONS[scaling](config, torch.device("cpu"))
    shape = run_of(
        head_dim=head_dim,
        width=head_dim,
        rope_base=base,
        rope_scaling=scaling,
        rope_factor=factor,
        rope_original=original,
    ).model
    assert rope.frequencies(shape).float().numpy() == pytest.approx(theirs.numpy(), rel=1e-5)
    cos, sin = rope.tables(shape)
    assert float((cos[3] ** 2 + sin[3] ** 2).sqrt()[0]) == pytest.approx(size, rel=1e-6)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_largest_attention_logit_is_one_that_softmax_is_given(name: str) -> None:
    run = run_of(**OPTIONS[name])
    model, tokens = perturbed(run), drawn_tokens(run)
    block, given = model.layers[0], []
    block.register_forward_pre_hook(lambda _, arguments: given.append(arguments))
    with torch.no_grad():
        model(tokens)
        q, k, _ = block._heads(block._normed(given[0][0][:1], block.attention_norm), *given[0][1:3])
    scores = (q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * block.scale)[0]
    T = tokens.shape[1]
    visible = [
        (a, b)
        for a in range(T)
        for b in range(a + 1)
        if not run.model.sliding_window or a - b < run.model.sliding_window
    ]
    due = max(float(scores[head, a, b]) for head in range(len(scores)) for a, b in visible)
    assert float(block.largest_attention_logit(*given[0])) == pytest.approx(due)


def test_flops_and_parameters_are_those_of_the_smaller_matrices_and_windows() -> None:
    plain, grouped = (api.build_model(run_of(**each)) for each in ({}, {"kv_heads": 1}))
    D, K, L, T = 32, 8, 3, 24
    less = L * 2 * 3 * K * D  # keys and values of three of four heads
    assert plain.flops_per_token() - grouped.flops_per_token() == 6 * less
    assert api.count_parameters(plain).hidden - api.count_parameters(grouped).hidden == less
    windowed = api.build_model(run_of(sliding_window=5, global_every=3))
    assert plain.flops_per_token() - windowed.flops_per_token() == 12 * D * 2 * (T - 5)
    assert api.build_model(run_of(sliding_window=T)).flops_per_token() == plain.flops_per_token()
    biased = api.count_parameters(api.build_model(run_of(attention_bias=True, mlp_bias=True)))
    assert biased.bias == L * (3 * D + D + 2 * 96 + D)
    assert api.count_parameters(api.build_model(run_of(parallel=True))).norm == (L + 1) * D


def test_an_optimizer_of_matrices_treats_queries_keys_and_values_apart() -> None:
    model = api.build_model(run_of(kv_heads=2, attention_bias=True))
    found = matrices(model)["layers.1.qkv"]
    assert found == {"q": slice(0, 32), "k": slice(32, 48), "v": slice(48, 64)}
    assert list(matrices(model, heads=True)["layers.1.qkv"]) == [
        *(f"q.{i}" for i in range(4)),
        *(f"{name}.{i}" for name in "kv" for i in range(2)),
    ]


def test_biases_start_at_zero_with_a_rate_of_their_own() -> None:
    run = run_of(attention_bias=True, mlp_bias=True, width=64)
    model = api.build_model(run)
    biases = [name for name, kind in model.kinds().items() if kind == "bias"]
    assert len(biases) == 3 * 4
    assert not any(model.get_parameter(name).any() for name in biases)
    rates = {
        id(p): group["lr"] / run.optimizer.lr
        for group in parameter_groups(run, model)
        for p in group["params"]
    }
    assert {rates[id(model.get_parameter(name))] for name in biases} == {1.0}
    assert rates[id(model.layers[0].qkv)] == 0.25  # a quarter of the rate at four times the base width


def test_other_parameters_start_as_without_the_option() -> None:
    plain, other = (
        api.build_model(run_of(**each)) for each in ({}, {"parallel": True, "kv_heads": 1, "mlp_bias": True})
    )
    for name in ("embedding", "layers.2.attention_out", "layers.2.down"):
        assert torch.equal(plain.get_parameter(name), other.get_parameter(name))


@pytest.mark.long
@pytest.mark.own_process
def test_a_mask_of_blocks_is_the_mask_of_booleans() -> None:
    """What a GPU is given, without compiling it."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    documents = torch.stack([cut(256, 100, 130), cut(256, 30)])
    rule = seen._rule(70, documents)
    blocks = create_block_mask(rule, 2, None, 256, 256, device="cpu")
    booleans = seen._booleans(rule, 2, 256, torch.device("cpu"))
    drawn = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 256, 16, generator=drawn) for heads in (4, 2, 2))
    due = seen.attend(q, k, v, booleans, 0.25)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seen, "_compiled", lambda name: {"flex_attention": flex_attention}[name])
        found = seen.attend(q, k, v, blocks, 0.25)
    assert (found - due).abs().max() < 1e-5
    first = seen.of_first(blocks, 256, torch.device("cpu"))
    assert torch.equal(first, booleans[0, 0])
    assert torch.equal(seen.of_first(None, 4, torch.device("cpu")), torch.ones(4, 4, dtype=torch.bool).tril())
