"""Mixtures of experts are refused by the names of columns, wherever a law reads a frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest

from froude import laws
from froude.config import ConfigError
from froude.laws.stats.mixtures_of_experts import told_by

SIZES, HORIZONS = (v.ravel() for v in np.meshgrid(np.geomspace(1e7, 1e10, 4), np.geomspace(1e9, 1e12, 4)))
RUNS = pl.DataFrame(
    {
        "params": SIZES,
        "tokens": HORIZONS,
        "unique_tokens": HORIZONS,
        "width": np.sqrt(SIZES),
        "lr": 1 / np.sqrt(SIZES),
        "loss": 1.8 + 480 / SIZES**0.35 + 2100 / HORIZONS**0.37,
    }
)
LAWS: list[Callable[[pl.DataFrame], Any]] = [
    laws.loss_law,
    laws.kaplan,
    laws.data_constrained,
    laws.comparator,
    laws.lr_transfer,
    laws.optimum_law,
]


@pytest.mark.parametrize("law", LAWS)
def test_a_law_refuses_runs_of_which_a_token_sees_a_part(law: Callable[[pl.DataFrame], Any]) -> None:
    sparse = RUNS.with_columns(active_params=pl.col("params") / 4)
    with pytest.raises(ConfigError) as error:
        law(sparse)
    said = str(error.value)
    assert "must be dense" in said
    assert "row 0 has 2.5e+06 active of 1e+07 parameters; leave such runs out" in said
    law(RUNS.with_columns(active_params=pl.col("params")))


@pytest.mark.parametrize(
    "name",
    ["Active-Params", "activated_params", "n_active_params", "PARAMS_ACTIVE", "config.active_parameters"],
)
def test_active_parameters_are_known_by_their_usual_names(name: str) -> None:
    with pytest.raises(ConfigError, match="row 15 has 1e\\+09 active of 1e\\+10 parameters"):
        laws.loss_law(RUNS.with_columns(pl.Series(name, [*SIZES[:-1], 1e9])))


@pytest.mark.parametrize(
    "name",
    [
        *("num_experts", "n_experts", "Experts", "moe-num-experts", "numLocalExperts", "n_routed_experts"),
        *("num_experts_per_tok", "model/num_experts"),
    ],
)
def test_experts_are_known_by_their_usual_names(name: str) -> None:
    with pytest.raises(ConfigError, match=f"row 15 has 8 in column '{name}'; leave"):
        laws.loss_law(RUNS.with_columns(pl.Series(name, [None, 0, 1] * 5 + [8])))
    for dense in ([None] * 16, [0] * 16, [1] * 16, [0, 1, None, float("nan")] * 4, ["1", "none"] * 8):
        assert laws.loss_law(RUNS.with_columns(pl.Series(name, dense, strict=False))).status == "ok"


def test_rows_that_do_not_count_and_columns_of_other_things_are_let_be() -> None:
    status = pl.Series("status", ["finished"] * 15 + ["failed"])
    odd = RUNS.with_columns(status, num_experts=pl.Series([1] * 15 + [8]))
    assert laws.loss_law(odd).status == "ok"
    others = {"active_users": 3.0, "top_k": 50, "experts_comment": "8 of them", "expert_loss": 2.0}
    assert not any(told_by(name) for name in [*others, *RUNS.columns])
    assert laws.loss_law(RUNS.with_columns(**{k: pl.lit(v) for k, v in others.items()})).status == "ok"
    # Without a count of all parameters there is nothing to hold the active ones against.
    assert laws.lr_transfer(RUNS.drop("params").with_columns(active_params=pl.lit(1.0))) is not None
