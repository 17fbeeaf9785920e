"""What of sending is waited for, as train/parallel.py sends it: beside computing, or after it."""

from dataclasses import replace

import pytest

from froude.config import Run
from froude.hardware import tables
from froude.hardware.layout import Layout
from froude.hardware.roofline import step
from froude.hardware.sizes import Place
from froude.sweep.sizes import sizes_of

#: GPT-3 XL's shape: 1.4B parameters.
LARGE = Run(
    model={"width": 2048, "depth": 24, "head_dim": 128, "mlp_ratio": 2.6875, "context": 2048, "vocab": 50_304},
    batch=32 * 8 * 2048,
    tokens=32 * 8 * 2048,
    precision="bf16",
    parametrization="sp",
)  # fmt: skip
#: A gradient that a slow network sums: more to send than to compute.
SLOW = tables.device("h100-80gb").model_copy(update={"network": 5.0})


@pytest.fixture(scope="module")
def sizes():
    return sizes_of(LARGE)


def of(sizes, nodes="32x1", device=None, **changes):
    run = LARGE.replace({key.replace("_", ".", 1): value for key, value in changes.items()})
    return step(run, sizes, Place.parse(nodes), device or tables.device("h100-80gb"))


def computing(found):
    return found.products + found.traffic + found.updating


def test_replicas_of_one_worker_compute_and_then_send(sizes):
    for changes in ({"compute_strategy": "ddp"}, {"compute_strategy": "hsdp"}):
        found = of(sizes, **changes)
        assert found.sending > 0.3 * computing(found)
        assert found.seconds == pytest.approx(computing(found) + found.sending)


def test_what_takes_the_most_time_may_be_the_update(sizes):
    found = of(sizes, nodes="1x1")
    assert found.bound == "products"
    assert replace(found, updating=2 * found.seconds).bound == "update"


def test_fsdp_sends_beside_all_passes(sizes):
    quick, slow = of(sizes, "4x8"), of(sizes, device=SLOW)
    assert quick.sending > 0
    assert quick.seconds == pytest.approx(computing(quick))
    assert slow.sending > 2 * computing(slow)
    assert slow.seconds == pytest.approx(slow.sending + slow.updating)


def test_a_model_in_one_unit_sends_before_and_after_its_passes(sizes):
    small = replace(sizes, parameters=2**26)
    for strategy in ("fsdp", "zero1", "zero2"):
        found = step(LARGE.replace({"compute.strategy": strategy}), small, Place(32, 1), SLOW)
        assert found.seconds == pytest.approx(computing(found) + found.sending)


def test_where_weights_stay_gathered_only_one_forward_and_one_backward_pass_hide_what_is_sent(sizes):
    one = of(sizes, device=SLOW, compute_strategy="zero1")
    gather = reduce = one.sending / 2
    passes = one.products + one.traffic
    assert one.seconds == pytest.approx(one.updating + max(passes / 3, gather) + max(passes * 2 / 3, reduce))
    eight = of(sizes, compute_strategy="zero1").seconds
    parts = step(LARGE.replace({"compute.strategy": "zero1"}, micro_batch=2048), sizes, Place(32, 1), SLOW)
    passes = parts.products + parts.traffic
    waited = one.sending - passes / 8
    assert parts.seconds == pytest.approx(parts.updating + passes + waited)
    assert eight < parts.seconds
    each = step(LARGE.replace({"compute.strategy": "zero2"}, micro_batch=2048), sizes, Place(32, 1), SLOW)
    assert each.seconds > 2 * parts.seconds


def test_replicas_of_several_add_up_beside_the_last_pass(sizes):
    one = of(sizes, "4x8", device=SLOW, compute_strategy="hsdp")
    assert one.seconds == pytest.approx(max(one.products + one.traffic, one.sending) + one.updating)
    run = LARGE.replace({"compute.strategy": "hsdp"}, micro_batch=2048)
    parts = step(run, sizes, Place(4, 8), SLOW)
    assert parts.seconds > computing(parts) + 0.5 * sum(each.seconds for each in parts.sent[1:])


def test_an_exact_run_in_blocks_sends_its_sums_at_the_end(sizes):
    run = LARGE.replace(reduction="exact", slots=32, slot_schedule="block")
    found = step(run, sizes, Place(4, 8), tables.device("h100-80gb"))
    assert found.seconds == pytest.approx(computing(found) + found.sending / 2)


def test_a_cpu_does_one_after_the_other(sizes):
    found = of(sizes, device=tables.device("cpu").model_copy(update={"memory_gb": 1e3}))
    assert found.seconds == pytest.approx(computing(found) + found.sending)


def test_each_chunk_of_the_logits_adds_up_a_tensor_like_the_readout(sizes):
    def traffic(chunk):
        return step(LARGE.replace({"compute.loss_chunk": chunk}), sizes, Place(4, 8), device).traffic

    device = tables.device("h100-80gb")
    run = LARGE.replace({"compute.loss_chunk": 256})
    layout = Layout(run, sizes, Place(4, 8))
    chunks = layout.passes * layout.tokens / 256
    assert traffic(256) - traffic(0) == pytest.approx(chunks * 12 * sizes.readout / (device.bandwidth * 1e9))
    assert traffic(layout.tokens) == traffic(0)
    assert traffic(128) - traffic(0) == pytest.approx(2 * (traffic(256) - traffic(0)))
    assert f"{chunks / layout.passes:,.0f} chunks x 12" in step(run, sizes, Place(4, 8), device).how["memory"]
