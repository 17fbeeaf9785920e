"""Synthetic truths of the laws' tests, and the folder of published runs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from froude.laws.loss import law


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """A law never warns: numpy's and scipy's complaints are errors here."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture(autouse=True)
def few_replicates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals on demand take few replicates here; the test of published standard errors asks for its own number."""
    monkeypatch.setattr(law, "REPLICATES", 40)


@pytest.fixture(scope="session")
def reference() -> Path:
    folder = os.environ.get("FROUDE_REFERENCE_DATA", "")
    if not folder:
        pytest.skip(
            "FROUDE_REFERENCE_DATA is not set: it names the folder of published runs that are not ours to ship"
        )
    return Path(folder)


@pytest.fixture(scope="session")
def vendored() -> Path:
    return Path(__file__).parents[2] / "data"


Truth = tuple[float, float, float, float, float]


@pytest.fixture(scope="session")
def grid() -> Callable[..., pl.DataFrame]:
    """Return a maker of rows of L = E + A/N^alpha + B/D^beta on a grid of sizes and horizons."""

    def make(
        truth: Truth, sizes: int = 5, horizons: int = 5, noise: float = 0.0, seed: int = 0
    ) -> pl.DataFrame:
        e, a, b, alpha, beta = truth
        n, d = (
            v.ravel()
            for v in np.meshgrid(
                np.geomspace(1e7, 1e10, sizes), np.geomspace(1e9, 1e12, horizons), indexing="ij"
            )
        )
        loss = e + a * n**-alpha + b * d**-beta
        loss *= np.exp(noise * np.random.default_rng(seed).standard_normal(n.size))
        return pl.DataFrame({"params": n, "tokens": d, "loss": loss})

    return make
