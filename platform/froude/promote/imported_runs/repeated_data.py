"""Runs that saw their data several times, by the names of a table's columns: to the loss law all tokens are fresh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from froude.laws.stats.mixtures_of_experts import NEAR, plain

#: Tokens of data before they repeat, and how often a run has seen them.
UNIQUE, EPOCHS = "unique_tokens", "epochs"
_UNIQUE = {plain(name) for name in (UNIQUE, "num_unique_tokens", "n_unique_tokens")}
_EPOCHS = {plain(name) for name in (EPOCHS, "num_epochs", "n_epochs")}
#: Epochs up to which a token seen again is worth nearly as much as a fresh one (Muennighoff et al. 2305.16264).
HARMLESS = 4.0


def told_by(name: str) -> bool:
    """Whether a column of this name tells how often a run saw its data."""
    return plain(name) in _UNIQUE | _EPOCHS


def repeated(numbers: pl.DataFrame, counted: pl.Series) -> dict[str, float]:
    """How many of the rows that count saw their data more than HARMLESS times (`rows`), and the most of these.

    `numbers` has `tokens` and the columns that tell; the dictionary is empty where no row did.
    """
    told = [
        pl.col("tokens") / pl.col(name) if plain(name) in _UNIQUE else pl.col(name)
        for name in numbers.columns
        if told_by(name)
    ]
    if not told:
        return {}
    most = pl.max_horizontal(pl.when(each.is_finite()).then(each) for each in told)
    epochs = numbers.select(most.fill_null(1.0)).to_series()
    many = epochs.filter(counted & (epochs > HARMLESS * (1 + NEAR))).to_list()  # tokens are whole steps
    return {"rows": len(many), "most": max(many)} if many else {}


def doubts(stage: Mapping[str, Any]) -> tuple[str, ...]:
    """The reason where the runs of this stage of a study.json repeat their data too often."""
    if not (said := stage.get("repeated")):
        return ()
    return (
        f"{said['rows']} runs saw their data more than {HARMLESS:g} times (up to {said['most']:.3g}), and a token seen "
        "again so often is worth less than the fresh one that the law takes it for: leave them out, or fit "
        "laws.data_constrained, which knows unique tokens",
    )
