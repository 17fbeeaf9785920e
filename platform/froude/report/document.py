"""The view laid out as one HTML document by the template next to this file."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import froude
from froude.report import (
    exponents_section,
    law_plots,
    narrative,
    recipe_section,
    register_section,
    run_plots,
    tables,
)
from froude.report.query import query
from froude.report.svg import Plot
from froude.report.view import View


def document(view: View) -> str:
    """The report as HTML; every value is escaped but the SVG that we drew."""
    environment = Environment(
        loader=PackageLoader("froude.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["ticked"] = ticked
    return environment.get_template("report.html.j2").render(
        view=view,
        narrative=narrative,
        query=query(view),
        tables=tables,
        kept=register_section,
        exponents=exponents_section,
        recipe=recipe_section,
        plots=plots(view),
        version=froude.__version__,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def ticked(words: str) -> Markup:
    """Words with what stands in `backticks` set as code; everything is escaped."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(words))))


def plots(view: View) -> dict[str, list[Plot]]:
    """The figures of each section; an empty list where their data are not there yet."""
    drawn: dict[str, list[Plot]] = {name: [] for name in ("forecast", "world", "rate", "critical", "loss")}
    recipe, fits = view.recipe, view.fits
    if recipe is not None:
        drawn["forecast"].append(
            run_plots.forecast_curve(
                recipe.forecast, recipe.run.tokens, view.steps, view.evals, view.actual, view.resumed_at
            )
        )
    if view.elastic is not None and view.elastic.world_sizes:
        drawn["world"].append(run_plots.world_size(view.elastic))
    if fits is None:
        return drawn
    if fits.transfer:
        drawn["rate"] = [*law_plots.u_curves(fits.transfer), law_plots.transfer_line(fits.transfer)]
    if fits.critical is not None and fits.critical.rows.height:
        drawn["critical"].append(
            law_plots.critical_batch(fits.critical, recipe.run.phases.last if recipe else None)
        )
    if fits.loss is not None and fits.largest is not None:
        forecast = recipe.forecast if recipe is not None else None
        drawn["loss"].append(law_plots.loss_curves(fits.loss, view.target, forecast, view.actual))
        left = law_plots.residuals(fits.loss)
        drawn["loss"] += [left] if left is not None else []
    return drawn
