"""Which proxies are so far off the law of the others that they must be looked at before their law is believed."""

from __future__ import annotations

import math
from typing import Any

import polars as pl

from froude.laws import LossLaw

#: How far off a run must be, in ln loss and times the median run. Honest small runs of published sets are off by .06
#: (Gemstones), .11 (Porian) and .15 (Gadre); of 20 runs, one 15% off moved a forecast of 2.411 by .02, one of half its
#: loss by .22.
FAR, TIMES = 0.2, 10.0
SHOWN = 3  # runs that a reason lists


def doubts(law: LossLaw | None) -> tuple[str, ...]:
    """The reason why a law of these rows is not believed: one run, or a few, that the rest contradict; else nothing.

    Judged by the free law, whose Huber loss such a run hardly moves: the posterior takes noise for normal, so
    that such a run moves it.
    """
    if law is None or law.free is None or not math.isfinite(law.free.E):
        return ()
    rows = law.free.rows.with_columns(law=pl.col("loss") - pl.col("residual"))
    rows = rows.with_columns(off=(pl.col("loss") / pl.col("law")).log().abs())
    wide = (pl.col("off") > FAR) & (pl.col("off") > TIMES * pl.col("off").median())
    far = rows.filter(wide & pl.col("outlier")).sort("off", descending=True)
    if not far.height:
        return ()
    names = [
        f"{_name(row)} has {row['loss']:.4g}, where the others' law has {row['law']:.4g}"
        for row in far.head(SHOWN).iter_rows(named=True)
    ]
    more = f" (and {far.height - SHOWN} more)" if far.height > SHOWN else ""
    return (f"losses are far off: {'; '.join(names)}{more}: find out why, or leave out what failed",)


def _name(row: dict[str, Any]) -> str:
    return str(row.get("run") or f"the run of {row['params']:,.0f} params and {row['tokens']:,.0f} tokens")
