"""docs/guide/optimizers.md: its table is the registry's, its files are runs, its own optimizer is its paper's."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from froude.config import ConfigError, Optimizer, Run
from froude.optimizers import OPTIMIZERS
from froude.parametrizations import PARAMETRIZATIONS
from froude.space import load_space
from froude.train.api import check_trust
from froude.train.optimizers import exactness
from froude.train.optimizers.composed import make
from froude.train.trial import run_trial

FENCE = re.compile(r"^```(?:python|toml)\n# ([\w.]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs/guide/optimizers.md").read_text(encoding="utf-8")


@pytest.fixture
def files(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with the page's files."""
    for name, text in FENCE.findall(page):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("adopt", None)
    exactness._works_by_rows.cache_clear()


def rows(page: str) -> dict[str, list[str]]:
    """The table of all optimizers: cells by name."""
    table = page.partition("## All of them")[2].partition("##")[0]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {cells[0].strip("`"): cells for cells in found if cells[0].startswith("`")}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_table_says_what_the_spec_says(name: str, page: str) -> None:
    settings, spec = Optimizer(name=name), OPTIMIZERS[name]
    _, _, _, family, decay, _, unit = rows(page)[name]
    said, power = family.partition(";")[0].rsplit(", ", 1)
    assert said == settings.family()
    mup = PARAMETRIZATIONS["mup"]
    written = {"none": None, "m⁰": 0.0, "m⁻¹": -1.0, "m^(−1/2)": -0.5}[power]
    covered = mup.covers(*settings.families)
    assert written == (mup.powers("hidden", said).lr if covered else None)
    assert unit == spec.unit
    assert decay.startswith("coupled") == spec.coupled
    assert decay.endswith("default 0") == (settings.weight_decay == 0)


@pytest.mark.parametrize("name", ["adafactor", "apollo", "galore_adamw", "sgd"])
@pytest.mark.parametrize("parametrization", ["mup", "depth_mup", "completep"])
def test_what_the_page_calls_an_exception_is_one(name: str, parametrization: str) -> None:
    with pytest.raises(ConfigError, match=f'`parametrization` must be "sp" with {name}'):
        Run(tokens=768, parametrization=parametrization, optimizer={"name": name})


def test_the_pages_files_are_a_run_and_a_space(files: Path) -> None:
    run = Run.from_toml((files / "muon.toml").read_text(encoding="utf-8"))
    assert run.optimizer.families == ("spectral", "Adam")
    assert load_space(files / "muon_space.py").target.optimizer.name == "muon"


def adopted(w: np.ndarray, gradients: list[np.ndarray], lr: float, decay: float) -> np.ndarray:
    """Algorithm 2 of 2411.02853, c_t = t^(1/4), with decoupled decay; b1 = .9, b2 = .99, eps = 1e-6."""
    first, *others = gradients
    m, v = np.zeros_like(w), first**2
    for t, g in enumerate(others, 1):
        m = 0.9 * m + 0.1 * np.clip(g / np.maximum(np.sqrt(v), 1e-6), -(t**0.25), t**0.25)
        w = w - lr * decay * w - lr * m
        v = 0.99 * v + 0.01 * g**2
    return w


@pytest.mark.usefixtures("files")
def test_twenty_steps_of_adopt_are_the_formulas() -> None:
    start, *gradients = np.random.default_rng(0).standard_normal((21, 6, 4))
    gradients[0][2] *= 1e-9
    settings = Optimizer(name="adopt:SPEC", beta2=0.99)
    weight = nn.Parameter(torch.tensor(start))
    optimizer = make(settings, "auto", [{"params": [weight], "lr": 0.01, "weight_decay": 0.1}])
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    expected = adopted(start, gradients, 0.01, 0.1)
    assert np.abs(weight.detach().numpy() - expected).max() < 1e-12 * np.abs(expected - start).max()


@pytest.mark.slow
def test_adopt_trains_by_its_import_path_and_is_exact(files: Path) -> None:
    given = Run.from_toml((files / "adopt.toml").read_text(encoding="utf-8"))
    with pytest.raises(ConfigError, match="run only when trusted, but got adopt:SPEC"):
        check_trust(given, trust=False)
    short = {"tokens": 768 * 24, "schedule.warmup_tokens": 768 * 4, "model.width": 32, "eval_windows": 32}
    run = given.replace({**short, "slots": 2, "reduction": "exact"})
    try:
        (row,) = run_trial([run], trial="adopt").trials
    finally:
        torch.use_deterministic_algorithms(False)
    assert row["status"] == "finished"
    assert row["loss"] < 3.6  # from ln 256 = 5.55
