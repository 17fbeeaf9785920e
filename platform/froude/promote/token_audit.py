"""Did every planned token enter the weights once, in its place? One query over the ledger and the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import polars as pl

from froude.config import Run

if TYPE_CHECKING:
    from froude.study import Study
    from froude.train.data.order import Batches


@dataclass(frozen=True)
class TokenAccount:
    """Tokens of a run by what became of them; it is whole when none was skipped or repeated.

    A token trained at another step or slot than planned is skipped in its place and repeated where it went. Those that
    the run's policy left out were not expected: the batches that follow took their place.
    """

    expected: int
    trained: int
    skipped: int
    repeated: int
    skipped_by_policy: int

    @property
    def whole(self) -> bool:
        return not (self.skipped or self.repeated)

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


def planned(run: Run, steps: int | None = None, left_out: pl.DataFrame | None = None) -> pl.DataFrame:
    """The slots that the run must train (in its first `steps`), in order: step (from 1), slot, first_sample, tokens.

    `left_out` has the first_sample of the slots that its policy passes over: those that follow move up. A slot of a
    step that takes several batches has as many rows, each for its part that is as long as a slot of one (`parts`).
    """
    steps, windows = run.steps if steps is None else steps, run.windows_per_slot
    phases = [phase for phase in run.phases if phase.step < steps]
    ends = [*(phase.step for phase in phases[1:]), steps][: len(phases)]
    # Of each phase: where a part is among its parts, how many of them a slot has, and how many a step has.
    index = [
        (phase, pl.int_range((end - phase.step) * phase.factor * run.slots, dtype=pl.Int64, eager=True))
        for phase, end in zip(phases, ends, strict=True)
    ]
    step = [phase.step + 1 + at // (phase.factor * run.slots) for phase, at in index]
    slot = [at % (phase.factor * run.slots) // phase.factor for phase, at in index]
    rows = sum(map(len, slot))
    passed = (
        pl.Series("first_sample", [], pl.Int64) if left_out is None else left_out["first_sample"].unique()
    )
    samples = pl.int_range(rows + len(passed), dtype=pl.Int64, eager=True) * windows
    return pl.DataFrame(
        {
            "step": pl.concat(step) if rows else samples.clear(),
            "slot": pl.concat(slot) if rows else samples.clear(),
            "first_sample": samples.filter(~samples.is_in(passed.implode())).head(rows),
            "tokens": pl.repeat(windows * run.model.context, rows, dtype=pl.Int64, eager=True),
        }
    )


def is_slot(run: Run) -> pl.Expr:
    """Whether a ledger row is for one whole slot: sums would not notice halves, or rows that cancel out.

    What a rollback leaves out is drawn batch by batch, whatever a step would take there.
    """
    factor, left_out = pl.lit(1), pl.col("disposition") == "skipped_by_policy"
    for phase in run.phases:
        factor = pl.when(pl.col("step") > phase.step).then(phase.factor).otherwise(factor)
    one = run.windows_per_slot
    return pl.all_horizontal(
        (pl.col("disposition") == "trained") | left_out,
        pl.col("run") == run.name,
        (pl.col("samples") == one * factor) | (left_out & (pl.col("samples") == one)),
        pl.col("tokens") == pl.col("samples") * run.model.context,
        *(pl.col(name).is_not_null() for name in ("step", "slot", "first_sample", "digest")),
    ).fill_null(False)


def parts(rows: pl.DataFrame, run: Run) -> pl.DataFrame:
    """Ledger rows with one for each part of a slot that is as long as a slot of one batch; `tokens` are a part's.

    A row that no step of the run can have stays as it is.
    """
    windows = run.windows_per_slot
    known = pl.col("samples").is_in([phase.factor * windows for phase in run.phases])
    number = pl.when(known).then(pl.col("samples") // windows).otherwise(1)
    return (
        rows.with_columns(part=pl.int_ranges(0, number), number=number)
        .explode("part")
        .with_columns(
            first_sample=pl.col("first_sample") + pl.col("part") * windows,
            tokens=pl.col("tokens") // pl.col("number"),
        )
        .drop("part", "number")
    )


def token_account(study: Study, run: str, plan: Run) -> TokenAccount:
    """Compare the ledger of the run of this name with what `plan` says must be trained."""
    return account(study.ledger().filter(pl.col("run") == run), plan)


def account(ledger: pl.LazyFrame, plan: Run, steps: int | None = None) -> TokenAccount:
    """The account of ledger rows (step, slot, first_sample, samples, tokens, disposition) of one run."""
    place = ["step", "slot", "first_sample"]
    rows = ledger.select(*place, "samples", "tokens", trained=pl.col("disposition") == "trained").collect()
    rows = parts(rows, plan)
    trained, policy = rows.filter(pl.col("trained")), rows.filter(~pl.col("trained"))
    due, got = pl.col("tokens").fill_null(0), pl.col("got").fill_null(0)
    totals = (
        planned(plan, steps, policy)
        .join(trained.group_by(place).agg(got=pl.col("tokens").sum()), on=place, how="full", coalesce=True)
        .select(
            expected=due.sum(),
            trained=got.sum(),
            skipped=(due - got).clip(lower_bound=0).sum(),
            repeated=(got - due).clip(lower_bound=0).sum(),
        )
        .row(0, named=True)
    )
    return TokenAccount(**totals, skipped_by_policy=int(policy["tokens"].sum()))


def misplaced(
    ledger: pl.DataFrame, batches: Batches, progress: Callable[[float], None] = lambda share: None
) -> tuple[list[int], list[int]]:
    """Steps of the rows whose digest is not that of what the plan puts there, and whose parts are not."""
    rows = ledger.sort("first_sample").select("step", "slot", "first_sample", "samples", "digest", "parts")
    wrong, mixed = list[int](), list[int]()
    for i, (step, slot, sample, samples, digest, told) in enumerate(rows.iter_rows()):
        if i % 1000 == 0:
            progress(i / ledger.height)
        batch, place = divmod(sample - slot * samples, batches.slots * batches.windows_per_slot)
        factor = samples // batches.windows_per_slot
        fits = batch >= 0 and not place and 0 <= slot < batches.slots
        due = batches.slot(batch, slot, factor) if fits else None
        if due is None or batches.digest(due.tokens[:, :-1]) != digest:
            wrong.append(step)
        named = None if told is None else {each["part"]: each["samples"] for each in told}
        if due is None or due.parts != named:
            mixed.append(step)
    return wrong, mixed
