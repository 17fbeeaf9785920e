"""The adapter: what it derives from a config, under which rules its models start and train, what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_hf import FAMILIES, config_file, run_of

from froude.config import ConfigError, Run
from froude.train import api
from froude.train.hf import config as configs
from froude.train.memory import weights as made
from froude.train.optimizers.fused import matrices
from froude.train.probe.soundness import check_model
from froude.train.trainer import Trainer

EXPECTED: dict[str, dict[str, int]] = {  # of width 64, 2 blocks, 256 tokens, 2 key heads of 16
    "llama": {"embedding": 1, "hidden": 14, "norm": 5, "readout": 1},
    "qwen3": {"embedding": 1, "hidden": 14, "norm": 9, "readout": 1},
    "olmo2": {"embedding": 1, "hidden": 14, "norm": 9, "readout": 1},
    "granite": {"embedding": 1, "hidden": 14, "norm": 5, "readout": 1},
    "gpt2": {"embedding": 2, "hidden": 8, "norm": 5, "bias": 13},
}


@pytest.fixture(autouse=True)
def as_before() -> Any:
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_becomes_a_model_that_keeps_the_contract_and_trains(family: str, tmp_path: Path) -> None:
    run = run_of(config_file(tmp_path, family), family)
    trainer = Trainer(run)
    model: Any = trainer.model
    kinds = list(model.kinds().values())
    assert {kind: kinds.count(kind) for kind in set(kinds)} == EXPECTED[family]
    assert len(model.blocks()) == 2
    check_model(run)
    losses = [trainer.step(run, step).loss for step in range(run.steps)]
    assert losses[-1] < losses[0]
    assert math.isfinite(trainer.evaluate())


@pytest.mark.parametrize("family", FAMILIES)
def test_each_parameter_starts_as_its_kind_must(family: str, tmp_path: Path) -> None:
    run = run_of(config_file(tmp_path, family), family, width=128, readout_sd=0.25)
    model: Any = api.build_model(run)
    for name, parameter in model.named_parameters():
        kind = model.kinds()[name]
        if kind in ("norm", "bias"):
            assert bool((parameter == (1 if kind == "norm" else 0)).all())
            continue
        sd = api.initial_sd(run, kind, parameter.shape[1])
        if name.endswith(("o_proj.weight", "down_proj.weight", "c_proj.weight")) and family != "olmo2":
            sd *= api.branch_sd(run)
        assert float(parameter.detach().std()) == pytest.approx(sd, rel=0.1)


@pytest.mark.parametrize("family", FAMILIES)  # of which GPT-2 is tied
def test_several_workers_make_the_same_weights_by_name(family: str, tmp_path: Path) -> None:
    check_same(run_of(config_file(tmp_path, family), family, readout_sd=0.25))


def check_same(run: Run) -> None:
    late, whole = api.build_model(run, workers=2), api.build_model(run)
    assert all(parameter.is_meta for parameter in late.parameters())
    assert not any(buffer.is_meta for buffer in late.buffers())
    made.maker(late)(late)
    found = dict(late.named_parameters())
    assert all(torch.equal(found.pop(name), value) for name, value in whole.named_parameters())
    assert not found
    tokens = torch.arange(64).view(2, 32) * 37 % 256
    with torch.no_grad():
        assert torch.equal(late.eval()(tokens), whole.eval()(tokens))


@settings(max_examples=15)
@given(
    family=st.sampled_from(FAMILIES),
    heads=st.sampled_from((2, 4, 6, 8)),
    head_dim=st.sampled_from((8, 16)),
    depth=st.integers(1, 5),
    vocab=st.integers(2, 600),
    context=st.integers(8, 300),
)
def test_one_config_gives_the_whole_ladder(
    family: str, heads: int, head_dim: int, depth: int, vocab: int, context: int, tmp_path_factory: Any
) -> None:
    config = config_file(tmp_path_factory.getbasetemp() / "ladder", family)
    width = heads * head_dim
    sizes = {"width": width, "head_dim": head_dim, "depth": depth, "vocab": vocab, "context": context}
    batch = context * 2
    model: Any = api.build_model(
        run_of(config, family, {"batch": batch, "tokens": batch * 2}, **sizes), "meta"
    )
    held = model.net.config
    assert (held.hidden_size, held.num_hidden_layers, held.vocab_size) == (width, depth, vocab)
    assert held.max_position_embeddings >= context
    assert held.num_attention_heads == heads
    if family != "gpt2":
        assert held.num_key_value_heads * 2 == heads
        assert held.intermediate_size == round(width * 176 / 64)
    assert held.eos_token_id is None or held.eos_token_id < vocab
    products = sum(
        p.numel() for n, p in model.named_parameters() if model.kinds()[n] in ("hidden", "readout")
    )
    products += vocab * width if family == "gpt2" else 0
    assert model.flops_per_token() == 6.0 * products + 12.0 * depth * context * width


def test_queries_keys_and_values_of_gpt_2_are_matrices_of_their_own(tmp_path: Path) -> None:
    run = run_of(config_file(tmp_path, "gpt2"), "gpt2")
    found = matrices(api.build_model(run))
    assert list(found["transformer.h.0.attn.c_attn.weight"]) == ["q", "k", "v"]
    assert list(found["transformer.h.0.mlp.c_fc.weight"]) == [""]


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "gpt2"])
def test_heads_of_separate_queries_keys_and_values_are_matrices(family: str, tmp_path: Path) -> None:
    model: Any = api.build_model(
        run_of(config_file(tmp_path, family), family)
    )  # 4 heads share 2 of keys and values
    found, whole = matrices(model, heads=True), matrices(model)
    assert list(found["model.layers.1.self_attn.q_proj.weight"]) == ["0", "1", "2", "3"]
    for name in ("k_proj", "v_proj"):
        assert found[f"model.layers.1.self_attn.{name}.weight"] == {"0": slice(0, 16), "1": slice(16, 32)}
    assert list(found["model.layers.1.self_attn.o_proj.weight"]) == [""]
    assert {tuple(parts) for parts in whole.values()} == {
        ("",)
    }  # as before it named any: states keep their names


def test_dropout_is_off_and_what_is_replaced_is_told(tmp_path: Path) -> None:
    told = {
        family: " ".join(check_model(run_of(config_file(tmp_path, family), family))) for family in FAMILIES
    }
    assert "dropout of the config is off (attention_dropout)" in told["llama"]
    assert "resid_pdrop, embd_pdrop, attn_pdrop" in told["gpt2"]
    assert (
        "attention_multiplier 0.0625 of the config is replaced by the parametrization's, 0.25"
        in told["granite"]
    )
    assert told["qwen3"] == told["olmo2"] == ""


def test_a_padding_token_of_the_config_is_trained(tmp_path: Path) -> None:
    model = api.build_model(run_of(config_file(tmp_path, "llama"), readout_sd=1.0))
    model(torch.full((1, 8), 1)).logsumexp(-1).sum().backward()
    gradient = model.get_parameter("model.embed_tokens.weight").grad
    assert gradient is not None
    assert float(gradient[1].abs().max()) > 0


def test_the_material_has_the_configs_hash_and_the_librarys_version(tmp_path: Path) -> None:
    config = config_file(tmp_path, "llama")
    run = run_of(config)
    first = api.material_of(run)
    assert first.versions["transformers"]
    config_file(tmp_path, "llama", rope_theta=1e4)
    assert any("the model's config is" in change for change in first.changes(api.material_of(run)))


def test_a_path_is_named_so_that_every_process_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_file(tmp_path, "llama")
    monkeypatch.chdir(tmp_path)
    assert run_of(Path("llama")).model.options["config"] == str(tmp_path / "llama")


REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "unknown type": ("llama", {"model_type": "gemma2"}, {}, "`model_type` of a config must be one whose"),
    "unknown key": ("llama", {"num_experts": 8}, {}, "each key .* has num_experts"),
    "ill typed": ("llama", {"hidden_size": "wide"}, {}, "LlamaConfig of .*; correct the config"),
    "sliding": ("qwen3", {"use_sliding_window": True}, {}, "`use_sliding_window` of a config must be false"),
    "layer types": ("qwen3", {"layer_types": ["sliding_attention"] * 3}, {}, "full attention"),
    "part of a head": (
        "llama",
        {"partial_rotary_factor": 0.5},
        {},
        "`partial_rotary_factor` of a config must be 1.0",
    ),
    "activation": (
        "llama",
        {"hidden_act": "nope"},
        {},
        "config.json must not raise, but got KeyError: 'nope'",
    ),
    "by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, {}, "scale_attn_by_inverse_layer_idx"),
    "rope": (
        "llama",
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        {},
        "`rope_type` of a config",
    ),
    "tied": ("llama", {}, {"tied": True}, "`model.tied` must be what `tie_word_embeddings`"),
    "softcap": ("llama", {}, {"softcap": 30.0}, "`model.softcap` is for the package's own"),
    "own key heads": ("llama", {}, {"kv_heads": 2}, "`model.kv_heads` is for the package's own"),
    "documents": ("llama", {}, {"documents": True}, "`model.documents` is for the package's own"),
    "key heads": (
        "llama",
        {"num_attention_heads": 8, "num_key_value_heads": 4},
        {"width": 144},
        "whole|divide",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_adapter_does_not_know_is_refused(name: str, tmp_path: Path) -> None:
    family, changes, model, says = REFUSED[name]
    with pytest.raises(ConfigError, match=says):
        api.build_model(run_of(config_file(tmp_path, family, **changes), family, **model), "meta")


@pytest.mark.parametrize("content", ["", "[1]", "{", None])
def test_a_config_that_is_none_is_named(content: str | None, tmp_path: Path) -> None:
    place = tmp_path / "config.json"
    if content is not None:
        place.write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        api.build_model(run_of(place), "meta")


def test_a_module_without_a_type_here_is_named_with_its_parameter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from froude.train.hf import model as adapter

    class Gate(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

    def with_gate(config: Any) -> Any:
        net = built(config)
        net.model.layers[1].mlp.router = Gate()
        return net

    built = adapter.built
    monkeypatch.setattr(adapter, "built", with_gate)
    with pytest.raises(ConfigError, match=r"model\.layers\.1\.mlp\.router\.weight is that of a Gate"):
        api.build_model(run_of(config_file(tmp_path, "llama")), "meta")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_is_a_start_where_the_run_computes_the_same(family: str, tmp_path: Path) -> None:
    from froude.train.hf.directory import apart, write

    config = config_file(tmp_path, family)
    first = run_of(config, family, {"parametrization": "sp"}, readout_sd=0.5)
    model = api.build_model(first)
    drawn = torch.Generator().manual_seed(7)
    with torch.no_grad():  # gains of one and biases of zero would hide one another's places
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=drawn) * 0.1)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    write(first, weights, tmp_path / "out", shard="100KB")
    assert len(json.loads((tmp_path / "out/model.safetensors.index.json").read_bytes())["weight_map"]) > 20
    options = {"config": str(tmp_path / "out"), "init": str(tmp_path / "out")}

    def second(**changes: Any) -> Run:
        return run_of(config, family, {"parametrization": "sp", "seed": 1, **changes}, options=options)

    started = api.build_model(second())
    loaded = dict(started.named_parameters())
    assert all(torch.equal(loaded[name], value) for name, value in weights.items())
    check_same(second())
    tokens = torch.arange(64).view(2, 32) * 37 % 256
    theirs = configs.transformers().AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32
    )
    with torch.no_grad():
        assert apart(started.eval()(tokens), theirs.eval()(tokens).logits) <= 1e-6
    assert "the weights at the start" in api.material_of(second()).corpus
    with pytest.raises(ConfigError, match=r"mup multiplies logits by 0\.5 instead of 1"):
        api.build_model(second(parametrization="mup"))
    with pytest.raises(
        ConfigError, match=r"must have the sizes of the checkpoint .* has (model\.embed_tokens|transformer\.)"
    ):
        api.build_model(second().replace({"model.width": 96}))
    with pytest.raises(ConfigError, match=r"`model\.options\.init` must name a folder"):
        api.build_model(second().replace({"model.options.init": str(tmp_path)}))
