"""The report's section on a stage of the role transfer_exponents: what was measured, and what was published."""

from __future__ import annotations

from dataclasses import replace

from froude.laws import PUBLISHED, Exponents
from froude.laws.lr.exponents import KNOBS
from froude.promote.fits import USED
from froude.report import text
from froude.report.narrative import between
from froude.report.svg import Plot
from froude.report.tables import Table
from froude.report.theme import picture

SETTINGS = {
    "lr": "rate",
    "timescale": "decay timescale",
    "half_life": "half-life of β₂",
    "lr * weight_decay": "rate times decay",
}


def lead() -> str:
    """What the section shows, and what promote makes of it."""
    return (
        "The best value of one setting as a power of tokens or batch, with all else held: the decay timescale batch / "
        "(rate × decay × tokens), and the half-life of β₂ in tokens. Intervals are at 90%: of the runs alone "
        "(measured), and with the prior (posterior). Which of the two an exponent rests on stands in the table. "
        f"{USED[0].upper()}{USED[1:]}."
    )


def found(law: Exponents) -> Table:
    """A row an exponent."""
    rows = []
    for name, one in law.knobs.items():
        measured, posterior = one.measured, one.posterior
        rows.append(
            (
                KNOBS[name].words,
                text.signed(measured.value),
                between(measured.low, measured.high, text.signed),
                str(one.sizes),
                one.status,
                text.signed(posterior.value),
                between(posterior.low, posterior.high, text.signed),
                one.source,
                "; ".join(one.reasons) or text.NOTHING,
            )
        )
    columns = (
        "exponent", "measured", "90%", "values", "status", "posterior", "90%", "rests on", "why"
    )  # fmt: skip
    return Table(columns, rows, frozenset({1, 2, 3, 5, 6}))


def published() -> Table:
    """The table of published exponents."""
    rows = [
        (
            SETTINGS[each.setting],
            each.over,
            text.signed(each.value, 3),
            each.source,
            each.note or text.NOTHING,
        )
        for each in PUBLISHED
    ]
    return Table(("best", "over", "exponent", "source", "of what"), rows, frozenset({2}))


def plots(law: Exponents) -> list[Plot]:
    """For each exponent its curves, and its optima with published exponents through their middle."""
    drawn = []
    for name, one in law.knobs.items():
        words, key = KNOBS[name].words, name.replace("_", "-")
        curves, optima = one.drawing()
        curves = replace(curves, title="")
        what = SETTINGS[one.setting]
        alt = f"Loss against {what} at each value of {one.over}."
        drawn.append(picture(f"Loss against {what}, by {one.over}", curves, f"curves-{key}", alt))
        alt = f"{words}: {text.signed(one.measured.value)} measured, with published exponents."
        drawn.append(picture(f"The {words}", optima, f"optima-{key}", alt))
    return drawn
