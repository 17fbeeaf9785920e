"""Rounded weights and scaled losses over real processes: the same bits at any number of workers, and when resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from froude.config import Run

pytestmark = pytest.mark.long

BASE = Run(
    tokens=160 * 4,
    batch=160,
    slots=5,
    reduction="exact",
    seed=3,
    eval_windows=16,
    stability="off",
    model={"width": 32, "context": 32},
    optimizer={"lr": 2**-7, "clip": 0.5},
)
MUON: dict[str, Any] = {"optimizer.name": "muon", "optimizer.lr": 0.02}
BY_LAYERS = {"keep_gathered": 0, "micro_batch": 32, "batch": 320, "tokens": 320 * 4}
OVERFLOWING = (
    2.0**40
)  # of a first loss scale; that of `fp16, by layers` overflows fewer times, and fp16 is slow
CASES: dict[str, dict[str, Any]] = {
    "rounded": {"precision": "bf16_stochastic", "bucket": 3000},
    "rounded, muon, by layers": {"precision": "bf16_stochastic", **MUON, **BY_LAYERS},
    "rounded, block": {"precision": "bf16_stochastic", "slot_schedule": "block"},
    "fp16": {"precision": "fp16", "scale": OVERFLOWING},
    "fp16, by layers": {"precision": "fp16", "scale": 2.0**24, **BY_LAYERS},
    "fp16, no overflow": {"precision": "fp16", "tokens": 160 * 2},
}
FAST = {
    "rounded, fast": {"precision": "bf16_stochastic", "reduction": "fast", **BY_LAYERS},
    "fp16, fast": {"precision": "fp16", "reduction": "fast", "scale": 2.0**20, "tokens": 160 * 3},
}
WORLDS = (1, 2, 3)


def told(changes: dict[str, Any]) -> dict[str, Any]:
    changes = dict(changes)
    extra = {name: changes.pop(name) for name in ("keep_gathered", "bucket", "scale") if name in changes}
    return BASE.replace(changes).to_dict() | extra


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, dict[str, Any]]]:
    """Bits of each case by number of workers."""
    folder = tmp_path_factory.mktemp("precision")
    cases = json.dumps({name: told(changes) for name, changes in {**CASES, **FAST}.items()})
    script = Path(__file__).with_name("precision_rank.py")
    results = {}
    for world in WORLDS:
        ranks = [
            subprocess.Popen(
                [sys.executable, script, str(rank), str(world), folder, cases],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            for rank in range(world)
        ]
        assert [rank.wait(timeout=300) for rank in ranks] == [0] * world
        results[world] = json.loads((folder / f"bits-{world}.json").read_text())
    return results


@pytest.mark.parametrize("name", CASES)
def test_a_run_has_the_same_bits_at_any_number_of_workers_and_resumed_at_another(
    found: dict[int, dict[str, dict[str, Any]]], name: str
) -> None:
    alone = found[1][name]
    for world in WORLDS[1:]:
        assert found[world][name]["first"] == alone["first"]
        assert found[world][name]["whole"] == alone["whole"]
        resumed = found[world][name]["resumed"]
        assert resumed == alone["whole"]


def test_an_overflow_is_tried_again_and_leaves_out_nothing(
    found: dict[int, dict[str, dict[str, Any]]],
) -> None:
    for name in ("fp16", "fp16, by layers"):
        had = found[1][name]["whole"]
        assert 1 < had["scaling"]["scale"] < CASES[name]["scale"]
        assert 0 < had["scaling"]["good"]
        assert len(found[1][name]["first"]["series"]) == 2
        assert had["dispositions"] == ["trained"]
    overflown, calm = (found[1][name]["first"]["series"] for name in ("fp16", "fp16, no overflow"))
    assert overflown[0][0] == calm[0][0]  # the loss of the same batch
    assert overflown[0][1] == pytest.approx(calm[0][1], rel=1e-3)


def test_rounding_is_by_chance_and_layout_changes_no_bit(
    found: dict[int, dict[str, dict[str, Any]]],
) -> None:
    assert found[1]["rounded"]["whole"]["digest"] == found[1]["rounded, block"]["whole"]["digest"]


@pytest.mark.parametrize("name", FAST)
def test_a_fast_run_is_nearly_the_same_at_any_number_of_workers(
    found: dict[int, dict[str, dict[str, Any]]], name: str
) -> None:
    alone = found[1][name]["whole"]
    for world in WORLDS[1:]:
        for key in ("whole", "resumed"):
            assert found[world][name][key]["loss"] == pytest.approx(alone["loss"], rel=1e-3)
            if alone["scaling"]:  # what overflows depends on who computes how much
                assert 1 / 4 <= found[world][name][key]["scaling"]["scale"] / alone["scaling"]["scale"] <= 4
