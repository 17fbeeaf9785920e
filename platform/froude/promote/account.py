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
    """Tokens of a run by what became of them; it is whole when skipped, repeated and by policy are all 0.

    A token trained at another step or slot than planned is skipped in its place and repeated where it went.
    """

    expected: int
    trained: int
    skipped: int
    repeated: int
    skipped_by_policy: int

    @property
    def whole(self) -> bool:
        return not (self.skipped or self.repeated or self.skipped_by_policy)

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


def planned(run: Run, steps: int | None = None) -> pl.DataFrame:
    """The slots that the run must train (in its first `steps`), in order: step (from 1), slot, first_sample, tokens."""
    windows, rows = run.windows_per_slot, (run.steps if steps is None else steps) * run.slots
    index = pl.int_range(rows, dtype=pl.Int64, eager=True)
    return pl.DataFrame(
        {
            "step": index // run.slots + 1,
            "slot": index % run.slots,
            "first_sample": index * windows,
            "tokens": pl.repeat(windows * run.model.context, rows, dtype=pl.Int64, eager=True),
        }
    )


def token_account(study: Study, run: str, plan: Run, steps: int | None = None) -> TokenAccount:
    """Compare the ledger of the run of this name with what `plan` says must be trained (in its first `steps`)."""
    return account(study.ledger().filter(pl.col("run") == run), plan, steps)


def account(ledger: pl.LazyFrame, plan: Run, steps: int | None = None) -> TokenAccount:
    """The account of ledger rows (step, slot, first_sample, tokens, disposition) of one run."""
    place = ["step", "slot", "first_sample"]
    trained = pl.col("disposition") == "trained"
    seen = ledger.group_by(place).agg(
        trained=pl.col("tokens").filter(trained).sum(), policy=pl.col("tokens").filter(~trained).sum()
    )
    due = pl.col("tokens").fill_null(0)
    got = pl.col("trained").fill_null(0)
    policy = pl.col("policy").fill_null(0)
    totals = (
        planned(plan, steps)
        .lazy()
        .join(seen, on=place, how="full", coalesce=True)
        .select(
            expected=due.sum(),
            trained=got.sum(),
            skipped=(due - got - policy).clip(lower_bound=0).sum(),
            repeated=(got - due).clip(lower_bound=0).sum(),
            skipped_by_policy=policy.sum(),
        )
        .collect()
        .row(0, named=True)
    )
    return TokenAccount(**totals)
