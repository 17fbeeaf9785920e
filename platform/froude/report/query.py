"""A Polars query that a reader can run: were tokens of the target run skipped or repeated?"""

from __future__ import annotations

from froude.report.view import View


def query(view: View) -> str | None:
    """Its text; None without a recipe."""
    if view.recipe is None:
        return None
    run = view.recipe.run
    slots, windows, due = run.slots, run.windows_per_slot, run.windows_per_slot * run.model.context
    phases = [(phase.step, phase.factor) for phase in run.phases]
    return f"""\
import froude
import polars as pl

ledger = froude.Study({view.url!r}).ledger().filter(pl.col("run") == {run.name!r}).collect()
# All is counted in parts of {windows} samples, {due} tokens: a slot of a step that takes k batches has k.
k = (pl.col("samples") // {windows}).clip(1)
parts = ledger.with_columns(part=pl.int_ranges(0, k)).explode("part").with_columns(
    first_sample=pl.col("first_sample") + pl.col("part") * {windows}, tokens=pl.col("tokens") // k
)
trained = parts.filter(pl.col("disposition") == "trained")
by_policy = parts.filter(pl.col("disposition") == "skipped_by_policy")
# The plan: {run.steps} steps of {slots} slots, which from these steps on (from 0) take so many batches each.
phases = {phases}
ends = [step for step, _ in phases[1:]] + [{run.steps}]
order = pl.concat([
    pl.select(part=pl.int_range((end - step) * k * {slots})).select(
        step=step + 1 + pl.col("part") // (k * {slots}), slot=pl.col("part") % (k * {slots}) // k
    )
    for (step, k), end in zip(phases, ends)
])
left_out = by_policy.select("first_sample").unique()
n = pl.int_range(order.height + left_out.height, eager=True).alias("first_sample") * {windows}
samples = n.to_frame().join(left_out, on="first_sample", how="anti").sort("first_sample")
planned = pl.concat([order, samples.head(order.height)], how="horizontal")
place = ["step", "slot", "first_sample"]
tokens = planned.with_columns(due=pl.lit({due}, pl.Int64)).join(
    trained.group_by(place).agg(pl.col("tokens").sum()), on=place, how="full", coalesce=True
).with_columns(pl.col("due", "tokens").fill_null(0))
print(
    tokens.select(
        expected=pl.col("due").sum(),
        skipped=(pl.col("due") - pl.col("tokens")).clip(0).sum(),
        repeated=(pl.col("tokens") - pl.col("due")).clip(0).sum(),
        skipped_by_policy=pl.lit(by_policy["tokens"].sum()),
    )
)
"""
