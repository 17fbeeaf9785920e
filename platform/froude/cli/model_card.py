"""The card of an exported model: what it is, what was forecast of it and came, and what its tokens were."""

from __future__ import annotations

from typing import TYPE_CHECKING

from froude.promote.forecast import score
from froude.promote.recipe import Recipe
from froude.promote.token_audit import TokenAccount
from froude.runlog import Record

if TYPE_CHECKING:
    from froude.train.hf.directory import Written


def card(
    recipe: Recipe, record: Record, digest: str, account: TokenAccount, loss: float | None, found: Written
) -> str:
    """README.md of the export of a checkpoint; `loss` is the run's final one, None before its end."""
    run, forecast = recipe.run, recipe.forecast
    shape, data = run.model, run.data
    sizes = f"{shape.factory}, width {shape.width}, depth {shape.depth}, context {shape.context}"
    interval = f"{forecast.low:.4f} to {forecast.high:.4f} ({forecast.level:.0%})"
    certified = "certified" if forecast.certified else f"not certified: {'; '.join(forecast.reasons)}"
    rows = [
        ("run", f"{record.run}, step {record.step} of {run.steps}, {record.tokens:,} tokens"),
        ("model", ", ".join(filter(None, [sizes, shape.architecture]))),
        ("parametrization", run.parametrization),
        ("data", data.corpus),
        ("tokenizer", found.tokenizer),
        ("recipe", f"sha256 {recipe.sha256}, sealed {recipe.sealed_at}"),
        ("checkpoint", f"sha256 {digest} over parameters and optimizer state"),
        ("forecast", f"{forecast.loss:.4f} nats per token, {interval}, {certified}"),
        ("outcome", _outcome(recipe, record, loss)),
        ("tokens expected", f"{account.expected:,}"),
        ("tokens skipped", f"{account.skipped:,} (by policy {account.skipped_by_policy:,})"),
        ("tokens repeated", f"{account.repeated:,}"),
    ]
    if start := shape.options.get("init"):
        rows.insert(2, ("started from", f"{start}, which the forecast's laws did not see"))
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    folded = "\n".join(f"- {phrase}" for phrase in found.folded)
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags: [froude]
---
# {record.run}

`{found.architecture}` in {found.dtype}, exported by froude from a run that was forecast before it began.

| | |
|---|---|
{table}

## Logits

{_distance(found)} Measured on {found.windows}.

Folded into the weights, in fp32:

{folded}
"""


def _outcome(recipe: Recipe, record: Record, loss: float | None) -> str:
    if record.step < recipe.run.steps:
        return f"none: the forecast is of step {recipe.run.steps}"
    if loss is None:
        return "the run is not finished"
    result = score(recipe.forecast, loss)
    where = "inside" if result.inside else "outside"
    return (
        f"{loss:.4f} nats per token, {where} the interval; the forecast was {result.relative_error:+.2%} off"
    )


def _distance(found: Written) -> str:
    if found.cast == 0.0:
        return "The same bits as the run's own model gives."
    exact = "the same bits in fp32" if found.difference == 0.0 else f"{found.difference:.2g} in fp32"
    cast = "" if found.dtype == "fp32" else f"; {found.cast:.2g} as written, rounded to {found.dtype}"
    return f"Largest difference from the run's own model, over the largest logit: {exact}{cast}."
