"""The model: counts, parametrizations, initialisation, foreign models."""

import math

import pytest
import torch

from froude.config import ConfigError, Run
from froude.train import api
from froude.train.model import Transformer
from froude.train.parametrization import attention_multiplier, parameter_groups, scales


def run_of(**changes):
    base = Run(
        tokens=76_800, batch=768, slots=12, optimizer={"lr": 2**-7.5}, schedule={"warmup_tokens": 7680}
    )
    return base.replace(changes)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_counts_add_up_to_the_real_model(tied, qk_norm):
    run = run_of(**{"model.width": 96, "model.depth": 3, "model.tied": tied, "model.qk_norm": qk_norm})
    model = api.build_model(run)
    counts = api.count_parameters(model)
    d, layers, head = 96, 3, 16
    assert counts.hidden == layers * 13 * d * d  # 4 d^2 of attention, 9 d^2 of SwiGLU at ratio 3
    assert counts.norm == (2 * layers + 1) * d + (2 * layers * head if qk_norm else 0)
    assert counts.embedding == 256 * d
    assert counts.readout == (0 if tied else 256 * d)
    assert counts.params_with_embeddings == sum(p.numel() for p in model.parameters())
    assert api.count_parameters(api.build_model(run, "meta")) == counts


def test_quickstart_convention_is_26_d_squared():
    counts = api.count_parameters(api.build_model(run_of(**{"model.width": 192})))
    assert counts.hidden == 26 * 192**2
    assert abs(counts.params / (26 * 192**2) - 1) < 0.002  # norms are counted too


def test_sp_is_mup_at_the_base_width_bit_for_bit():
    models = [api.build_model(run_of(parametrization=p)) for p in ("sp", "mup")]
    tokens = torch.arange(3 * 64).view(3, 64) % 256
    for left, right in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(left, right)
    torch.nn.init.normal_(models[0].readout, generator=torch.Generator().manual_seed(1))
    torch.nn.init.normal_(models[1].readout, generator=torch.Generator().manual_seed(1))
    assert torch.equal(models[0](tokens), models[1](tokens))
    groups = [parameter_groups(run_of(parametrization=p), models[0]) for p in ("sp", "mup")]
    settings = [{(g["lr"], g["weight_decay"], g["eps"]) for g in group} for group in groups]
    assert settings[0] == settings[1]


def test_mup_table_at_four_times_the_base_width():
    run = run_of(**{"model.width": 256, "model.base_width": 64, "optimizer.weight_decay": 0.1})
    model = api.build_model(run)
    hidden = scales(run, "hidden")
    assert (hidden.lr, hidden.weight_decay, hidden.eps) == (0.25, 4.0, 0.25)
    assert scales(run, "readout").lr == scales(run, "embedding").lr == scales(run, "norm").lr == 1.0
    assert scales(run, "norm").weight_decay == scales(run, "embedding").weight_decay == 0.0
    assert scales(run.replace({"optimizer.decay_embeddings": True}), "embedding").weight_decay == 1.0
    block = model.layers[0]
    assert block.qkv.std().item() == pytest.approx(256**-0.5, rel=0.02)
    assert block.gate_up.std().item() == pytest.approx(256**-0.5, rel=0.02)
    assert block.down.std().item() == pytest.approx(768**-0.5 / 2, rel=0.02)
    assert model.embedding.std().item() == pytest.approx(0.5, rel=0.02)
    assert model.readout.abs().max() == 0
    assert model.logit_multiplier == 0.25
    lr = {g["lr"] / run.optimizer.lr for g in parameter_groups(run, model)}
    assert lr == {0.25, 1.0}


def test_attention_scale_under_mup_follows_a_growing_head():
    run = run_of(**{"model.width": 128, "model.head_dim": 64, "model.base_head_dim": 16})
    assert attention_multiplier(run) == math.sqrt(16) / 64
    assert attention_multiplier(run.replace(parametrization="sp")) == 1 / math.sqrt(64)


def test_initialisation_depends_on_name_and_seed_only():
    two, three = api.build_model(run_of(**{"model.depth": 2})), api.build_model(run_of(**{"model.depth": 3}))
    assert torch.equal(two.layers[1].qkv, three.layers[1].qkv)  # what else is built does not matter
    assert not torch.equal(two.layers[0].qkv, two.layers[1].qkv)
    torch.manual_seed(999)
    assert torch.equal(api.build_model(run_of()).embedding, two.embedding)
    assert not torch.equal(api.build_model(run_of(seed=1)).embedding, two.embedding)


def test_no_position_sees_the_future():
    model = api.build_model(run_of())
    torch.nn.init.normal_(model.readout)
    tokens = torch.randint(0, 256, (2, 64), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 40:] = 7
    assert torch.equal(model(tokens)[:, :40], model(changed)[:, :40])
    assert not torch.equal(model(tokens)[:, 40:], model(changed)[:, 40:])


def test_foreign_code_needs_trust_and_a_sound_path():
    run = run_of(**{"model.factory": "foreign_model:factory"})
    with pytest.raises(ConfigError, match="--trust"):
        api.check_trust(run, trust=False)
    api.check_trust(run, trust=True)
    assert api.count_parameters(api.build_model(run)).bias == 64
    with pytest.raises(ConfigError, match="importable"):
        api.build_model(run_of(**{"model.factory": "no.such:thing"}))
    with pytest.raises(ConfigError, match="has no 'Nothing'"):
        api.build_model(run_of(**{"model.factory": "froude.train.model:Nothing"}))
    with pytest.raises(ConfigError, match="lacks"):
        api.build_model(run_of(**{"model.factory": "foreign_model:not_a_model"}))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"kv_heads": 3},
            r"`model\.options\.kv_heads`: .*Transformer reads none; did you mean `model\.kv_heads`\?",
        ),
        ({"n_kv_heads": 2}, r"did you mean `model\.kv_heads`\?"),
        ({"slidng_window": 8}, r"did you mean `model\.sliding_window`\?"),
        ({"init": "weights"}, r'it is for `model\.factory` "froude\.train\.hf:Model"; set that'),
    ],
)
def test_the_packages_own_model_refuses_options_and_says_where_they_belong(options, says):
    run = Run(tokens=768, model={"options": options})  # a stored one is still read
    with pytest.raises(ConfigError, match=says):
        api.build_model(run, "meta")


def test_a_factory_of_ones_own_may_have_options_and_build_the_packages():
    run = Run(tokens=768, model={"options": {"power": 1}, "factory": "mine:made"})
    assert Transformer(run).shape.options == {"power": 1}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 16 * 10**11}, "embedding of this one .* lower `model.width` or `model.vocab`$"),
        ({"width": 16 * 10**9}, "layers.0.qkv of this one .* lower `model.width`$"),
        (
            {"mlp_ratio": 1e30},
            r"gate_up of this one .* 1\.28e\+32 x 64; lower `model.width` or `model.mlp_ratio`$",
        ),
        ({"context": 10**15}, "1,000,000,000,000,000 are too many here; lower `model.context`$"),
    ],
)
def test_a_model_that_is_too_large_is_told_with_what_to_lower(changes, words):
    """Not blamed on the factory, which is ours."""
    batch = changes.get("context", 64)
    run = Run(tokens=batch, batch=batch, model={"vocab": 10**7, "width": 64} | changes)
    with pytest.raises(ConfigError, match=words):
        api.build_model(run, "meta")
