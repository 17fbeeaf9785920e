"""Was every planned token trained once, in its place? The run's ledger, against its plan and its corpus."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from froude.promote.recipe import Recipe
from froude.promote.token_audit import account as token_account
from froude.promote.token_audit import is_slot, misplaced, parts
from froude.promote.verify.verdict import Progress, Verdict
from froude.runlog import Record
from froude.study import Study

TRAINED = "every planned token was trained once"


def ledger(study: Study, recipe: Recipe, line: list[Record], progress: Progress) -> Iterator[Verdict]:
    """Each check of the run's ledger, as the records of `line` name it."""
    from froude.train import api
    from froude.train.data.order import Batches
    from froude.train.stability.spikes import policy_batches

    run = recipe.run
    if not line:
        yield Verdict(TRAINED, None, "nothing is committed yet")
        return
    last = line[-1]
    try:
        found = study.committed(run.name, "ledger", line).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        yield Verdict(TRAINED, False, f"the ledger can't be read: {error}")
        return
    rows = found.filter(is_slot(run))
    account = token_account(rows.lazy(), run, last.step)
    others = found.height - rows.height
    strange = f", {others} rows are not slots of this run" if others else ""
    yield Verdict(
        TRAINED,
        account.whole and not strange,
        f"{account.expected} expected up to step {last.step}, {account.skipped} skipped, {account.repeated} repeated, "
        f"{account.skipped_by_policy} skipped by policy{strange}",
    )
    source = api.build_source(run, "train")
    batches = Batches(source, run.seed, run.windows_per_slot, run.slots)
    left_out = rows.filter(pl.col("disposition") != "trained")
    passed = parts(left_out, run)["first_sample"].to_list()
    slots = {sample // run.windows_per_slot for sample in passed}
    decided = policy_batches(run, last.scalars.get("stability", {}))
    yield Verdict(
        "only what the run's policy decided was left out",
        slots == {batch * run.slots + slot for batch in decided for slot in range(run.slots)}
        and (run.stability == "ladder" or not decided),
        f"{len(decided)} batches decided, {len(slots)} slots left out",
    )
    wrong, mixed = misplaced(rows, batches, lambda share: progress("digests of the ledger", share))
    due = {"every digest is that of the corpus's tokens": wrong}
    if run.data.parts:
        due["every slot names its parts of the mixture"] = mixed
    for what, steps in due.items():
        differ = f", {len(steps)} differ, first at step {steps[0]}" if steps else ""
        yield Verdict(what, not steps and rows.height > 0, f"{rows.height} slots{differ}")
