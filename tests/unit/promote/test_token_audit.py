"""The token account against whole, tampered and resized ledgers."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from froude.config import Run
from froude.promote.token_audit import account, planned
from froude.schemas import LEDGER, table

PLAN = Run(name="large", batch=768, slots=4, tokens=768 * 5)


def ledger(plan: Run = PLAN) -> list[dict[str, Any]]:
    """What a faithful run of the plan leaves behind, written by the definition rather than by `planned`."""
    rows = []
    for step in range(1, plan.steps + 1):
        for slot in range(plan.slots):
            rows.append(
                {
                    "run": plan.name,
                    "attempt": 1,
                    "step": step,
                    "slot": slot,
                    "first_sample": ((step - 1) * plan.slots + slot) * plan.windows_per_slot,
                    "samples": plan.windows_per_slot,
                    "tokens": plan.windows_per_slot * plan.model.context,
                    "digest": "0" * 16,
                    "disposition": "trained",
                }
            )
    return rows


def counted(rows: list[dict[str, Any]]) -> dict[str, int]:
    frame = pl.from_arrow(table(LEDGER, rows))
    assert isinstance(frame, pl.DataFrame)
    return account(frame.lazy(), PLAN).to_dict()


SLOT = 192
WHOLE = {"expected": 3840, "trained": 3840, "skipped": 0, "repeated": 0, "skipped_by_policy": 0}


def test_a_faithful_ledger_balances() -> None:
    assert counted(ledger()) == WHOLE


def test_the_order_of_rows_and_the_attempts_do_not_matter() -> None:
    rows = [{**row, "attempt": 1 + row["step"] // 3} for row in reversed(ledger())]
    assert counted(rows) == WHOLE


def test_a_dropped_batch_is_skipped() -> None:
    assert counted([row for row in ledger() if row["step"] != 3]) == WHOLE | {"trained": 3072, "skipped": 768}


def test_a_batch_trained_twice_is_repeated() -> None:
    rows = ledger()
    again = [{**row, "attempt": 2} for row in rows if row["step"] == 2]
    assert counted(rows + again) == WHOLE | {"trained": 4608, "repeated": 768}


def test_a_batch_trained_twice_under_the_next_step_is_repeated() -> None:
    rows = ledger()
    for row in rows:
        if row["step"] == 3:
            row["first_sample"] -= PLAN.windows
    assert counted(rows) == WHOLE | {"skipped": 768, "repeated": 768}


def test_two_batches_in_each_others_place_are_noticed() -> None:
    rows = ledger()
    for row in rows:
        row["step"] = {2: 4, 4: 2}.get(row["step"], row["step"])
    assert counted(rows) == WHOLE | {"skipped": 1536, "repeated": 1536}


def test_steps_beyond_the_plan_are_repeated() -> None:
    extra = [
        {**row, "step": row["step"] + 5, "first_sample": row["first_sample"] + 60} for row in ledger()[:4]
    ]
    assert counted(ledger() + extra)["repeated"] == 768


def test_what_policy_skips_is_not_expected_and_the_next_takes_its_place() -> None:
    rows = ledger(PLAN.replace(tokens=PLAN.tokens + 768))
    for row in rows:
        if row["step"] == 3:
            row["disposition"] = "skipped_by_policy"
        elif row["step"] > 3:
            row["step"] -= 1
    assert counted(rows) == WHOLE | {"skipped_by_policy": 768}


def test_what_is_only_called_skipped_by_policy_is_missed() -> None:
    rows = [{**row, "disposition": "skipped_by_policy"} if row["step"] == 5 else row for row in ledger()]
    assert counted(rows) == WHOLE | {"trained": 3072, "skipped": 768, "skipped_by_policy": 768}


def test_an_empty_ledger_has_skipped_everything() -> None:
    assert counted([]) == WHOLE | {"trained": 0, "skipped": 3840}


def test_a_run_that_stopped_before_its_first_update_owes_nothing() -> None:
    left_out = [{**row, "disposition": "skipped_by_policy"} for row in ledger()[:8]]
    frame = pl.from_arrow(table(LEDGER, left_out))
    assert isinstance(frame, pl.DataFrame)
    for rows in (frame, frame.clear()):
        found = account(rows.lazy(), PLAN, 0)
        assert found.whole
        assert (found.expected, found.skipped_by_policy) == (0, rows.height * SLOT)


@given(st.lists(st.integers(0, 19), max_size=12))
def test_skipped_plus_trained_less_repeated_is_expected(drawn: list[int]) -> None:
    got = counted([ledger()[i] for i in drawn])
    assert got["skipped"] + got["trained"] - got["repeated"] == got["expected"]
    assert got["trained"] == SLOT * len(drawn)
    assert got["repeated"] == SLOT * (len(drawn) - len(set(drawn)))


@pytest.mark.parametrize("slots", [1, 2, 4, 12])
def test_the_plan_is_a_partition_of_the_samples(slots: int) -> None:
    frame = planned(PLAN.replace(slots=slots))
    ends = frame["first_sample"] + 12 // slots
    assert frame["first_sample"].to_list() == [0, *ends.to_list()[:-1]]
    assert frame["tokens"].sum() == PLAN.tokens
