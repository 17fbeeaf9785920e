"""The covariance of a Huber fit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from froude.laws.stats import robust


@pytest.mark.parametrize("noise,wanted", [(1e-4, 1.0), (1e-2, math.sqrt(math.pi / 2))])
def test_a_location_has_the_standard_error_of_a_mean_or_of_a_median(noise: float, wanted: float) -> None:
    """Huber 1964: with noise far below delta the estimate is a mean, with noise far above it a median."""
    rng, rows, found = np.random.default_rng(0), 100, []
    for _ in range(100):
        draws = noise * rng.standard_normal(rows)
        residual = draws - (draws.mean() if noise < robust.DELTA else np.median(draws))
        ones, groups = np.ones(rows), np.arange(rows)
        found.append(robust.covariance(ones[:, None], residual, ones, groups, robust.DELTA).item())
    assert math.sqrt(np.mean(found)) == pytest.approx(wanted * noise / 10, rel=0.1)


def test_rows_that_repeat_their_group_add_nothing_to_what_is_known() -> None:
    residual = 0.01 * np.random.default_rng(0).standard_normal(50)
    residual -= np.median(residual)
    ones, groups = np.ones(200), np.repeat(np.arange(50), 4)
    once = robust.covariance(ones[:50, None], residual, ones[:50], groups[::4], 1e-3).item()
    again = robust.covariance(ones[:, None], np.repeat(residual, 4), ones, groups, 1e-3).item()
    assert again == pytest.approx(once, rel=0.1)
