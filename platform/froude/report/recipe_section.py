"""The report's section on the recipe: each knob with where it is from and what it may cost, and what batches cost."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from froude.config import Run
from froude.laws.drawing.panel import Axis, Band, Line, Mark, Note, Panel, Points, Series
from froude.promote.choice.batch import Batches
from froude.promote.choice.knob import LEVEL
from froude.report import text
from froude.report.narrative import between
from froude.report.svg import Plot
from froude.report.tables import Table
from froude.report.theme import picture
from froude.report.view import View

TONES = {"measured": "", "prior": "warn", "set by you": "warn"}


def lead() -> str:
    """What the table shows."""
    return (
        f"Every knob of the recipe. The interval holds its best value at {100 * LEVEL:.0f}%; the regret is what the "
        "chosen value is expected to cost against the best one, averaged over what is not known, and the column beside "
        "it what it costs if the best one lies at the worse end of the interval; the last column says what one more "
        "measurement would tell."
    )


def knobs(view: View) -> Table | None:
    """A row a knob of the sealed recipe."""
    if view.recipe is None or not view.recipe.knobs:
        return None
    found = view.recipe.knobs
    rows = [
        (
            knob.name,
            knob.shown,
            knob.source,
            knob.interval or text.NOTHING,
            _cost(knob.regret),
            _cost(knob.worst),
            knob.rule or text.NOTHING,
            knob.buys or text.NOTHING,
        )
        for knob in found
    ]
    columns = (
        "knob",
        "value",
        "where from",
        "90% interval",
        "regret, nats",
        "at the worse end",
        "how",
        "one more run",
    )
    return Table(columns, rows, frozenset({1, 3, 4, 5}), tuple(TONES[knob.source] for knob in found))


def _cost(nats: float) -> str:
    if not math.isfinite(nats):
        return text.NOTHING
    return "< 0.0001" if nats < 1e-4 else f"{nats:.4f}"


def batches(view: View) -> Table | None:
    """A row a batch: what it costs in loss at the target's tokens, and how long they take."""
    if (found := view.batches) is None:
        return None
    rows = [
        (
            text.whole(row.batch) + _notes(found, row.batch, view.run),
            text.loss(row.loss),
            text.signed(row.above, 3),
            between(row.low, row.high, lambda value: text.signed(value, 3)),
            text.number(row.hours),
            text.number(row.hours_to_one_loss),
        )
        for row in found.rows
    ]
    columns = (
        "batch, tokens",
        "expected loss",
        "above the smallest",
        "90% of that",
        "hours",
        "hours to one loss",
    )
    return Table(columns, rows, frozenset(range(6)))


def _notes(found: Batches, batch: int, run: Run | None) -> str:
    """What is to be known of a batch: the recipe's, or one that no preference takes."""
    notes = []
    if run is not None and batch == run.phases.mean:
        notes.append("recipe, the mean of its ramp" if run.schedule.ramp else "recipe")
    if batch < found.measured:
        notes.append("below the best measured")
    elif batch > found.largest:
        notes.append("beyond the largest measured")
    if found.measured <= batch and batch not in found.offered:
        notes.append("the gate refuses it")
    return f" ({'; '.join(notes)})" if notes else ""


def words(found: Batches) -> str:
    """Where the numbers of the batches are from."""
    grown = found.growth
    how = f"tokens^{grown.exponent:.2f} ({grown.source}, ± {grown.sd:.2g})"
    timed = f" Hours are {found.timed}." if found.timed else " Steps were not timed, so hours are not known."
    middle, low, high = (text.whole(each) for each in found.critical)
    return (
        "What batches cost at the target's tokens, which are worth tokens / (1 + batch / critical batch). The critical "
        f"batch at its horizon is {middle} [{low}, {high}], by {how}.{timed}"
    )


def plots(view: View) -> list[Plot]:
    """Expected loss and hours against batch."""
    if (found := view.batches) is None:
        return []
    size = np.array([row.batch for row in found.rows], dtype=float)
    least = found.smallest.loss
    x_axis = Axis("batch, tokens", base=2, ticks=[*size][:: 1 + size.size // 7], words=text.whole)
    marks: list[Series] = []
    if view.run is not None:
        batch = float(view.run.phases.mean)
        marks = [Mark(batch, style="recipe"), Note(" recipe", batch, edge=0.98, style="recipe")]
    loss = [row.loss for row in found.rows]
    low, high = ([least + getattr(row, end) for row in found.rows] for end in ("low", "high"))
    curve = Panel(
        x_axis,
        Axis("expected loss, nats per token"),
        (Band(size, low, high), Line(size, loss), Points(size, loss), *marks),
    )
    alt = f"Expected loss against batch, from {text.loss(loss[0])} to {text.loss(loss[-1])}."
    drawn = [picture("Loss by batch, same tokens", curve, "loss-by-batch", alt)]
    if all(math.isfinite(row.hours) for row in found.rows):
        hours = [row.hours for row in found.rows]
        to_loss = [row.hours_to_one_loss for row in found.rows]
        panel = replace(
            curve,
            y=Axis("hours", base=2, words=text.number),
            series=(
                Line(size, hours, style="law of steps", name="the target's tokens"),
                Line(size, to_loss, style="law of data", name="tokens to one loss"),
                *marks,
            ),
            columns=2,
        )
        alt = f"Hours against batch, from {text.number(hours[0])} to {text.number(hours[-1])}."
        drawn.append(picture("Hours by batch", panel, "hours-by-batch", alt))
    return drawn
