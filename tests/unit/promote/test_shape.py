"""Where a target leaves its ladder: which axes are named, and what counts as measured."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from froude.config import Run
from froude.laws import CriticalBatch
from froude.promote.ladder import shape
from froude.train.rows import describe

BASE = Run(batch=768, tokens=768 * 100, model={"width": 64, "depth": 4}, data={"options": {"mixture": "web"}})
TARGET = BASE.replace({"model.width": 256, "tokens": 768 * 1000})


def ladder(*changes: dict[str, Any], steps: tuple[int, ...] = (100, 200)) -> pl.DataFrame:
    """A finished row for each of the changes, at two widths and these steps."""
    runs = [
        BASE.replace({"model.width": width, "tokens": BASE.replace(change).batch * n, **change})
        for change in (changes or ({},))
        for width in (64, 128)
        for n in steps
    ]
    rows = [
        {**describe(run), "status": "finished", "params": 26 * run.model.width**2 * run.model.depth}
        for run in runs
    ]
    return pl.DataFrame(rows, infer_schema_length=None)


def named(rows: pl.DataFrame, target: Run = TARGET, critical: CriticalBatch | None = None) -> list[str]:
    reasons = shape.doubts(rows, target, critical)
    return [reason.split(" is ")[0].removeprefix("the target's ") for reason in reasons]


def test_a_target_that_is_only_larger_is_on_the_ladder() -> None:
    assert named(ladder()) == []


def test_a_ladder_whose_kv_heads_keep_their_share_is_of_one_architecture_and_others_are_named() -> None:
    grouped = BASE.replace({"model.kv_heads": 2})  # of four
    rows = pl.concat([ladder({"model.width": width, "model.kv_heads": width // 32}) for width in (64, 128)])
    assert named(rows, grouped.replace({"model.width": 256, "tokens": 768 * 1000})) == []
    (reason,) = shape.doubts(rows, grouped.replace({"model.width": 256, "model.kv_heads": 2}), None)
    assert (
        "froude.train.model:Transformer kv_heads 1/8, the proxies' froude.train.model:Transformer kv_heads 1/2"
        in reason
    )


@pytest.mark.parametrize(
    ("change", "axis"),
    [
        ({"model.depth": 8}, "depth"),
        ({"model.head_dim": 32}, "head size"),
        ({"model.context": 128, "batch": 768}, "context length"),
        ({"model.vocab": 512}, "vocabulary"),
        ({"model.factory": "mine:GPT"}, "model class"),
        ({"model.sliding_window": 32}, "model class"),
        ({"model.rope_base": 5e5}, "model class"),
        ({"model.parallel": True}, "model class"),
        ({"data.source": "mine:Web"}, "data source"),
        ({"data.options": {"mixture": "code"}}, "data mixture"),
        ({"optimizer.name": "sgd", "parametrization": "sp"}, "optimizer"),
        ({"schedule.name": "cosine"}, "schedule"),
        ({"parametrization": "sp"}, "parametrization"),
        ({"precision": "bf16"}, "precision"),
        ({"batch": 1536, "tokens": 1536 * 500}, "batch"),
    ],
)
def test_each_axis_on_which_it_leaves_is_named(change: dict[str, Any], axis: str) -> None:
    target = TARGET.replace(change)
    assert axis in named(ladder(), target)
    reason = next(reason for reason in shape.doubts(ladder(), target) if axis in reason)
    assert "not measured (" in reason
    assert len(reason) < 200
    # A ladder of the target's kind has measured it.
    own = {key: value for key, value in change.items() if key != "tokens"}
    assert named(ladder(own), target) == []


def test_parts_and_weights_of_a_mixture_and_when_they_hold_are_axes() -> None:
    parts = [{"name": "web", "weight": 7.0}, {"name": "code", "weight": 3.0}]
    mixed = {"data": {"parts": parts, "phases": [{"from_share": 0.9, "weights": {"code": 1.0}}]}}
    rows, target = ladder(mixed), TARGET.replace(mixed)
    assert named(rows, target) == []
    assert named(rows, TARGET.replace({"data": {"parts": parts}})) == ["data mixture"]
    assert named(rows, target.replace({"data.parts.web.weight": 6.0})) == ["data mixture"]
    assert named(rows, target.replace({"data.parts.web.options": {"n": 1}})) == ["data source"]
    # By tokens, the last tenth of the target's is a stretch that no proxy comes to.
    late = {"data": {"parts": parts, "phases": [{"from_tokens": 768 * 900, "weights": {"code": 1.0}}]}}
    assert named(ladder(late), TARGET.replace(late)) == ["data mixture"]


def test_one_width_measures_no_other() -> None:
    assert named(ladder().filter(pl.col("width") == 64)) == ["width"]


def test_depths_reach_as_far_again_as_they_span() -> None:
    rows = ladder({"model.depth": 2}, {"model.depth": 6})
    assert named(rows, TARGET.replace({"model.depth": 4})) == []
    assert named(rows, TARGET.replace({"model.depth": 18})) == []
    assert named(rows, TARGET.replace({"model.depth": 19})) == ["depth"]


def test_a_ladder_of_two_kinds_is_that_of_none() -> None:
    for change in ({"schedule.name": "cosine"}, {"model.context": 128}, {"precision": "bf16"}):
        (reason,) = shape.doubts(ladder({}, {"seed": 1}, change), TARGET, None)
        assert "one law of several kinds is that of none: leave the others out" in reason


def test_a_schedules_tail_is_of_its_kind() -> None:
    longer = TARGET.replace({"schedule.decay_fraction": 0.5})
    (reason,) = shape.doubts(ladder(), longer, None)
    assert reason.startswith(
        "the target's decay, as a share of the run, is 0.5, the proxies' 0.2: not measured"
    )
    cosine = {"schedule.name": "cosine"}
    assert named(ladder(cosine), longer.replace(cosine)) == []  # which has no tail


def test_a_tables_corpus_is_its_targets_but_two_are_none() -> None:
    rows = ladder().with_columns(stage=pl.lit("history"), corpus=pl.lit("c4"))
    assert named(rows) == []
    assert named(rows, TARGET.replace({"data.source": "mine:Web"})) == ["data source"]
    # A command's data that nobody named is not that of proxies that froude trained.
    commanded = TARGET.replace({"trainer": {"command": ["python"]}})
    assert "data source" in named(ladder(), commanded)
    other = pl.when(pl.col("width") == 64).then(pl.lit("books")).otherwise("corpus")
    assert named(rows.with_columns(corpus=other)) == ["data source"]


def test_below_a_measured_critical_batch_the_batch_may_differ() -> None:
    class Critical:
        status, b_crit = "ok", 2000.0

    target = TARGET.replace({"batch": 1536, "tokens": 1536 * 500})
    assert named(ladder(), target) == ["batch"]
    assert named(ladder(), target, Critical()) == []  # type: ignore[arg-type]
    Critical.b_crit = 1000.0
    assert named(ladder(), target, Critical()) == ["batch"]  # type: ignore[arg-type]
    assert named(ladder({"batch": 384}, {"batch": 3072}), target) == [
        "batch"
    ]  # no proxy had it, nor one near it
    assert named(ladder({"batch": 384}, {"batch": 1600}), target) == []


def test_what_the_rows_do_not_say_is_not_held_against_the_target() -> None:
    other = TARGET.replace(
        {"model.context": 128, "model.vocab": 512, "optimizer.name": "sgd", "parametrization": "sp"}
    )
    rows = ladder()
    silent = rows.with_columns(
        pl.lit(None, rows.schema[name]).alias(name)
        for name in rows.columns
        if name not in ("params", "tokens", "status")
    )
    assert named(silent, other) == []
    assert named(silent.clear(), other) == []


def test_words_are_compared_without_their_case_and_a_file_by_its_content() -> None:
    rows = ladder().with_columns(
        optimizer=pl.lit("AdamW"), corpus=pl.lit("mine:Web old.bin sha256:0123456789ab")
    )
    target = TARGET.replace(
        {"data.source": "mine:Web", "data.path": "new.bin", "data.sha256": "0123456789ab" + 52 * "0"}
    )
    assert named(rows, target) == []
