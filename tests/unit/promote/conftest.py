"""What several tests begin with: fits that a recipe is chosen from, and a run to be forged."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from honest_run import sealed, train
from recipe_worlds import CLEAR, ladder_fits
from recipe_worlds import study as fits_of

from froude.promote.fits import Fits


@pytest.fixture(scope="session")
def ladder() -> Fits:
    return ladder_fits()


@pytest.fixture(scope="session")
def clear(ladder: Fits) -> Fits:
    """The fits of `CLEAR` with hardly any noise."""
    return fits_of(CLEAR, np.random.default_rng(1), ladder, noise=1e-4)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A study whose run was trained here."""
    threads = torch.get_num_threads()
    folder = tmp_path_factory.mktemp("honest")
    train(folder, sealed(folder))
    yield folder
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def study(trained: Path, tmp_path: Path) -> Path:
    """A copy of an honest study, to be changed."""
    return Path(shutil.copytree(trained, tmp_path / "study"))
