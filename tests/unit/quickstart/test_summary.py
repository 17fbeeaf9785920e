"""The summary's arithmetic: seconds over several passes, plain JSON, and the closing block without some of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from froude import Study
from froude.promote.choice.knob import Knob
from froude.quickstart.summary import closing_block, rounded, stored
from froude.quickstart.whole import covered, worked_before
from froude.store import Location


@pytest.mark.parametrize(
    ("spans", "length"),
    [([], 0), ([(0, 2), (1, 3)], 3), ([(5, 6), (0, 1)], 2), ([(0, 10), (2, 3)], 10), ([(1, 1)], 0)],
)
def test_covered(spans: list[tuple[float, float]], length: float) -> None:
    assert covered(spans) == length


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=12))
def test_covered_is_the_measure_of_the_union(drawn: list[tuple[int, int]]) -> None:
    spans = [(float(start), float(start + length)) for start, length in drawn]
    cells = {cell for start, length in drawn for cell in range(start, start + length)}
    assert covered(spans) == len(cells)


def test_a_study_remembers_how_long_it_was_at_work(small_study: Path) -> None:
    study = Study(small_study)
    count = study.trials().collect()["trial"].n_unique()
    # A trial every two seconds, each of 1.5 seconds.
    assert worked_before(study, "large", math.inf) == {"sweep": 1.5 * count, "train": 0}
    assert worked_before(study, "large", 0.0) == {"sweep": 0, "train": 0}


def test_rounded_is_plain_json() -> None:
    content = {"a": math.nan, "b": [1.23456789, 1e-7], "c": (2, None, "x"), "d": {"e": math.inf}}
    assert json.loads(json.dumps(rounded(content), allow_nan=False)) == {
        "a": None,
        "b": [1.234568, 1e-7],
        "c": [2, None, "x"],
        "d": {"e": None},
    }


@pytest.mark.parametrize("content", [None, "{", "[1]"])
def test_a_broken_summary_is_none(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    assert stored(Location.parse(tmp_path)) == {}


def summary() -> dict[str, Any]:
    return {
        "trials": {"finished": 3, "diverged": 1, "failed": 0},
        "seconds": {"sweep": 60.0, "fit": 1.0, "promote": 1.0, "train": 30.0, "total": 92.0},
        "best": {"lr": 0.0055, "warmup_tokens": 768, "beta2": 0.95, "batch": 768, "schedule": "wsd"},
        "lr_transfer": {"mup": {"slope": -0.1, "low": -0.2, "high": 0.0}},
        "critical_batch": {"b_crit": 340.0, "low": 200.0, "high": 500.0, "status": "ok"},
        "forecast": {
            "loss": 1.3, "low": 1.25, "high": 1.35, "level": 0.9, "certified": False, "naive": 1.42,
            "sha256": "f" * 64, "extrapolation": {"params": 2.78, "tokens": 1.029, "compute": 2.86, "batch": 1.0},
            "proxies_over_target": 3.14,
        },
        "actual": {"loss": 1.28, "inside": True, "relative_error": 0.0156},
        "elastic": {
            "world_sizes": [3, 2, 3],
            "restarts": 2,
            "recovery_seconds": [8.0, 9.04],
            "tokens_expected": 998400,
            "tokens_skipped": 0,
            "tokens_repeated": 0,
        },
    }  # fmt: skip


def test_the_closing_block() -> None:
    text = closing_block(summary(), install_seconds=77.4, report="runs/x/report.html")
    for part in (
        "SP –, muP -0.10 [-0.20, +0.00]",
        "340 tokens [200, 500] at the loss of its stage (ok)",
        "3 → 2 → 3",
        "8.0, 9.0 seconds",
        "77 s",
    ):
        assert part in text
    assert "inside the interval, error +1.6% (others: the largest proxy's loss 1.420)" in text
    assert text.splitlines()[-1].endswith("runs/x/report.html")


def test_the_closing_block_says_how_far_the_target_reaches_and_what_its_proxies_cost() -> None:
    text = closing_block(summary(), install_seconds=None, report="r")
    assert "2.78x the parameters, 1.03x the tokens, 2.86x the compute of the largest proxy" in text
    assert "cost of proxies 3.1x the target's compute, all together" in text
    assert "not certified" in text
    assert "(set beforehand: batch 768 tokens, wsd)" in text
    assert "noise of a run" not in text
    content = summary()
    content["forecast"] |= {"noise": 0.0087, "overridden": ["seeds", "lr_points"]}
    lines = closing_block(content, install_seconds=None, report="r").splitlines()
    assert "noise of a run  0.87% of its loss by the law: the floor under a forecast's error" in lines
    assert "overridden      seeds, lr_points" in lines


def test_the_closing_block_says_what_was_found_and_what_was_set() -> None:
    rule = "costs 0.048 nats (3.6%) against a batch of 384"
    knobs = [
        Knob("optimizer.lr", 0.0055, "prior", regret=0.01),
        Knob("batch", 768, "set by you", regret=0.048, rule=rule),
        Knob("schedule.name", "wsd", "measured", rule="cosine +0.012"),
        Knob("schedule.decay_fraction", 0.2, "set by you"),
        Knob("optimizer.weight_decay", 0.1, "set by you", rule="the target's own timescale"),
    ]
    content = summary() | {"knobs": {knob.name: knob.to_dict() for knob in knobs}}
    lines = closing_block(content, install_seconds=None, report="r").splitlines()
    assert f"batch           768, set by you: {rule}" in lines
    assert "schedule        wsd, found (measured): cosine +0.012" in lines
    assert "decay fraction  0.2, set by you" in lines
    assert "weight decay    0.1, set by you: the target's own timescale" in lines
    assert "regret expected lr 0.010 (prior), batch 0.048 (set by you) nats" in lines
    assert not any("set beforehand" in line for line in lines)


def test_the_closing_block_without_installation_restarts_or_a_critical_batch() -> None:
    content = summary()
    content["critical_batch"] = {"b_crit": None, "low": None, "high": None, "status": "too_few_points"}
    content["elastic"] |= {"recovery_seconds": [], "restarts": 0, "world_sizes": [1]}
    content["actual"]["inside"] = False
    text = closing_block(content, install_seconds=None, report="r")
    assert "installation" not in text
    assert "no fit (too_few_points)" in text
    assert "OUTSIDE" in text
    assert "recovery        none" in text
