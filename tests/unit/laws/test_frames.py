"""What a law accepts, and how it says what it does not."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pytest

from froude import laws

TRUTH = (1.8, 480.0, 2100.0, 0.35, 0.37)
Grid = Callable[..., pl.DataFrame]

U = np.log(2.0) / 2 * (np.arange(7) - 3)
CURVE = pl.DataFrame({"lr": np.exp(U - 6), "loss": 3 + 0.03 * U**2})
TRANSFER = pl.concat(CURVE.with_columns(pl.lit(w).alias("width")) for w in (64, 128, 256))
BATCH = pl.DataFrame(
    {"batch": [64.0, 128, 256, 512, 1024], "steps": [100 * (1 + 200 / b) for b in (64, 128, 256, 512, 1024)]}
)
OPTIMA = pl.DataFrame(
    {
        "params": [1e6, 1e6, 1e7, 1e7, 1e8],
        "tokens": [1e8, 1e9, 1e9, 1e10, 1e10],
        "lr": [5e-3, 4e-3, 3e-3, 2e-3, 1e-3],
    }
)
LOSSES = pl.DataFrame(
    {
        "params": [n for n in (1e7, 1e8, 1e9) for _ in range(3)],
        "tokens": [1e9, 1e10, 1e11] * 3,
        "loss": [1.8 + 480 * n**-0.35 + 2100 * d**-0.37 for n in (1e7, 1e8, 1e9) for d in (1e9, 1e10, 1e11)],
    }
)
BRANCHES = pl.DataFrame(
    {"batch": [64.0] * 3, "lr": [0.01] * 3, "steps": [100.0, 200, 400], "loss": [3.0, 2.5, 2.0]}
)

LAWS: dict[str, tuple[Callable[..., Any], pl.DataFrame, tuple[str, ...]]] = {
    "loss_law": (laws.loss_law, LOSSES, ("params", "tokens")),
    "optimum_law": (laws.optimum_law, OPTIMA, ("params", "tokens", "lr")),
    "lr_curve": (laws.lr_curve, CURVE, ("lr",)),
    "lr_transfer": (laws.lr_transfer, TRANSFER, ("lr", "width")),
    "critical_batch": (laws.critical_batch, BATCH, ("batch", "steps")),
    "steps_to_target": (lambda frame: laws.steps_to_target(frame, 2.2), BRANCHES, ("batch", "lr", "steps")),
}
COLUMNS = [(name, column) for name, (_, _, columns) in LAWS.items() for column in columns]
WITH_LOSS = ["loss_law", "lr_curve", "lr_transfer", "steps_to_target"]


def put(frame: pl.DataFrame, column: str, value: float | None) -> pl.DataFrame:
    return frame.with_columns(
        pl.Series(column, [value, *frame[column].cast(pl.Float64).to_list()[1:]], pl.Float64)
    )


@pytest.mark.parametrize("name", LAWS)
def test_anything_but_a_frame_is_a_type_error(name: str) -> None:
    law, frame, _ = LAWS[name]
    for bad in (frame.to_dict(as_series=False), None, frame.to_numpy(), [1, 2]):
        with pytest.raises(TypeError, match="polars"):
            law(bad)


@pytest.mark.parametrize("name,column", [*COLUMNS, *((name, "loss") for name in WITH_LOSS)])
def test_a_missing_column_is_named_with_those_present(name: str, column: str) -> None:
    law, frame, _ = LAWS[name]
    with pytest.raises(ValueError, match=f"'{column}' is missing") as raised:
        law(frame.drop(column))
    assert all(other in str(raised.value) for other in frame.drop(column).columns)


@pytest.mark.parametrize("name,column", COLUMNS)
@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 0.0, -1.0])
def test_a_value_that_is_not_positive_and_finite_names_its_column(
    name: str, column: str, value: float | None
) -> None:
    law, frame, _ = LAWS[name]
    with pytest.raises(ValueError, match=f"'{column}'"):
        law(put(frame, column, value))


@pytest.mark.parametrize("name,column", [*COLUMNS, *((name, "loss") for name in WITH_LOSS)])
@pytest.mark.parametrize("dtype", [pl.String, pl.Boolean])
def test_a_column_that_is_not_numeric_is_a_type_error(
    name: str, column: str, dtype: type[pl.DataType]
) -> None:
    law, frame, _ = LAWS[name]
    with pytest.raises(TypeError, match=f"'{column}'"):
        law(frame.with_columns(pl.col(column).cast(dtype)))


@pytest.mark.parametrize("name", WITH_LOSS)
@pytest.mark.parametrize("value", [0.0, -2.0])
def test_a_loss_that_is_not_positive_is_an_error(name: str, value: float) -> None:
    law, frame, _ = LAWS[name]
    with pytest.raises(ValueError, match="'loss'"):
        law(put(frame, "loss", value))


@pytest.mark.parametrize("name", LAWS)
def test_lazy_integer_and_decimal_columns_give_the_same_law(name: str) -> None:
    law, frame, columns = LAWS[name]
    whole = [c for c in columns if frame[c].cast(pl.Float64).to_list() == frame[c].cast(pl.Int64).to_list()]
    same = [
        frame.lazy(),
        frame.with_columns(pl.col(whole).cast(pl.Int64)).with_columns(pl.lit("x").alias("note")),
    ]
    if whole:
        exact = [Decimal(int(v)) for v in frame[whole[0]].to_list()]
        same.append(frame.with_columns(pl.Series(whole[0], exact, pl.Decimal(38, 0))))
    wanted = table_of(law(frame))
    for other in same:
        assert table_of(law(other)).equals(wanted)


def table_of(result: Any) -> pl.DataFrame:
    return result if isinstance(result, pl.DataFrame) else result.table()


@pytest.mark.parametrize("name", LAWS)
def test_an_empty_frame_is_too_few_points(name: str) -> None:
    law, frame, _ = LAWS[name]
    for empty in (frame.clear(), pl.DataFrame({column: [] for column in frame.columns})):
        result = law(empty)
        if isinstance(result, pl.DataFrame):
            assert result.is_empty()
        else:
            assert result.status == "too_few_points"
            assert result.rows.is_empty()
            assert result.reasons


@pytest.mark.parametrize("name", LAWS)
def test_units_that_disagree_name_the_batch(name: str) -> None:
    law, frame, _ = LAWS[name]
    full = frame.with_columns(
        (pl.col("batch") if "batch" in frame.columns else pl.lit(512.0)).alias("batch"),
        (pl.col("steps") if "steps" in frame.columns else pl.lit(1000.0)).alias("steps"),
    )
    if "tokens" not in full.columns:
        full = full.with_columns((pl.col("batch") * pl.col("steps") * 1.009).alias("tokens"))
        law(full)
    with pytest.raises(ValueError, match="'batch'"):
        law(full.with_columns((pl.col("batch") * pl.col("steps") / 512).alias("tokens")))


def test_products_of_large_integers_do_not_wrap() -> None:
    big = [2**40, 2**41, 2**42, 2**43]
    frame = pl.DataFrame({"batch": big, "steps": [2**40, 2**39, 2**38, 2**37]})
    frame = frame.with_columns(pl.Series("tokens", [2.0**80] * 4))
    assert laws.critical_batch(frame).b_crit > 0


def test_only_finished_and_diverged_rows_of_a_study_count(grid: Grid) -> None:
    frame = grid(TRUTH).with_columns(pl.lit("finished").alias("status"))
    bad = {"params": [None, 1e8, 1e8], "tokens": [1e9, None, 1e9], "loss": [9.0, 9.0, None]}
    extra = pl.DataFrame(bad).with_columns(pl.Series("status", ["running", "failed", "diverged"]))
    law = laws.loss_law(pl.concat([frame, extra]))
    assert law.alpha == pytest.approx(0.35, rel=1e-6)
    assert law.rows.height == frame.height + 3
    assert law.rows["fitted"].is_null().to_list() == [False] * frame.height + [True] * 3
    with pytest.raises(TypeError, match="'status'"):
        laws.loss_law(grid(TRUTH).with_columns(pl.lit(1).alias("status")))


def test_null_nan_and_infinite_losses_are_diverged_runs(grid: Grid) -> None:
    frame = grid(TRUTH)
    lost = pl.DataFrame(
        {"params": [1e8] * 3, "tokens": [1e9] * 3, "loss": [None, float("nan"), float("inf")]}
    )
    law = laws.loss_law(pl.concat([lost, frame]))
    assert law.status == "ok"
    assert law.rows["residual"].is_null().to_list() == [True] * 3 + [False] * frame.height
    assert law.rows.drop("fitted", "residual", "outlier").equals(pl.concat([lost, frame]), null_equal=True)


def test_a_group_must_have_a_name(grid: Grid) -> None:
    frame = grid(TRUTH).with_columns(pl.Series("run", [None, *["a"] * 24]))
    with pytest.raises(ValueError, match="'run'"):
        laws.loss_law(frame, groups="run")
    with pytest.raises(ValueError, match="'family' is missing"):
        laws.loss_law(frame, groups=["family"])
    with pytest.raises(ValueError, match="'w'"):
        laws.loss_law(frame.with_columns(pl.lit(0.0).alias("w")), weights="w")


@pytest.mark.parametrize("name", ["_group", "_row", "key0"])
def test_groups_may_have_any_name(name: str) -> None:
    frame = OPTIMA.with_columns(pl.Series("family", ["a", "a", "b", "b", "c"]))
    wanted = laws.optimum_law(frame, groups=["family", "params"]).table()
    renamed = laws.optimum_law(frame.rename({"family": name}), groups=[name, "params"])
    assert renamed.table().equals(wanted)


def test_a_status_that_is_not_known_is_asked_about(grid: Grid) -> None:
    frame = grid(TRUTH)
    half = frame.height // 2
    words = pl.Series("status", ["finished"] * half + ["completed"] * (frame.height - half))
    with pytest.raises(
        ValueError, match=rf"'status' .* holds 'completed' \({frame.height - half} such rows\)"
    ):
        laws.loss_law(frame.with_columns(words))
    law = laws.loss_law(frame.with_columns(words.replace("completed", "Cancelled").replace("finished", None)))
    assert (law.status, law.rows["fitted"].null_count()) == ("too_few_points", frame.height)
