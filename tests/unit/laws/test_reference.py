"""Published runs give their published fits."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest

from froude import laws

# Zhang et al. 2410.21676, batch in sequences of 512 tokens: parameters in millions, 20% point, hyperbola's point.
CBS = {
    "85M": (85, 745.32, 2190.6),
    "151M": (151, 955.16, 3239.8),
    "302M": (302, 1393.73, 5432.6),
    "604M": (604, 1888.52, 7906.6),
    "1.2B": (1200, 2533.41, 11131.1),
}


@pytest.fixture(scope="module")
def critical(vendored: Path) -> pl.DataFrame:
    frame = pl.read_csv(vendored / "cbs_zhang2024.csv").rename(
        {"batch_seqs": "batch", "steps_to_target_used_in_fit": "steps"}
    )
    rows = []
    for model, (millions, _, _) in CBS.items():
        law = laws.critical_batch(frame.filter(pl.col("model") == model))
        assert law.status == "ok"
        rows.append((model, millions, law.b_star(linear_from=256), law.b_crit))
    return pl.DataFrame(rows, schema=["model", "params_millions", "b_star", "b_crit"], orient="row")


def test_both_critical_batches_of_zhang_are_reproduced(critical: pl.DataFrame) -> None:
    for model, _, b_star, b_crit in critical.iter_rows():
        assert b_star == pytest.approx(CBS[model][1], rel=1e-5)
        assert b_crit == pytest.approx(CBS[model][2], rel=1e-5)


def test_their_exponents_in_size_are_reproduced(critical: pl.DataFrame) -> None:
    law = laws.optimum_law(critical, target="b_star", over=["params_millions"])
    assert law.coefficient.value == pytest.approx(93.19681, rel=1e-5)
    assert law.exponents["params_millions"].value == pytest.approx(0.468278, rel=1e-5)
    other = laws.optimum_law(critical, target="b_crit", over=["params_millions"])
    assert other.exponents["params_millions"].value == pytest.approx(0.6191, rel=1e-4)


def test_the_vendored_rows_are_the_published_ones(reference: Path, vendored: Path) -> None:
    assert (vendored / "cbs_zhang2024.csv").read_bytes() == (reference / "cbs_zhang2024.csv").read_bytes()


@pytest.fixture(scope="module")
def chinchilla(reference: Path) -> laws.LossLaw:
    rows = pl.read_csv(reference / "chinchilla_epoch.csv").rename(
        {"params_N": "params", "tokens_D": "tokens"}
    )
    kept = rows.filter(~pl.col("dropped_by_authors").cast(pl.Boolean))
    assert kept.height == 240
    return laws.loss_law(kept)


def test_chinchilla_is_refitted_to_the_published_optimum(chinchilla: laws.LossLaw) -> None:
    """Besiroglu et al. 2404.10102, from the rows that they digitised."""
    assert chinchilla.status == "ok"
    assert chinchilla.objective <= 0.00101828
    assert pytest.approx(1.81724, abs=5e-4) == chinchilla.E
    assert chinchilla.alpha == pytest.approx(0.347313, abs=5e-4)
    assert chinchilla.beta == pytest.approx(0.367183, abs=5e-4)
    assert chinchilla.beta / (chinchilla.alpha + chinchilla.beta) == pytest.approx(0.514, abs=3e-3)
    best = chinchilla.compute_optimal(flops=5.76e23)
    assert best.params == pytest.approx(7.3e10, rel=0.01)
    assert best.tokens / best.params == pytest.approx(17.9, abs=0.1)


@pytest.mark.slow
def test_chinchilla_standard_errors_are_the_published_ones(chinchilla: laws.LossLaw) -> None:
    spread = chinchilla.bootstrap(200).select(pl.col("E", "alpha", "beta").std())
    assert spread["E"].item() == pytest.approx(0.0257, rel=0.15)
    assert spread["alpha"].item() == pytest.approx(0.0154, rel=0.15)
    assert spread["beta"].item() == pytest.approx(0.0206, rel=0.15)


def test_keeping_the_dropped_rows_moves_beta(reference: Path) -> None:
    rows = pl.read_csv(reference / "chinchilla_epoch.csv").rename(
        {"params_N": "params", "tokens_D": "tokens"}
    )
    assert laws.loss_law(rows).beta == pytest.approx(0.453, abs=0.005)


@pytest.mark.parametrize("epoch", [3, 5])
def test_mup_transfers_and_sp_does_not_on_microsofts_mlp(reference: Path, epoch: int) -> None:
    rows = pl.read_csv(reference / "mup_mlp_cifar10.csv").rename({"train_loss": "loss"}).filter(epoch=epoch)
    slopes = {p: laws.lr_transfer(rows.filter(parametrization=p)) for p in ("SP", "muP")}
    assert slopes["SP"].slope.value < -0.4
    assert abs(slopes["muP"].slope.value) < 0.12


def test_the_skip_names_what_is_missing(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.environ.get("FROUDE_REFERENCE_DATA"):
        assert request.getfixturevalue("reference").is_dir()
    else:
        with pytest.raises(pytest.skip.Exception, match="FROUDE_REFERENCE_DATA"):
            request.getfixturevalue("reference")
