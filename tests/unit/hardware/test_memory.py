"""A worker's bytes: ZeRO's arithmetic, and what autograd really keeps."""

import importlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from froude.config import Run
from froude.hardware.activations import bytes_of_a_block, evaluated, masks, outside_blocks
from froude.hardware.layout import Layout
from froude.hardware.memory import _waiting, memory
from froude.hardware.sizes import Place, Sizes
from froude.sweep.sizes import sizes_of
from froude.train.api import build_model
from froude.train.exact.slots import Rounds, subtrees
from froude.train.objective import minimised
from froude.train.trainer import Trainer

RUN = Run(
    model={"width": 64, "depth": 2, "context": 32, "vocab": 256},
    batch=32 * 64,
    tokens=32 * 64 * 10,
    eval_windows=4,
)
LARGE = Run(
    model={"width": 8192, "depth": 80, "head_dim": 128, "context": 4096, "vocab": 32_000},
    batch=64 * 4096,
    tokens=64 * 4096,
    precision="bf16",
    parametrization="sp",
)
#: 70e9 parameters and nothing else, as textbooks count.
ROUND = Sizes(
    parameters=70 * 10**9,
    blocks=70 * 10**9,
    block=875 * 10**6,
    depth=80,
    products=0,
    readout=0,
    largest=0,
    state_bytes=560 * 10**9,
    flops_per_token=420e9,
)


def parts(strategy, place="1x8", **changes):
    found = memory(
        LARGE.replace({"compute.strategy": strategy, **changes}), ROUND, Place.parse(place), gpu=True
    )
    return tuple(found.items[name].bytes / 1e9 for name in ("weights", "kept gradients", "state"))


def test_what_is_shared_is_zeros_arithmetic():
    """1910.02054, figure 1, of 70B in fp32 with AdamW: 16 bytes a parameter, and an eighth of what is shared."""
    assert parts("ddp") == (280, 280, 560)
    assert parts("fsdp") == (35, 35, 70)
    assert sum(parts("fsdp")) == 140  # per device of eight, as the primers' table has it
    assert parts("hsdp", "4x8") == (35, 35, 70)
    assert parts("fsdp", "4x8") == (8.75, 8.75, 17.5)
    assert parts("hsdp", "4x8", **{"compute.replicas": 2, "workers": 2}) == (17.5, 17.5, 35)


@pytest.mark.parametrize(("strategy", "whole"), [("ddp", 280), ("zero1", 280), ("zero2", 35), ("fsdp", 35)])
def test_gradients_that_wait_for_the_last_micro_batch(strategy, whole):
    run = LARGE.replace({"compute.strategy": strategy, "micro_batch": 4096})
    found = memory(run, ROUND, Place(1, 8), gpu=True)
    assert found.passes == 8
    assert found.items["waiting"].bytes / 1e9 == whole
    once = memory(run.replace(micro_batch=0), ROUND, Place(1, 8), gpu=True)
    assert once.items["waiting"].bytes == 0


def test_checkpointing_and_chunks_take_less_and_offload_moves_the_state():
    def of(**changes):
        return memory(LARGE.replace(changes), ROUND, Place(1, 8), gpu=True)

    kinds = ("none", "selective", "blocks", "sqrt")
    kept = [of(**{"compute.checkpointing": kind}).items["activations"].bytes for kind in kinds]
    assert kept == sorted(kept, reverse=True)
    assert kept[2] < kept[0] / 8
    chunked = of(**{"compute.loss_chunk": 1024}).items["logits"].bytes
    assert chunked < of().items["logits"].bytes / 4
    offloaded = of(**{"compute.offload": True})
    assert offloaded.items["state"].bytes == 0
    assert offloaded.host == of().host + of().items["state"].bytes


def test_what_an_update_takes_for_a_moment_is_counted():
    def of(**changes):
        return memory(LARGE.replace(changes), ROUND, Place(1, 8), gpu=True).items["updating"].bytes

    each = ROUND.state_bytes / ROUND.parameters
    assert of(**{"compute.offload": True}) - of() == pytest.approx(max(2**26, ROUND.largest / 8) * each)
    assert of(precision="bf16_stochastic") - of() == pytest.approx(max(2**24, ROUND.largest / 8) * 8)


def test_the_reserve_is_stated_apart():
    found = memory(LARGE, ROUND, Place(1, 8), gpu=True)
    assert found.needed == pytest.approx(found.peak * 1.05 + 2e9)
    assert found.peak == max(found.at(moment) for moment in found.moments)
    assert found.peak <= sum(item.bytes for item in found.items.values())


def test_an_exact_run_on_one_worker_keeps_sums_of_slots():
    run = RUN.replace(reduction="exact", slots=8)
    found = memory(run, sizes_of(run), Place(1, 1), gpu=False)
    whole = 4 * sizes_of(run).parameters
    assert found.items["waiting"].bytes == 3 * whole  # those of slots 0 to 3, 4 and 5, 6
    assert (found.passes, found.tokens) == (8, run.batch // 8)


@pytest.mark.parametrize("schedule", ["block", "cyclic"])
@pytest.mark.parametrize("slots", [4, 12, 24, 48, 96])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
def test_the_sums_that_wait_are_those_of_the_tree(schedule, slots, workers):
    """Of the worker that keeps most while it computes a slot; where slots are added by all, of the first."""
    if workers > slots:
        return
    run = RUN.replace(
        {
            "reduction": "exact",
            "slots": slots,
            "slot_schedule": schedule,
            "batch": 96 * 32,
            "tokens": 96 * 32 * 10,
        }
    )
    layout = Layout(run, sizes_of(run), Place(1, workers))
    if layout.whole:
        of = [
            Rounds(slots, rank, workers, "block" if workers > 1 else schedule).mine for rank in range(workers)
        ]
        expected = max(len(subtrees(slots, own[:i])) for own in of for i in range(len(own)))
    else:
        expected = max(len(subtrees(slots, range(first))) for first in range(0, slots, workers))
    assert _waiting(layout) == expected


@pytest.mark.parametrize(("slots", "workers", "windows"), [(8, 6, 16), (12, 8, 16), (8, 4, 16), (8, 8, 8)])
def test_a_worker_has_at_hand_the_slots_of_whoever_has_most(slots, workers, windows):
    run = RUN.replace({"slots": slots, "batch": slots * 8 * 32, "tokens": slots * 8 * 32})
    layout = Layout(run, sizes_of(run), Place(1, workers))
    assert layout.tokens == layout.busiest == windows * 32


@given(
    windows=st.integers(1, 200),
    slots=st.integers(1, 12),
    workers=st.integers(1, 12),
    micro=st.integers(0, 8),
    reduction=st.sampled_from(["fast", "exact"]),
)
def test_passes_cover_a_workers_share_of_a_batch(windows, slots, workers, micro, reduction):
    run = RUN.replace(
        batch=windows * slots * 32,
        tokens=windows * slots * 32,
        slots=slots,
        micro_batch=micro * 32,
        reduction=reduction,
    )
    layout = Layout(run, ROUND, Place(1, workers))
    assert layout.windows * layout.passes * workers >= run.windows
    assert not micro or layout.windows <= micro


def kept_by_autograd(run, windows):
    """Bytes of all that autograd saves of a pass, without the weights."""
    model = build_model(run)
    found = {}

    def pack(tensor):
        found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss, _ = minimised(model, windows, run)
    known = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers())}
    assert loss.requires_grad
    return sum(storage.nbytes() for at, storage in found.items() if at not in known)


@settings(max_examples=12)
@given(
    heads=st.integers(1, 3),
    depth=st.integers(1, 3),
    head_dim=st.sampled_from([16, 32]),
    ratio=st.sampled_from([1.0, 2.0, 4.0]),
    qk_norm=st.booleans(),
    precision=st.sampled_from(["fp32", "bf16"]),
    kernels=st.sampled_from(["plain", "fast"]),
)
def test_a_block_keeps_what_the_table_says(heads, depth, head_dim, ratio, qk_norm, precision, kernels):
    changes = {
        "model.width": heads * head_dim,
        "model.head_dim": head_dim,
        "model.depth": depth,
        "model.mlp_ratio": ratio,
        "model.qk_norm": qk_norm,
        "compute.kernels": kernels,
    }
    run = RUN.replace({**changes, "precision": precision})
    sizes, tokens = sizes_of(run), 64 * 32
    planned = depth * bytes_of_a_block(run, sizes, fused=False) + outside_blocks(run, fused=False)
    copies = 2 * sizes.products if precision == "bf16" else 0
    planned = tokens * (planned + 4 * run.model.vocab) + copies
    windows = torch.randint(0, 256, (64, 33), generator=torch.Generator().manual_seed(0))
    assert kept_by_autograd(run, windows) == pytest.approx(planned, rel=0.05)


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("every", [0, 2])
def test_blocks_keep_their_masks_on_a_cpu(every, documents):
    """Of a window once; of documents for each window."""
    changes = {"model.context": 256, "model.sliding_window": 32, "model.global_every": every, "batch": 2048}
    run = RUN.replace({**changes, "tokens": 20_480})
    windows = torch.randint(0, 256, (8, 257), generator=torch.Generator().manual_seed(0))
    without = kept_by_autograd(run.replace({"model.sliding_window": 0, "model.global_every": 0}), windows)
    if documents:
        run = run.replace({"model.documents": True})
        windows = torch.stack([windows, torch.zeros_like(windows)], dim=1)
    planned, _ = masks(run, sizes_of(run), 8, fused=False)
    assert kept_by_autograd(run, windows) - without == pytest.approx(planned, rel=0.25)
    assert masks(run, sizes_of(run), 8, fused=True)[0] == 0


def test_an_evaluation_has_its_logits_or_a_block():
    def of(**changes):
        run = RUN.replace(changes)
        return evaluated(run, sizes_of(run), fused=False)[0] / (4 * 32)  # bytes of a token

    wide = of(**{"model.vocab": 4096})
    assert wide == 4 * (2 * 4096 + 3 * 64)
    assert of(**{"model.vocab": 4096, "model.softcap": 30.0}) == wide + 4 * 4096
    assert of(**{"model.width": 256}) == bytes_of_a_block(
        RUN.replace({"model.width": 256}), ROUND, fused=False
    )


@pytest.mark.slow
@pytest.mark.own_process
@pytest.mark.parametrize("changes", [{}, {"optimizer.name": "muon", "micro_batch": 512}])
def test_a_planned_peak_is_what_torchs_allocator_hands_out(changes):
    run = RUN.replace(changes)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as records:
        trainer = Trainer(run)
        for step in range(2):
            trainer.step(run, step)
    events = [
        (e.start_ns(), e.nbytes()) for e in records.profiler.kineto_results.events() if e.name() == "[memory]"
    ]
    now = peak = 0
    for _, size in sorted(events, key=lambda event: event[0]):
        peak = max(peak, now := now + size)
    assert memory(run, sizes_of(run), Place(1, 1), gpu=False).peak == pytest.approx(peak, rel=0.1)


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "fsdp, blocks, chunked",
        "fsdp, exact",
        "zero1, micro-batches",
        "kv heads, window",
        "bf16_stochastic",
        "logits in full, z-loss",
    ],
)
def test_a_planned_peak_is_what_tensors_held(name, root, monkeypatch):
    """Cases of benchmarks/plan_memory.py, each trained by processes of its own."""
    monkeypatch.syspath_prepend(root / "benchmarks")
    plan_memory = importlib.import_module("plan_memory")
    workers, changes = plan_memory.CASES[name]
    planned = plan_memory.estimate(workers, changes, "cpu").peak
    assert plan_memory.measure(workers, changes, "cpu") == pytest.approx(planned, rel=0.1)


def test_a_model_of_ones_own_is_estimated_by_its_parameters():
    run = LARGE.replace({"model.options": {}})
    guessed = Sizes(**{**ROUND.__dict__, "block": 12 * 8192**2, "estimated": True})
    own = bytes_of_a_block(run, ROUND, fused=True)
    assert bytes_of_a_block(run, guessed, fused=True) == pytest.approx(35 * 8192)
    assert math.isclose(bytes_of_a_block(run, guessed, fused=True), own, rel_tol=0.35)


def test_the_benchmark_plans_each_of_its_cases(root, monkeypatch):
    monkeypatch.syspath_prepend(root / "benchmarks")
    plan_memory = importlib.import_module("plan_memory")
    for workers, changes in plan_memory.CASES.values():
        assert plan_memory.estimate(workers, changes, "cpu").peak > 0
