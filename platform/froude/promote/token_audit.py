"""Did every planned token enter the weights once, in its place? One query over the ledger and the plan."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import polars as pl

from froude.config import Run

if TYPE_CHECKING:
    from froude.study import Study


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

    `left_out` has the first_sample of the slots that its policy passes over: those that follow move up.
    """
    windows, rows = run.windows_per_slot, (run.steps if steps is None else steps) * run.slots
    passed = (
        pl.Series("first_sample", [], pl.Int64) if left_out is None else left_out["first_sample"].unique()
    )
    samples = pl.int_range(rows + len(passed), dtype=pl.Int64, eager=True) * windows
    due = samples.filter(~samples.is_in(passed.implode())).head(rows)
    index = pl.int_range(rows, dtype=pl.Int64, eager=True)
    return pl.DataFrame(
        {
            "step": index // run.slots + 1,
            "slot": index % run.slots,
            "first_sample": due,
            "tokens": pl.repeat(windows * run.model.context, rows, dtype=pl.Int64, eager=True),
        }
    )


def token_account(study: Study, run: str, plan: Run, steps: int | None = None) -> TokenAccount:
    """Compare the ledger of the run of this name with what `plan` says must be trained (in its first `steps`)."""
    return account(study.ledger().filter(pl.col("run") == run), plan, steps)


def account(ledger: pl.LazyFrame, plan: Run, steps: int | None = None) -> TokenAccount:
    """The account of ledger rows (step, slot, first_sample, tokens, disposition) of one run."""
    place = ["step", "slot", "first_sample"]
    rows = ledger.select(*place, "tokens", trained=pl.col("disposition") == "trained").collect()
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
