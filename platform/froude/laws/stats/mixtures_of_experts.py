"""Mixtures of experts, told by the names of a frame's columns: no law here is for them, and each would fit."""

import re
from collections.abc import Callable

import polars as pl

from froude.section import ConfigError

#: Parameters that a token passes through; in a dense run those are all of `params`.
ACTIVE = (
    *("active_params", "activated_params", "active_parameters", "activated_parameters"),
    *("n_active_params", "num_active_params", "params_active", "params_activated"),
)
#: Experts of a layer, or of those a token's; a dense run has 0 or 1. `top_k` alone may be a sampler's, and is left out.
EXPERTS = (
    *("experts", "num_experts", "n_experts", "moe_num_experts", "num_moe_experts", "num_local_experts"),
    *("n_routed_experts", "num_routed_experts"),
    *("num_experts_per_tok", "num_experts_per_token", "experts_per_token"),
)
NEAR = 0.01  # two counts of one model's parameters may differ by so much, as batch · steps and tokens may


def plain(name: str) -> str:
    """A column's name without case, - and _, and without what a tracker puts before it (`config.num_experts`)."""
    return re.sub("[-_]", "", re.split("[./ ]", name)[-1]).lower()


_ACTIVE, _EXPERTS = ({plain(name) for name in names} for names in (ACTIVE, EXPERTS))


def told_by(name: str) -> bool:
    """Whether a column of this name tells a mixture of experts from a dense model."""
    return plain(name) in _ACTIVE | _EXPERTS


def refuse(frame: pl.DataFrame, counted: pl.Series, where: Callable[[int], str]) -> None:
    """ConfigError where a row that counts is of a mixture of experts; `where` says which row that is, to its reader."""
    for name in frame.columns:
        if not told_by(name) or frame[name].dtype.is_nested():
            continue
        value = pl.col(name).cast(pl.Float64, strict=False)
        if plain(name) in _EXPERTS:
            sparse = value > 1
        elif "params" in frame.columns:
            sparse = (value / pl.col("params").cast(pl.Float64, strict=False) - 1).abs() > NEAR
        else:
            continue
        found = frame.select((sparse & value.is_finite()).fill_null(False) & counted).to_series().arg_true()
        if not found.len():
            continue
        row = int(found[0])
        number = frame.select(value).item(row, 0)
        has = f"{number:g} in column {name!r}"
        if plain(name) in _ACTIVE:
            has = f"{number:g} active of {float(frame['params'][row]):g} parameters"
        raise ConfigError(
            f"runs must be dense, since no law here is for a mixture of experts, but {where(row)} has {has}; "
            "leave such runs out, or rename a column that means something else"
        )
