"""Proxies whose loss curve is not the one that the others of their tokens per parameter share: advice, no check."""

from __future__ import annotations

import math

import polars as pl

from froude import laws
from froude.laws.curve.collapse import MIN_RUNS, SAME_RATIO, Collapse
from froude.promote.fits import Fits
from froude.study import Study

#: Of the least final loss: the floor is below it by at least a tenth, or its error would be most of what is left.
HIGHEST_FLOOR = 0.9


def curves_apart(study: Study, fits: Fits) -> list[Collapse]:
    """Compare the loss law's proxies, each ratio of tokens to parameters with enough of them by itself.

    Nothing where no four trials of one schedule share a ratio, or where the study kept no steps.
    """
    rows, law = fits.rows.get("loss_law"), fits.loss
    if rows is None or law is None or not math.isfinite(law.E):
        return []
    finished = rows.filter(pl.col("status") == "finished").with_columns(
        _ratio=pl.col("tokens").cast(pl.Float64) / pl.col("params")
    )
    found, left = [], finished.sort("_ratio")
    while left.height >= MIN_RUNS:
        first = left.row(0, named=True)
        near = pl.col("_ratio") <= first["_ratio"] * SAME_RATIO
        alike = left.filter(near & pl.col("schedule").eq_missing(first["schedule"]))
        left = left[1:].join(alike.select("run"), on="run", how="anti")
        if alike["params"].n_unique() < MIN_RUNS:
            continue
        steps = study.steps().filter(pl.col("run").is_in(alike["run"].implode())).collect()
        frame = steps.join(alike.select("run", "params", final="loss"), on="run").filter(pl.col("tokens") > 0)
        if frame.height:
            floor = min(law.E, HIGHEST_FLOOR * float(frame["final"].min()))  # type: ignore[arg-type]
            compared = laws.curve.collapse(
                frame.select("run", "params", "tokens", "loss", "final"), floor=floor
            )
            found += [compared] if compared.status == "ok" else []
    return found
