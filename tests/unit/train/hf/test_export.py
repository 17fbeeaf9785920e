"""An export that transformers loads gives the run's logits: of the adapter, and of the package's own model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ship_texts import TEXTS
from tiny_hf import CONFIGS, FAMILIES, config_file, run_of

from froude.config import ConfigError, Run
from froude.corpora import tokenizer as tokenizers
from froude.corpora.prepare.whole import Options, prepare
from froude.store import Location
from froude.train import api
from froude.train.hf import config as configs
from froude.train.hf import directory, own
from froude.train.hf.directory import apart, write
from froude.train.hf.folding import translated
from froude.train.hf.tokenizer import SHARDS, TEXT_TOKENS, tokenizer_of

pytestmark = pytest.mark.slow

TOKENS = torch.arange(48).view(2, 24) * 37 % 256


def trained(run: Run) -> Any:
    """The run's model, each parameter moved so that none is zero or one."""
    model = api.build_model(run)
    drawn = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            size = float(parameter.std()) if parameter.ndim > 1 else 0.2
            parameter.add_(torch.randn(parameter.shape, generator=drawn) * (size or 0.2))
    return model


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def loaded(folder: Path, **how: Any) -> Any:
    return configs.transformers().AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, **how)


@torch.no_grad()
def difference(model: Any, net: Any) -> float:
    return apart(model(TOKENS), net.eval()(TOKENS).logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_the_adapter_comes_back_with_the_same_bits(family: str, tmp_path: Path) -> None:
    run = run_of(config_file(tmp_path, family), family, width=128)  # mup: logits are halved twice
    model = trained(run)
    found = write(run, weights_of(model), tmp_path / "out")
    net = loaded(tmp_path / "out", dtype=torch.float32)
    assert net.config.model_type == family
    bound = 1e-6 if family == "gpt2" else 0.0  # whose matrices lie the other way round there
    assert difference(model, net) <= bound
    assert found.cast <= bound
    put_out = net.generate(TOKENS[:1, :4], max_new_tokens=5, do_sample=False, eos_token_id=None)
    assert put_out.shape == (1, 9)


def test_a_run_in_a_shorter_context_keeps_the_positions_of_its_checkpoint(tmp_path: Path) -> None:
    config = config_file(tmp_path, "gpt2")
    first = run_of(config, "gpt2", {"parametrization": "sp"})
    write(first, weights_of(trained(first)), tmp_path / "first")
    options = {"config": str(tmp_path / "first"), "init": str(tmp_path / "first")}
    shorter = run_of(
        config, "gpt2", {"parametrization": "sp"}, options=options, context=first.model.context // 2
    )
    model = api.build_model(shorter)
    write(shorter, weights_of(model), tmp_path / "out")
    net = loaded(tmp_path / "out", dtype=torch.float32)
    assert net.config.max_position_embeddings == first.model.context
    tokens = TOKENS[:, :8]
    assert apart(model(tokens).detach(), net.eval()(tokens).logits.detach()) <= 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_factors_that_are_no_powers_of_two_are_folded_to_rounding(family: str, tmp_path: Path) -> None:
    sizes = {"width": 96, "base_width": 80, "base_depth": 3, "base_head_dim": 10}
    run = run_of(config_file(tmp_path, family), family, {"parametrization": "completep"}, **sizes)
    model = trained(run)
    found = write(run, weights_of(model), tmp_path / "out")
    assert difference(model, loaded(tmp_path / "out", dtype=torch.float32)) <= (
        0.0 if family == "granite" else 1e-6
    )
    assert ("nothing" in found.folded[0]) == (family == "granite")


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral", "olmo2"])
def test_tied_tables_and_biases_are_folded_too(family: str, tmp_path: Path) -> None:
    more = {"attention_bias": True, "mlp_bias": True} if family == "llama" else {}
    known = {**CONFIGS["llama"], **more, "model_type": family, "tie_word_embeddings": True}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"sliding_window": None, **known} if family == "mistral" else known))
    sizes = {"width": 96, "base_width": 80, "base_depth": 3, "base_head_dim": 10, "tied": True}
    run = run_of(config, family, {"parametrization": "completep"}, **sizes)
    model = trained(run)
    assert len([name for name in model.kinds() if name.endswith("bias")]) == {"llama": 14, "qwen2": 6}.get(
        family, 0
    )
    write(run, weights_of(model), tmp_path / "out")
    assert difference(model, loaded(tmp_path / "out", dtype=torch.float32)) <= 1e-6


@settings(max_examples=10)
@given(
    parametrization=st.sampled_from(("sp", "mup", "depth_mup", "completep")),
    qk_norm=st.booleans(),
    tied=st.booleans(),
    shape=st.sampled_from(((64, 16), (48, 8), (96, 32))),
    base_width=st.sampled_from((32, 48, 64)),
    base_depth=st.integers(1, 3),
    base_head_dim=st.sampled_from((0, 8, 20)),
)
def test_the_packages_own_model_in_each_layout(
    parametrization: str,
    qk_norm: bool,
    tied: bool,
    shape: tuple[int, int],
    base_width: int,
    base_depth: int,
    base_head_dim: int,
    tmp_path_factory: Any,
) -> None:
    sizes = {"base_width": base_width, "base_depth": base_depth, "base_head_dim": base_head_dim, "depth": 2}
    width, head_dim = shape
    run = Run(
        tokens=768,
        parametrization=parametrization,
        model={
            **sizes,
            "width": width,
            "head_dim": head_dim,
            "qk_norm": qk_norm,
            "tied": tied,
            "mlp_ratio": 2.5,
        },
    )
    model = trained(run)
    folder = tmp_path_factory.mktemp("own") / "out"
    found = write(run, weights_of(model), folder)
    net = loaded(folder, dtype=torch.float32)
    multiplied = any(abs(factor - 1) > 1e-9 for factor in _beyond_plain(run))
    assert net.config.model_type == ("qwen3" if qk_norm else "granite" if multiplied else "llama")
    assert difference(model, net) <= 2e-6
    assert found.cast == found.difference


YARN = {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_original": 16}
LLAMA3 = {"rope_scaling": "llama3", "rope_factor": 8.0, "rope_original": 16, "rope_base": 5e5}


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ({"kv_heads": 2, "base_width": 64, "attention_bias": True, "mlp_bias": True, **LLAMA3}, "llama"),
        ({"kv_heads": 1, "mlp_bias": True, "tied": True, **YARN}, "granite"),
        ({"kv_heads": 2, "attention_bias": True, "qk_norm": True, "rope_base": 1e6}, "qwen3"),
        ({"qk_norm": True, "sliding_window": 7, "global_every": 2}, "qwen3"),
        ({"kv_heads": 2, "sliding_window": 7, **YARN}, "mistral"),
        ({"sliding_window": 64}, "granite"),  # which is all of the context
    ],
)
def test_options_of_attention_in_each_layout(model: dict[str, Any], kind: str, tmp_path: Path) -> None:
    run = Run(tokens=768, model={"width": 64, "depth": 3, "base_width": 32, **model})
    own = trained(run)
    write(run, weights_of(own), tmp_path / "out")
    net = loaded(tmp_path / "out", dtype=torch.float32)
    assert net.config.model_type == kind
    assert difference(own, net) <= 2e-6


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"parallel": True}, "has `model.parallel`, and the run has True; use --format safetensors"),
        ({"qk_norm": True, "mlp_bias": True}, "has `model.mlp_bias` and `model.qk_norm`"),
        ({"sliding_window": 8, "global_every": 2}, "has `model.global_every` and `model.sliding_window`"),
        (
            {"sliding_window": 8, "attention_bias": True},
            "has `model.attention_bias` and `model.sliding_window`",
        ),
    ],
)
def test_options_that_no_architecture_has_are_refused_by_name(model: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        translated(Run(tokens=768, model=model), {})


def _beyond_plain(run: Run) -> list[float]:
    scores = api.multiplier(run, "attention") * run.model.head_dim**0.5
    return [api.multiplier(run, "logits"), api.multiplier(run, "residual"), scores]


def test_weights_of_granites_layout_are_the_runs_own_bits(tmp_path: Path) -> None:
    run = Run(tokens=768, model={"width": 96, "base_width": 64, "base_head_dim": 8})
    model = trained(run)
    write(run, weights_of(model), tmp_path / "out")
    net = loaded(tmp_path / "out", dtype=torch.float32)
    assert torch.equal(net.model.layers[1].mlp.down_proj.weight, model.layers[1].down)
    assert torch.equal(net.lm_head.weight, model.readout)
    assert (net.config.logits_scaling, net.config.attention_multiplier) == (1.5, 8**0.5 / 16)


def test_a_cast_is_told_and_loads_in_its_dtype(tmp_path: Path) -> None:
    run = Run(tokens=768, model={"width": 32})
    found = write(run, weights_of(trained(run)), tmp_path / "out", dtype="bf16")
    assert 1e-4 < found.cast < 0.1
    assert found.difference < 1e-6
    assert loaded(tmp_path / "out", dtype="auto").dtype == torch.bfloat16


def test_a_fold_that_is_wrong_is_no_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from froude.train.hf import folding

    run = run_of(config_file(tmp_path, "llama"), width=128)
    monkeypatch.setattr(folding, "_fold", lambda *_: ("nothing",))
    with pytest.raises(ConfigError, match="an export must give the run's logits to 1e-06"):
        write(run, weights_of(trained(run)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def sharp(context: int = 4096) -> tuple[Run, dict[str, torch.Tensor]]:
    """A long window, and attention that goes by small differences of angles, as a trained model's does."""
    sizes = {"width": 64, "head_dim": 64, "depth": 2, "context": context, "readout_sd": 0.1, "mlp_ratio": 1.0}
    run = Run(tokens=context, batch=context, model=sizes, data={"path": "/nowhere"})
    weights = weights_of(api.build_model(run))
    for name in (name for name in weights if name.endswith("qkv")):
        weights[name][:128] *= 3
    return run, weights


def test_what_fp32_makes_of_angles_far_from_the_start_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "WINDOWS", 1)
    run, weights = sharp()
    assert write(run, weights, tmp_path / "out").difference <= 1e-6
    monkeypatch.setattr(directory, "ANGLE", 0.0)  # our own angles, in fp64
    with pytest.raises(ConfigError, match=r"logits to 0\.0001 of the largest"):
        write(run, weights, tmp_path / "other")


@pytest.mark.parametrize("wrong", [{"rope_theta": 10_010.0}, {"rope_type": "linear", "factor": 1.001}])
def test_angles_that_are_wrong_are_no_export(
    wrong: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = own._rope
    monkeypatch.setattr(own, "_rope", lambda shape: {**right(shape), **wrong})
    with pytest.raises(ConfigError, match="an export must give the run's logits"):
        write(*sharp(512), tmp_path / "out")


def test_what_no_architecture_computes_is_refused() -> None:
    capped = Run(tokens=768, model={"softcap": 30.0})
    with pytest.raises(ConfigError, match=r"`model\.softcap`, and the run has 30"):
        translated(capped, {})
    with pytest.raises(ConfigError, match=r"the run's is my:Model"):
        translated(Run(tokens=768, model={"factory": "my:Model"}), {})


def test_the_tokenizer_comes_along(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    run = Run(tokens=768, data={"options": {"tokenizer": str(tmp_path / "tokenizer.json")}})
    write(run, weights_of(trained(run)), tmp_path / "out")
    said = json.loads((tmp_path / "out/tokenizer_config.json").read_text())
    assert said == {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64}


def test_the_token_that_ended_documents_is_told_unless_the_settings_have_one(tmp_path: Path) -> None:
    words = tmp_path / "tokenizer.json"
    words.write_bytes(tokenizers.trained(TEXTS, 300))
    options = {"tokenizer": str(words)}

    def told(*parts: dict[str, Any]) -> Any:
        one, _ = tokenizer_of(Run(tokens=768, model={"vocab": 300}, data={"parts": list(parts)}))
        assert one is not None
        one.write(tmp_path, 64)
        said = json.loads((tmp_path / "tokenizer_config.json").read_text()).get("eos_token")
        (tmp_path / "tokenizer_config.json").unlink()
        return said

    plain = {"name": "a", "weight": 1, "source": TEXT_TOKENS, "path": "a.jsonl", "options": options}
    other = plain | {"name": "b", "options": options | {"eod": "s"}}
    assert told(plain) == "<|endoftext|>"
    assert told(other) == "s"
    assert told(plain, other) is None
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    assert told(plain) == "</s>"


def test_parts_with_different_tokenizers_have_none_to_export(tmp_path: Path) -> None:
    shards: dict[str, dict[str, Any]] = {}
    for name, size in (("a", 300), ("b", 300), ("c", 310)):
        texts, words = tmp_path / f"{name}.jsonl", tmp_path / f"{size}.json"
        texts.write_text("".join(json.dumps({"text": f"{name} {text}"}) + "\n" for text in TEXTS))
        words.write_bytes(tokenizers.trained(TEXTS, size))
        prepare([str(texts)], Location.parse(tmp_path / name), Options(str(words), held_out=0.2))
        shards[name] = {"name": name, "source": SHARDS, "path": str(tmp_path / name), "weight": 1}

    def found(*names: str) -> tuple[Any, str]:
        parts = [shards[name] for name in names] + [{"name": "kjv", "weight": 1}]
        return tokenizer_of(Run(tokens=768, model={"vocab": 310}, data={"parts": parts}))

    one, said = found("a", "b")
    assert one.content == (tmp_path / "300.json").read_bytes()
    assert said == f"sha256 {one.sha256}; that of kjv is not known"
    none, why = found("a", "c")
    assert none is None
    assert why.startswith(f"none, as the run's data have different ones (SHA-256 a {one.sha256[:12]}, c ")
    assert found()[0] is None
    (tmp_path / "b/tokenizer.json").write_bytes((tmp_path / "310.json").read_bytes())
    with pytest.raises(ConfigError, match=r"must be the one that the run's data were made with, SHA-256"):
        found("b")
