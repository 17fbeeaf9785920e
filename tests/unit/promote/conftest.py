"""Fits that several tests of the recipe's choice begin with."""

from __future__ import annotations

import numpy as np
import pytest
from recipe_worlds import CLEAR, ladder_fits, study

from froude.promote.fits import Fits


@pytest.fixture(scope="session")
def ladder() -> Fits:
    return ladder_fits()


@pytest.fixture(scope="session")
def clear(ladder: Fits) -> Fits:
    """The fits of `CLEAR` with hardly any noise."""
    return study(CLEAR, np.random.default_rng(1), ladder, noise=1e-4)
