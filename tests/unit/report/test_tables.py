"""Figures of the report's tables, by rows made up for them."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl

from froude.report import tables, text


def test_a_trunk_costs_its_longest_branch_and_the_others_tails_and_a_failed_trial_nothing() -> None:
    rows = [
        {
            "stage": "law",
            "trial": trial,
            "run": f"{trial}{n}",
            "status": status,
            "tokens": n,
            "flops": 6.0 * n,
        }
        | {"trainer": None, "decay_fraction": 0.2, "seconds": 1.0, "params": 1, "seed": 0, "lr": 1e-3}
        for trial, status in (("a", "finished"), ("b", "failed"))
        for n in (1000, 2000, 4000, 8000)
    ]
    found = tables.stages(SimpleNamespace(trials=pl.DataFrame(rows), meta={}))  # type: ignore[arg-type]
    assert found is not None
    ((_, count, finished, _, failed, tokens, flops, _),) = found.rows
    assert (count, finished, failed, tokens) == ("2", "4", "4", text.count(9400))
    assert flops == text.number(6 * 9400)
