"""The section of scores: every forecast that a register keeps, against what came and against simpler forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
from scipy.stats import binomtest

from froude.promote.forecast import OTHERS
from froude.report import text
from froude.report.narrative import Tile, between
from froude.report.tables import Table
from froude.report.view import View

PEER = "comparator"  # the one that a forecast must beat to earn its keep (docs/guide/forecast.md)
CHANCE = 0.01  # docs/log.md: a claim of an improvement needs less


def lead(view: View) -> str:
    """What the table is, and what it is not."""
    assert view.scores is not None
    if view.scores.is_empty():
        return (
            f"No score is kept in {view.register} yet: `froude train --register` and `froude report --register` put "
            "one there when a study's run is finished."
        )
    return (
        f"The finished studies that were put into {view.register}: what each had forecast under its seal, and what "
        "came. No fit, forecast or check reads it. What was never finished, or never put there, is not counted."
    )


def notes(view: View) -> list[str]:
    """How much so many scores can tell, in sentences."""
    assert view.scores is not None
    found, n = view.scores, view.scores.height
    if not n:
        return []
    inside = int(found["inside"].sum())
    share = binomtest(inside, n).proportion_ci(method="exact")
    certified = found.filter("certified")
    words = [
        f"{inside} of {text.plural(n, 'loss', 'losses')} inside the interval, {_nominal(found)}: with so many scores "
        f"the true share may lie anywhere from {_share(share.low)} to {_share(share.high)} (95%, if they were "
        f"independent). "
        + (
            f"Of the certified forecasts: {int(certified['inside'].sum())} of {certified.height}."
            if certified.height
            else "None of these forecasts was certified."
        )
    ]
    both = _beside(found, PEER)
    if both.height:
        nearer, chance = _nearer(both)
        words.append(
            f"The forecast was nearer than {OTHERS[PEER]} in {nearer} of {both.height}. "
            + (
                f"Chance alone is as lopsided in {_share(chance)} of cases, so neither can be called better."
                if chance >= CHANCE
                else f"Chance alone is as lopsided in {100 * chance:.2g}% of cases."
            )
        )
    if n > 1:
        words.append(
            "Studies of one corpus or model, and seeds of one search space, err together: they tell less than their "
            "number."
        )
    return words


def tiles(view: View) -> list[Tile]:
    """The scores in three numbers."""
    assert view.scores is not None
    found = view.scores
    if found.is_empty():
        return []
    both = _beside(found, PEER)
    peer = f"{OTHERS[PEER]}: {_median(both['other'])}" if both.height else ""
    made = [
        Tile("Inside the interval", f"{int(found['inside'].sum())} of {found.height}", _nominal(found)),
        Tile("Median error", _median(found["relative_error"]), peer),
    ]
    if both.height:
        made.append(Tile(f"Nearer than {OTHERS[PEER]}", f"{_nearer(both)[0]} of {both.height}"))
    return made


def others(view: View) -> Table | None:
    """The forecast's errors against those of simpler ones, on the studies that have both."""
    assert view.scores is not None
    rows = []
    for name, words in OTHERS.items():
        both = _beside(view.scores, name)
        if both.height:
            errors = (_median(both["other"]), _median(both["relative_error"]))
            rows.append((words, str(both.height), *errors, f"{_nearer(both)[0]} of {both.height}"))
    columns = ("forecast by", "studies", "median error", "froude's on the same", "froude's nearer in")
    return Table(columns, rows, frozenset(range(1, 5))) if rows else None


def table(view: View) -> Table | None:
    """One row a study, in the order of the seals; those outside their intervals are marked."""
    assert view.scores is not None
    rows = list(view.scores.iter_rows(named=True))
    columns = (
        "study", "run", "sealed, UTC", "parameters", "tokens", "reach in compute", "proxies' cost", "forecast",
        "interval", "measured", "error", *OTHERS.values(), "certified", "overridden",
    )  # fmt: skip
    tones = tuple("" if row["inside"] else "bad" for row in rows)
    return Table(columns, [_row(row) for row in rows], frozenset(range(3, 14)), tones) if rows else None


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["study"] or text.NOTHING,
        f"{row['run'] or text.NOTHING}{' (external: no ledger claim)' if row['trainer'] else ''}",
        f"{row['sealed_at']:%Y-%m-%d %H:%M}" if row["sealed_at"] else text.NOTHING,
        text.count(row["params"]),
        text.count(row["tokens"]),
        _times(row["reach_compute"]),
        _times(row["proxy_cost"]),
        text.loss(row["forecast"]),
        f"{100 * row['level']:.0f}%: {between(row['low'], row['high'], text.loss)}",
        text.loss(row["loss"]),
        text.percent(row["relative_error"]),
        *(text.percent(None if row[name] is None else row[name] / row["loss"] - 1) for name in OTHERS),
        "yes" if row["certified"] else "no",
        ", ".join(row["overrides"] or ()) or text.NOTHING,
    )


def _beside(scores: pl.DataFrame, name: str) -> pl.DataFrame:
    """The studies that have this other forecast, with its error as `other`."""
    return scores.filter(pl.col(name).is_finite()).with_columns(other=pl.col(name) / pl.col("loss") - 1)


def _nearer(both: pl.DataFrame) -> tuple[int, float]:
    """In how many studies the forecast erred less than the other, and how often chance is as lopsided."""
    nearer = int((both["relative_error"].abs() < both["other"].abs()).sum())
    return nearer, float(binomtest(nearer, both.height).pvalue)


def _nominal(scores: pl.DataFrame) -> str:
    levels = sorted({_share(level) for level in scores["level"]})
    return f"nominal {text.listing(levels)}"


def _median(errors: pl.Series) -> str:
    median = errors.abs().median()
    assert isinstance(median, float)
    return f"{100 * median:.1f}%"


def _share(share: float) -> str:
    return f"{100 * share:.0f}%"


def _times(ratio: float | None) -> str:
    return text.NOTHING if ratio is None else f"{text.number(ratio)}×"
