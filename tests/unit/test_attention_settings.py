"""Settings of attention: what is refused, stored, scaled with the width, and named in rows."""

from __future__ import annotations

from typing import Any

import pytest

from froude.config import ConfigError, Run

SCALED = {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_original": 16}


def run_of(**model: Any) -> Run:
    sizes = {"width": 32, "head_dim": 8, "depth": 3, "context": 24, "vocab": 64}
    return Run(tokens=2400, batch=240, model={**sizes, **model})


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"kv_heads": 3},
        r"`model.kv_heads` must divide the 4 heads of width 32 and head_dim 8, but got 3; use 1, 2 or 4",
    ),
    ({"kv_heads": 8}, "must divide the 4 heads"),
    (
        {"global_every": 2},
        "`model.global_every` is for blocks with a `model.sliding_window`, but got 2 without",
    ),
    ({"rope_scaling": "yarn"}, r'need each other, but got "yarn", 1 and 0; set all three'),
    ({"rope_factor": 2.0}, "need each other"),
    ({"rope_scaling": "linear"}, "`model.rope_scaling` must be 'none', 'llama3' or 'yarn', but got 'linear'"),
    ({"num_key_value_heads": 2}, "did you mean `model.kv_heads`"),
    ({"window": 2}, "did you mean `model.sliding_window`"),
    ({"rope_theta": 2.0}, "did you mean `model.rope_base`"),
    ({"use_parallel_residual": True}, "did you mean `model.parallel`"),
    (
        {"factory": "my:Model", "kv_heads": 2},
        r"`model.kv_heads` is for the package's own model, but got 2 with my:Model",
    ),
]


@pytest.mark.parametrize("model, says", REFUSED, ids=[says[:30] for _, says in REFUSED])
def test_what_cannot_be_is_refused(model: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        run_of(**model)


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"kv_heads": 2},
        {"sliding_window": 5, "global_every": 2},
        {"documents": True},
        {"rope_base": 500.0},
        SCALED,
        {"attention_bias": True},
        {"mlp_bias": True},
        {"parallel": True},
    ],
)
def test_options_are_in_the_fingerprint_and_come_back_from_toml(model: dict[str, Any]) -> None:
    plain, run = run_of(), run_of(**model)
    assert Run.from_toml(run.to_toml()) == run
    assert (run.fingerprint == plain.fingerprint) == (not model)
    assert set(model) >= {key for key in run.to_dict()["model"] if key not in plain.to_dict()["model"]}


def test_kv_heads_keep_their_share_of_the_heads_unless_they_are_named() -> None:
    run = run_of(kv_heads=2)

    def heads(**changes: Any) -> int:
        return run.replace({f"model.{key}": value for key, value in changes.items()}).model.kv_heads

    assert heads(width=128) == 8
    assert heads(width=128, kv_heads=2) == 2
    assert heads(head_dim=16) == 1
    assert heads(width=8) == 1  # of one
    assert heads(depth=2) == 2
    assert run_of().replace({"model.width": 64}).model.kv_heads == 0


def test_what_is_not_plain_is_named_without_sizes() -> None:
    assert run_of().model.architecture == run_of(kv_heads=4).model.architecture == ""
    run = run_of(kv_heads=2, sliding_window=5, parallel=True, attention_bias=True, **SCALED)
    said = "kv_heads 1/2, sliding_window 5, rope_scaling yarn, rope_factor 4.0, rope_original 16, "
    said += "attention_bias, parallel"
    assert run.model.architecture == said
    assert run.replace({"model.width": 64}).model.architecture == said
