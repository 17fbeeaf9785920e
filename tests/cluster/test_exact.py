"""Exact runs over real processes: the same bits at any number of workers; and what must not be the same, isn't."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from froude.config import Run
from froude.optimizers import OPTIMIZERS

BASE = Run(
    tokens=768 * 4,
    batch=768,
    slots=12,
    reduction="exact",
    seed=3,
    eval_windows=200,  # two full chunks of an evaluation and a part of one
    model={"width": 32},
    optimizer={"lr": 2**-7, "clip": 0.5},
    schedule={"warmup_tokens": 1536},
)
SHARDS = Path(__file__).parents[1] / "data/shards"
FIVE = {"slots": 5, "batch": 640, "tokens": 640 * 4, "schedule.warmup_tokens": 640}
#: Large enough for torch to divide operations among threads: it does so beyond 32768 elements.
WIDE = {"model.width": 128, **FIVE, "batch": 1280, "tokens": 1280 * 2}
EXACT = {
    "adamw": {},
    "bf16": {"precision": "bf16"},
    "lion": {"optimizer.name": "lion", "optimizer.lr": 1e-3},
    "muon": {"optimizer.name": "muon", "optimizer.lr": 0.02},
    "five slots": FIVE,
    "micro-batches": {"batch": 2304, "tokens": 2304 * 3, "micro_batch": 128},
    "odd width": {"model.width": 40, "model.head_dim": 10, "model.base_width": 20, "model.tied": True},
    "block": {"slot_schedule": "block"},
    "switched": {"slot_schedule": "block", "switch_at": 2},
    "sharded by layers": {"keep_gathered": 0, "micro_batch": 64, **FIVE},
    "zclip": {"optimizer.clipping": "zclip", "adaptive_after": 2, "resume": "zclip"},
    "adagc": {"optimizer.clipping": "adagc", "adaptive_after": 2, "resume": "adagc"},
    "ramped": {
        "schedule.ramp": [[1536, 2]],
        "tokens": 768 * 6,
        "schedule.weight_decay_to": 0.1,
        "resume": "ramped",
    },
    "sharded by layers, block": {"keep_gathered": 0, "micro_batch": 64, "slot_schedule": "block", **FIVE},
}
#: More of a kind, at one and three workers.
MORE = {
    "muon of heads, odd width, by layers": {
        "optimizer.name": "muon",
        "optimizer.lr": 0.02,
        "optimizer.options": {"heads": True, "scale": "match_rms"},
        "parametrization": "sp",
        "model.width": 40,
        "model.head_dim": 10,
        "model.base_width": 20,
        "model.tied": True,
        "keep_gathered": 0,
        **FIVE,
    },
    "sgd": {"optimizer.name": "sgd", "optimizer.lr": 0.1, "parametrization": "sp"},
    "sgd, bf16, micro-batches": {
        "optimizer.name": "sgd",
        "optimizer.lr": 0.1,
        "parametrization": "sp",
        "precision": "bf16",
        "micro_batch": 64,
        **FIVE,
    },
    "sophia_g, bf16, micro-batches, by layers": {
        "optimizer": {"name": "sophia_g", "options": {"gamma": 1.0, "every": 2}},
        "parametrization": "sp",
        "precision": "bf16",
        "micro_batch": 64,
        "keep_gathered": 0,
        **FIVE,
    },
    "block of five": {**FIVE, "slot_schedule": "block", "precision": "bf16"},
    "adagc, sharded by layers": {
        "optimizer.clipping": "adagc",
        "adaptive_after": 2,
        "model.softcap": 30.0,
        "model.z_loss": 1e-4,
        "keep_gathered": 0,
        **FIVE,
    },
    "mixture": {
        "data": {
            "parts": [
                {"name": "kjv", "source": "froude.train.data.kjv:KingJames", "weight": 3},
                {"name": "chain", "source": "froude.train.data.markov:Markov", "weight": 1},
            ],
            "phases": [{"from_share": 0.6, "weights": {"chain": 1}}],
        },
        "resume": "mixture",
    },
    "ramped, micro-batches, by layers": {
        "schedule.ramp": [[640, 2]],
        "micro_batch": 64,
        "keep_gathered": 0,
        **FIVE,
        "tokens": 640 * 5,
    },
    "sophia_g, ramped": {
        "optimizer": {"name": "sophia_g", "options": {"gamma": 1.0, "every": 2}},
        "parametrization": "sp",
        "schedule.ramp": [[1536, 2]],
        "tokens": 768 * 6,
    },
    **{
        f"shards of {name}": {
            "data.source": "froude.train.data.shards:Shards",
            "data.path": str(SHARDS / name),
            "model.vocab": 1000,
            "model.context": 16,
            "resume": f"shards-{name}",
            **FIVE,
        }
        for name in ("megatron", "datatrove", "dolma", "datasets", "arrow", "parquet", "llm.c", "nanogpt")
    },
    "grouped, windowed, documents": {
        "data.source": "froude.train.data.shards:Shards",
        "data.path": str(SHARDS / "megatron"),
        "model.vocab": 1000,
        "model.kv_heads": 1,
        "model.sliding_window": 24,
        "model.global_every": 2,
        "model.documents": True,
        "model.attention_bias": True,
        "model.parallel": True,
        "micro_batch": 128,
        "batch": 2304,
        "tokens": 2304 * 3,
        "keep_gathered": 0,
        "resume": "documents",
    },
    "fast kernels": {"compute.kernels": "fast", **FIVE},
    "fast kernels, bf16": {"compute.kernels": "fast", "precision": "bf16", "keep_gathered": 0, **FIVE},
    "two threads": {"compute.threads": 2, **WIDE},
    "two threads, fast kernels, bf16, by layers": {
        "compute.threads": 2,
        "compute.kernels": "fast",
        "precision": "bf16",
        "keep_gathered": 0,
        **WIDE,
    },
}
#: Each optimizer at one to three workers, and from the checkpoint of one worker less.
OPTIMIZERS_ALONE = {
    f"{name} alone": {
        "optimizer": {"name": name, "options": {"every": 2} if "every" in spec.options else {}},
        "parametrization": "sp",
        "schedule.name": spec.schedules[0] if spec.schedules else "wsd",
        "resume": name,
        "most": 3,
    }
    for name, spec in OPTIMIZERS.items()
    if spec.unit != "model"
}
ODD = {"model.width": 40, "model.head_dim": 10, "model.base_width": 20}
INEXACT = {
    "fast": {"reduction": "fast", "optimizer.implementation": "foreach"},
    "fast, micro-batches": {"reduction": "fast", "micro_batch": 64, "count": True},
    # The test at the start would refuse it.
    "fused": {**ODD, "optimizer.implementation": "fused", "unchecked": True},
}
#: What a step computes in pieces or again, at one and two workers.
LESS_MEMORY = {
    "in chunks": {
        **MORE["adagc, sharded by layers"],
        "model.tied": True,
        "micro_batch": 64,
        "precision": "bf16",
        "compute.loss_chunk": 48,
        "most": 2,
    },
    **{
        kind: {**EXACT["sharded by layers"], "compute.checkpointing": kind, "most": 2}
        for kind in ("blocks", "sqrt", "selective")
    },
    "fast, in chunks": {
        "reduction": "fast",
        "micro_batch": 64,
        "keep_gathered": 0,
        "compute.loss_chunk": 48,
        "compute.checkpointing": "sqrt",
        "most": 2,
    },
}


def case(changes, *, told=True):
    """What a rank is told: the run, and if so what else is to be done with it."""
    changes = dict(changes)
    own = ("switch_at", "keep_gathered", "unchecked", "count", "resume", "most", "adaptive_after")
    extra = {name: changes.pop(name) for name in own if name in changes}
    return BASE.replace(changes).to_dict() | (extra if told else {})


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, dict]]:
    """Bits of each case by number of workers."""
    return trained(tmp_path_factory.mktemp("exact"), {**EXACT, **INEXACT, **LESS_MEMORY}, (1, 2, 3, 4))


@pytest.fixture(scope="module")
def found_more(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, dict]]:
    """Those of more of a kind."""
    return trained(tmp_path_factory.mktemp("more"), MORE, (1, 3))


@pytest.fixture(scope="module")
def found_alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, dict]]:
    """Those of each optimizer."""
    return trained(tmp_path_factory.mktemp("alone"), OPTIMIZERS_ALONE, (1, 2, 3))


def trained(folder: Path, changed: dict[str, dict], worlds: tuple[int, ...]) -> dict[int, dict[str, dict]]:
    cases = json.dumps({name: case(changes) for name, changes in changed.items()})
    script = Path(__file__).with_name("exact_rank.py")
    results = {}
    for world in worlds:
        ranks = [
            subprocess.Popen(
                [sys.executable, script, str(rank), str(world), folder, cases],
                env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"},
            )
            for rank in range(world)
        ]
        assert [rank.wait(timeout=300) for rank in ranks] == [0] * world
        results[world] = json.loads((folder / f"bits-{world}.json").read_text())
    return results


@pytest.mark.parametrize("name", EXACT)
def test_any_number_of_workers_trains_the_same_bits(found, name):
    same_bits(found, name, EXACT[name])


@pytest.mark.long
@pytest.mark.parametrize("name", MORE)
def test_so_it_is_with_more_of_a_kind(found_more, name):
    same_bits(found_more, name, MORE[name])


def same_bits(found, name, changes):
    """Of a case at each number of workers, and from the checkpoint of fewer; and each slot's norm was measured."""
    alone = found[1][name]
    assert len(alone["series"]) == Run.from_dict(case(changes, told=False)).steps
    for world in found.keys() - {1}:
        resumed = found[world][name].pop("resumed", alone["digest"])
        assert found[world][name] == alone
        assert resumed == alone["digest"]
    for _, norm, slot_square in alone["series"]:
        assert slot_square > norm**2  # a slot's gradient has more noise than the batch's


@pytest.mark.parametrize("kind", ["blocks", "sqrt", "selective"])
def test_activations_that_are_computed_again_change_no_bit(found, kind):
    """Where FSDP gathers a block's weights again, too."""
    assert found[1][kind] == found[2][kind] == found[2]["sharded by layers"]


def test_a_loss_in_chunks_has_the_same_bits_on_two_workers(found):
    assert found[1]["in chunks"] == found[2]["in chunks"]
    for world in (1, 2):
        pairs = zip(
            found[world]["fast, in chunks"]["series"],
            found[world]["fast, micro-batches"]["series"],
            strict=True,
        )
        assert all(one[0] == pytest.approx(other[0], rel=1e-6) for one, other in pairs)


@pytest.mark.parametrize("name", ["zclip", "adagc"])
def test_clipping_by_averages_is_not_clipping_by_the_bound(found, name):
    assert found[1][name]["series"][:2] == found[1]["adamw"]["series"][:2]
    assert found[1][name]["digest"] != found[1]["adamw"]["digest"]


@pytest.mark.long
@pytest.mark.parametrize("name", OPTIMIZERS_ALONE)
def test_an_optimizer_trains_the_same_bits_and_goes_on_with_them_at_another_number_of_workers(
    found_alone, name
):
    found = found_alone
    alone = found[1][name]
    assert name == "adamw alone" or alone["digest"] != found[1]["adamw alone"]["digest"]
    for world in (2, 3):
        resumed = found[world][name].pop("resumed")
        assert found[world][name] == alone
        assert resumed == alone["digest"]


@pytest.mark.campaign
def test_an_optimizer_whose_workers_are_killed_in_mid_step_goes_on_at_another_number(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killed_rank.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    cases = {name.split()[0]: case(changes, told=False) for name, changes in OPTIMIZERS_ALONE.items()}

    def ranks(world: int, told: dict[str, dict]) -> list[int]:
        started = [
            subprocess.Popen(
                [sys.executable, script, str(rank), str(world), tmp_path, json.dumps(told)], env=environment
            )
            for rank in range(world)
        ]
        return [rank.wait(timeout=300) for rank in started]

    for name, run in cases.items():
        assert ranks(2, {name: run}) == [-signal.SIGKILL] * 2, name
    assert ranks(1, cases) == [0]
    found = json.loads((tmp_path / "bits.json").read_text())
    assert found.keys() == cases.keys()
    for name, (resumed, undisturbed) in found.items():
        assert resumed == undisturbed, name


def test_the_schedule_of_slots_and_a_switch_between_them_change_no_bit(found):
    for world in (1, 2, 3, 4):
        assert found[world]["adamw"] == found[world]["block"] == found[world]["switched"]
        assert found[world]["sharded by layers"] == found[world]["sharded by layers, block"]


def test_a_fused_optimizer_depends_on_the_number_of_workers(found):
    assert len({found[world]["fused"]["digest"] for world in (1, 2, 3, 4)}) > 1
    assert found[2]["fused"]["series"][0] == found[1]["fused"]["series"][0]  # up to its first update


def test_a_plain_reduction_depends_on_the_number_of_workers(found):
    assert len({found[world]["fast"]["digest"] for world in (1, 2, 3, 4)}) > 1
    assert found[2]["fast"]["series"][0][0] == pytest.approx(found[1]["fast"]["series"][0][0], rel=1e-6)


def test_a_plain_reduction_gathers_small_weights_once_a_step(found):
    """Whatever the number of micro-batches: at two workers there are six of them."""
    assert [found[world]["fast, micro-batches"]["gathers"] for world in (2, 3, 4)] == [1, 1, 1]
