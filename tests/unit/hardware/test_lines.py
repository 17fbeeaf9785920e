"""What a plan tells besides its table."""

from dataclasses import replace

from froude.config import Run
from froude.hardware import tables
from froude.hardware.lines import explained, notes, told
from froude.hardware.sizes import Place
from froude.hardware.ways import plan
from froude.sweep.sizes import sizes_of

SEVEN = Run(
    model={"width": 4096, "depth": 32, "head_dim": 128, "context": 4096, "vocab": 32_000},
    batch=2**22,
    tokens=2**32,
    precision="bf16",
)


def planned(run, sizes, nodes="4x8"):
    return plan(run, sizes, Place.parse(nodes), tables.device("h100-80gb"), tables.price("h100-80gb"))


def test_what_each_worker_builds_whole_is_told():
    sizes = sizes_of(SEVEN)
    assert not sizes.built_whole
    own = replace(sizes, built_whole=True)
    (line,) = (line for line in told(planned(SEVEN, own)) if "builds" in line)
    assert line.startswith(
        "each worker builds the whole model first, 29 GB of the host's memory a worker, 23"
    )
    assert "GB a node; one whose class has `initial`" in line
    assert planned(SEVEN, own, "1x8").chosen.memory.host == 4 * own.parameters
    assert not any("builds" in line for line in told(planned(SEVEN, own, "1x1")))


def test_where_blocks_are_compiled_with_all_weights_there_is_told():
    exact = SEVEN.replace({"compute.compile": "blocks", "reduction": "exact"})
    lines = told(planned(exact, sizes_of(exact)))
    assert any("tried, with all weights and gradients on each device, 5" in line for line in lines)
    fast = exact.replace(reduction="fast")
    assert not any("tried" in line for line in told(planned(fast, sizes_of(fast))))


def test_what_the_run_must_set_to_train_so_is_told_together():
    run = SEVEN.replace({"batch": 840 * 4096, "tokens": 840 * 4096, "slots": 8, "workers": 4})
    assert [line for line in notes(planned(run, sizes_of(run), "1x14")) if line.startswith("set ")] == [
        "set `slots` to a multiple of 14: the run has 8",
        "set `workers` to 14: the run has 4",
    ]
    run = run.replace({"batch": 832 * 4096, "tokens": 832 * 4096})
    uneven, slots, workers = notes(planned(run, sizes_of(run), "1x14"))
    assert slots == "set `slots` to 16: the run has 8"  # of the 832 windows
    assert uneven.startswith("14 workers do not share the batch's 832 windows evenly")
    assert (slots[:11], workers[:13]) == ("set `slots`", "set `workers`")
    assert notes(planned(run, sizes_of(run), "1x4")) == []


def test_times_promise_what_was_tested():
    """The published speeds are of widths from 2048 on, and of GPUs."""
    assert "within a factor of 1.5" in told(planned(SEVEN, sizes_of(SEVEN)))[-1]
    small = SEVEN.replace({"model.width": 256, "model.depth": 2, "tokens": 2**22})
    chosen, last = told(planned(small, sizes_of(small), "1x1"))[-2:]
    assert "tested from width 2048 on: a smaller model takes longer" in last
    assert "factor" not in last
    assert " minutes, " in chosen
    small = small.replace({"batch": 1024, "precision": "fp32", "model.context": 256})
    cpu = plan(small, sizes_of(small), Place.parse("1x1"), tables.device("cpu"), tables.price("cpu"))
    assert "which was not held against any CPU" in told(cpu)[-1]


def test_the_arithmetic_ends_in_the_tables_speed():
    plan = planned(SEVEN, sizes_of(SEVEN))
    speed = f"{plan.chosen.step.tokens_per_second:,.0f}"
    assert len(speed.replace(",", "").rstrip("0")) > 5
    assert sum(f" {speed} " in line for line in told(plan)) == 1
    assert [speed in line for line in explained(plan) if "tokens a second" in line] == [True]
    assert [speed in line for line in explained(plan) if line.startswith("  days")] == [True]
