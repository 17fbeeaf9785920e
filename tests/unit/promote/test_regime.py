"""A certificate is refused where losses fall faster late than early."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from froude.promote.ladder import regime

SIZES, HORIZONS = (4e4, 9e4, 1.6e5, 3.6e5), (1e6, 2e6, 4e6, 8e6)


def ladder(*, noise: float = 0.0, seed: int = 0, drop: float = 0.0, ratio: float = 2.0) -> pl.DataFrame:
    """Trunks of four sizes; the loss of the largest falls by `drop` more (nats) from its third horizon to its last."""
    rng, rows = np.random.default_rng(seed), []
    for number, params in enumerate(SIZES):
        own = noise * rng.standard_normal()
        for i in range(len(HORIZONS)):
            tokens = HORIZONS[0] * ratio**i
            loss = (0.8 + 40 * params**-0.34 + 60 * tokens**-0.3) * np.exp(
                own + noise / 4 * rng.standard_normal()
            )
            less = drop if params == SIZES[-1] and i == 3 else 0.0
            rows.append((f"trunk-{number}", int(params), int(tokens), "finished", float(loss - less)))
    return pl.DataFrame(rows, schema=["trial", "params", "tokens", "status", "loss"], orient="row")


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [2.0, 2**0.5])
def test_runs_of_a_law_are_in_no_doubt(ratio: float) -> None:
    assert not any(regime.doubts(ladder(noise=0.01, seed=seed, ratio=ratio)) for seed in range(200))


def test_a_trunk_that_falls_faster_late_is_named() -> None:
    (reason,) = regime.doubts(ladder(noise=0.01, drop=0.25))
    assert reason.startswith(
        "in 1 of 4 trunks the loss falls faster late than early (params 360,000), as when a model begins to copy"
    )


def test_runs_that_did_not_finish_or_stand_alone_say_nothing() -> None:
    rows = ladder(drop=0.25)
    lost = rows.with_columns(
        status=pl.when(pl.col("tokens") == 8_000_000).then(pl.lit("diverged")).otherwise("status")
    )
    alone = rows.with_columns(trial=pl.format("{}-{}", "trial", "tokens"))
    assert regime.doubts(lost) == regime.doubts(alone) == ()
