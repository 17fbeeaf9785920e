"""Tensors unlike our own model's on one to four processes: the same bits, at the price of an owner for each matrix.

Rows that no number of workers divides, fewer rows than workers, fewer matrices than workers; parameters that are
shared, frozen, or used by some workers' tokens only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from odd_tensors import like_ours

RANK = Path(__file__).with_name("owners_rank.py")
ON_TENSORS = ("adafactor", "adamw8bit", "muon", "normuon", "shampoo", "soap")
USES = ("tied", "shared", "repeated", "frozen", "rare", "unused")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """What each rank found, by their number."""
    folder = tmp_path_factory.mktemp("owners")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, RANK, str(rank), folder], env=environment) for rank in range(4)
    ]
    try:
        assert [rank.wait(timeout=240) for rank in ranks] == [0] * 4
    finally:
        for rank in ranks:
            rank.kill()
    return {
        world: [json.loads((folder / f"{world}-{rank}.json").read_text()) for rank in range(world)]
        for world in (1, 2, 3, 4)
    }


@pytest.mark.parametrize("tensors", ["odd", "lone"])
@pytest.mark.parametrize("name", ON_TENSORS)
def test_how_tensors_are_divided_changes_no_bit(found, tensors: str, name: str) -> None:
    """`lone` is one matrix of three rows: at four ranks one has no row, and three have nothing to update."""
    (alone,) = found[1]
    for world in (2, 3, 4):
        for rank in found[world]:
            assert rank[f"{tensors}, {name}"]["bits"] == alone[f"{tensors}, {name}"]["bits"]


def test_a_state_is_of_eight_bits_by_its_parameter_and_never_by_the_size_of_a_shard(found) -> None:
    """Also on a rank that has no rows of it. Only what has one number a row is kept as it is."""
    due = {}
    for name in ("qkv", "one_row", "two_rows", "seven_rows", "filters", "experts"):
        due |= {f"{name}.exp_avg": "torch.int8", f"{name}.exp_avg_sq": "torch.uint8"}
    for name in ("gain", "one_number"):
        due |= dict.fromkeys((f"{name}.exp_avg", f"{name}.exp_avg_sq"), "torch.float32")
    for ranks in found.values():
        for rank in ranks:
            dtypes = rank["odd, adamw8bit"]["dtypes"]
            assert {key: dtypes[key] for key in dtypes if not key.endswith(("step", "scale"))} == due


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("how", USES)
def test_how_a_model_uses_its_parameters_changes_no_bit(found, how: str, name: str) -> None:
    (alone,) = found[1]
    for rank in found[2]:
        assert rank[f"{how}, {name}"] == alone[f"{how}, {name}"]
    frozen = ["model.layers.0.linear.weight"]
    assert alone[f"{how}, {name}"]["still"] == (frozen if how == "frozen" else [])


def test_a_plain_reduction_takes_what_only_one_worker_has_used_for_its_own(found) -> None:
    """FSDP2 sends what has a gradient, which are other parameters on other ranks, unless it is told not to."""
    (alone,) = found[1]
    for rank in found[2]:
        assert rank["rare, fast"]["losses"] == pytest.approx(alone["rare, fast"]["losses"], rel=1e-5)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_step_sends_gradients_and_weights_to_their_owners_and_weights_back(found, world: int) -> None:
    """Of P bytes a rank has P / W, so that 3 P (W - 1) / W^2 leave it; less where it owns what it has.

    Parts of fused tensors lie on few ranks: given to others, they took 1.6 times that. Ranks differ by what they own.
    """
    owned = sum(parameter.nbytes for parameter in like_ours().parameters())
    sent = [rank["cost"]["sent"] for rank in found[world]]
    due = 3 * owned * (world - 1) / world**2
    assert 0 < sum(sent) / world < due
    assert max(sent) < 1.2 * due


def test_a_step_has_less_than_six_times_the_largest_matrix_in_memory(found) -> None:
    largest = 4 * 256 * 64
    for ranks in found.values():
        for rank in ranks:
            assert 2 * largest < rank["cost"]["memory"] < 6 * largest
