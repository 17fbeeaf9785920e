"""The plan: what it counts, what it times, when it refuses."""

import math
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from froude.config import ConfigError, Run
from froude.hardware.memory import memory as planned_memory
from froude.hardware.sizes import Place
from froude.launch.trainable import Proxy
from froude.launch.tuning import Queue, Room
from froude.laws.loss.trade import Part
from froude.optimizers import OPTIMIZERS
from froude.promote.choice.step_time import estimated
from froude.space import Grid, Search, Space, Trial, Uniform
from froude.store import Location
from froude.sweep import plan as planning
from froude.sweep import preflight
from froude.sweep.plan import memory, plan, sweep_memory, worker_bytes
from froude.sweep.sizes import sizes_of
from froude.train.api import build_model, count_parameters
from froude.train.model import Transformer
from froude.train.speed import timing as speed
from froude.train.speed.timing import Speed, measure, model_size, step_flops
from froude.train.trainer import Trainer

RUN = Run(name="a", tokens=768 * 10, model={"width": 32}, eval_windows=96)
TARGET = RUN.replace({"model.width": 64}, name="large", tokens=768 * 100, slots=12, workers=(1, 3))


@pytest.fixture
def space():
    branches = tuple(RUN.replace(name=f"n{n}", tokens=768 * n) for n in (10, 20))
    search = Search("s", RUN, {"optimizer.beta2": Uniform(0.9, 0.99)}, 4, 2, {"optimizer.beta2": 0.95})
    grid = Grid(
        "g", lambda rows: [Trial("t", branches, stop_loss=2.0)], role="critical_batch", extend=lambda rows: []
    )
    return Space("tiny", 3, (search, grid), TARGET)


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    """A machine of 1e9 FLOP/s, and a cache of one's own."""
    monkeypatch.setattr(speed, "_time", lambda run: step_flops(run) / 1e9)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_plan_counts_runs_tokens_flops_and_seconds(space):
    found = plan(space, workers=2)
    search, grid = found.stages
    assert (search.trials, search.runs, search.tokens) == (4, 4, 4 * 7680)
    assert (grid.trials, grid.runs, grid.tokens) == (1, 2, 22 * 768)
    per_token = float(build_model(RUN, "meta").flops_per_token())
    assert search.flops == pytest.approx(per_token * search.tokens)
    evaluation = 4 * 96 * 64 / 3 * per_token
    assert search.seconds == pytest.approx((search.flops + evaluation) / 1e9)
    assert found.seconds == pytest.approx((search.seconds + grid.seconds) / 2)
    assert (found.target.trials, found.target.tokens) == (1, 76_800)
    assert found.to_dict()["stages"][0]["name"] == "s"


@pytest.mark.parametrize("limit", [0, 60.0])
def test_a_plan_says_that_a_command_may_hang(limit):
    run = RUN.replace(
        {"trainer.command": ["true"], "trainer.params": 100, "trainer.time_limit": limit}, name="c"
    )
    space = Space("c", 0, (Grid("g", lambda rows: [Trial("t", (run,))], "loss_law"),), TARGET)
    said = [line for line in plan(space, trust=True).lines() if "time_limit" in line]
    assert said == ([planning.UNLIMITED] if not limit else [])


def test_a_plan_gives_a_worker_its_threads(space, monkeypatch):
    one = plan(space, workers=1)
    space = replace(space, target=TARGET.replace({"compute.threads": 2}))
    monkeypatch.setattr(planning, "cores", lambda: 5)
    two = plan(space)
    assert (one.threads, two.threads, two.workers) == (1, 2, 2)
    assert two.seconds == pytest.approx(one.seconds / 4)
    assert "2 workers of 2 threads here" in two.lines()[0]


@pytest.mark.parametrize(
    ("device", "here", "said"), [("auto", False, 1), ("auto", True, 0), ("cuda", False, 0)]
)
def test_a_precision_that_needs_a_gpu_is_told_before_anything_starts(monkeypatch, device, here, said):
    monkeypatch.setattr("torch.cuda.is_available", lambda: here)
    grid = Grid("g", lambda rows: [Trial("a", (RUN,))], role="loss_law")
    found = plan(Space("tiny", 3, (grid,), TARGET.replace(precision="tf32", device=device)))
    lines = [line for line in found.lines() if "would be refused" in line]
    assert len(lines) == len(found.refusals) == said
    for line in lines:
        assert "without one large would be refused" in line
        assert (
            '`precision` "tf32" needs a GPU, but this worker computes on a CPU; use "fp32" or "bf16"' in line
        )


def test_a_plan_says_what_is_known_only_on_the_way(space):
    lines = "\n".join(plan(space).lines())
    assert "axis values, by TPE from trial 3 on" in lines
    assert "settings, from s; more trials at an edge; ends at the target loss" in lines
    assert "settings, by promote" in lines
    assert "GiB are free" in lines


def memory_line(found):
    (line,) = (line for line in found.lines() if line.startswith("memory"))
    return line


def test_a_plan_that_does_not_fit_here_says_so(space, monkeypatch):
    needed = memory(space, 2)
    monkeypatch.setattr(planning, "free_memory", lambda: needed - 1)
    assert "too few here" in memory_line(plan(space, workers=2))
    monkeypatch.setattr(planning, "free_memory", lambda: needed)
    assert "too few here" not in memory_line(plan(space, workers=2))


def test_models_too_large_for_this_machine_are_planned_without_running_them(space, monkeypatch):
    timed = []
    monkeypatch.setattr(speed, "_time", lambda run: timed.append(run) or 1.0)
    large = RUN.replace(
        {"model.width": 1024, "model.depth": 8, "batch": 2**16, "tokens": 2**20}, name="large"
    )
    grid = Grid("g", lambda rows: [Trial("t", (large,))], role="loss_law")
    found = plan(Space("big", 0, (grid,), large), workers=2)
    stand_in = timed[0]
    assert speed.step_flops(stand_in) < 1e-4 * speed.step_flops(large)
    assert found.stages[0].seconds == pytest.approx(
        found.stages[0].flops / speed.step_flops(stand_in), rel=0.1
    )


def test_a_plan_with_foreign_code_needs_trust(space, monkeypatch):
    foreign = Space("x", 0, space.stages, TARGET.replace({"model.factory": "some.where:Model"}))
    with pytest.raises(ConfigError, match="--trust"):
        plan(foreign)


def test_memory_grows_with_parameters_batch_and_workers(space):
    wide = RUN.replace({"model.width": 512})
    counted = count_parameters(build_model(wide, "meta")).params_with_embeddings
    assert worker_bytes(wide) - worker_bytes(RUN) > 16 * counted
    assert worker_bytes(RUN.replace(batch=768 * 32, tokens=768 * 64)) > worker_bytes(RUN)
    assert worker_bytes(RUN) > planning.PROCESS_BYTES
    assert memory(space, 4) - memory(space, 2) == 2 * worker_bytes(RUN)


def test_what_a_sweep_needs_is_not_what_its_target_needs(space):
    large = replace(space, target=space.target.replace({"model.width": 2048}))
    assert sweep_memory(large, 2) == sweep_memory(space, 2) == memory(space, 2) < memory(large, 2)


def test_memory_has_the_moments_that_the_optimizer_keeps():
    """Under SGD one less than under AdamW: for training, what is unused then, and the copy that branches begin from."""
    model = build_model(RUN, "meta")
    sgd = RUN.replace({"optimizer.name": "sgd", "parametrization": "sp"})
    tensors = len(list(model.parameters()))  # AdamW counts the steps of each
    moments = count_parameters(model).params_with_embeddings
    less = (2 + planning.UNUSED) * 4 * (moments + tensors)
    assert worker_bytes(RUN) - worker_bytes(sgd) == pytest.approx(less, abs=1)


#: 24 blocks, whose backward of a batch needs 28 GiB, and of a micro-batch 2.
DEEP = Run(
    model={"width": 64, "depth": 24, "head_dim": 16, "context": 512, "vocab": 4096},
    batch=1024,
    tokens=10_240,
    slots=2,
    micro_batch=512,
)


def test_a_worker_is_planned_by_its_micro_batch_and_by_an_evaluation_that_keeps_nothing():
    counted = planned_memory(DEEP, sizes_of(DEEP), Place(1, 1), gpu=False)
    assert counted.worst == "evaluation"
    assert counted.needed < worker_bytes(DEEP) < 1.4 * counted.needed
    few = DEEP.replace(eval_windows=1)
    assert worker_bytes(few) < worker_bytes(few.replace(micro_batch=0)) < worker_bytes(DEEP)
    assert worker_bytes(few.replace({"compute.checkpointing": "blocks"})) < worker_bytes(few)


def test_a_model_of_ones_own_is_planned_as_if_an_evaluation_kept_all(monkeypatch):
    own = DEEP.replace({"model.factory": f"{__name__}:Shared", "eval_windows": 1})
    assert worker_bytes(own) > 10 * worker_bytes(DEEP)


def test_too_little_memory_names_what_needs_less(monkeypatch):
    monkeypatch.setattr(preflight, "free_memory", lambda: 2**30)
    with pytest.raises(ConfigError, match=r"set `micro_batch` or `compute.checkpointing`, or use a larger"):
        preflight.check_memory(2**31, what="a profile")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_planned_bytes_of_state_are_those_of_a_trainer(name):
    run = RUN.replace({"optimizer": {"name": name}, "parametrization": "sp", "schedule.name": "constant"})
    held = {key: t for key, t in Trainer(run).state().items() if key.startswith("optimizer.")}
    assert model_size(run)[2] == sum(tensor.nbytes for tensor in held.values())


def test_a_step_has_the_flops_of_its_estimates_of_curvature():
    """One more pass of Sophia-G in every tenth step, three of Sophia-H."""
    adamw, g, h = (
        step_flops(RUN.replace({"optimizer": {"name": name}, "parametrization": "sp"}))
        for name in ("adamw", "sophia_g", "sophia_h")
    )
    assert g / adamw == pytest.approx(1.1)
    assert h / adamw == pytest.approx(1.3)


def test_speed_is_interpolated_between_what_was_timed():
    speeds = Speed([(1e6, 0.01), (1e8, 0.1)])
    assert speeds.seconds(1e6) == pytest.approx(0.01)
    assert speeds.seconds(1e8) == pytest.approx(0.1)
    assert speeds.seconds(1e7) == pytest.approx(math.sqrt(0.01 * 0.1))
    assert speeds.seconds(1e9) == pytest.approx(1.0)
    assert speeds.seconds(5e5) == pytest.approx(0.005)


def test_a_timing_is_kept(monkeypatch):
    timed = []
    monkeypatch.setattr(speed, "_time", lambda run: timed.append(run) or 0.5)
    first = measure([RUN, TARGET])
    again = measure([RUN, TARGET])
    assert len(timed) == 2
    assert first.points == again.points
    measure([RUN])
    assert len(timed) == 3


def test_a_real_step_is_timed(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(speed, "SECONDS", 0.0)
    assert 0 < speed._time(RUN) < 60


def test_workers_of_several_threads_are_timed_and_counted_so(monkeypatch):
    monkeypatch.setattr(speed, "cores", lambda: 2)
    twice = RUN.replace({"compute.threads": 2})
    before = torch.get_num_threads()
    with speed.clock(twice) as now:
        assert torch.get_num_threads() == 2
        began, wall = now(), time.perf_counter()
        while time.perf_counter() - wall < 0.01:
            pass
        assert now() - began >= 0.02  # of two CPUs
    assert torch.get_num_threads() == before
    assert estimated(twice).per_flop == pytest.approx(estimated(RUN).per_flop / 2)
    assert estimated(twice).source.startswith("estimated as by a plan: 2 threads of this machine, timed")


def test_a_trial_reserves_what_its_runs_may_use(tmp_path):
    single, double, on_cpu = RUN, RUN.replace(slots=12, workers=2), RUN.replace(device="cpu")
    without, with_gpus = {"CPU": 2.0}, {"CPU": 2.0, "GPU": 4.0}

    def reserved(cluster, *runs):
        trials = iter([Trial(f"t{i}", (run,)) for i, run in enumerate(runs)])
        agenda = SimpleNamespace(done=False, changed={}, retired="", next=lambda: next(trials))
        queue = Queue(agenda, Location.parse(tmp_path), 2, lambda: Room(cluster, one_machine=False))
        return [Proxy.default_resource_request(queue.suggest(str(i))).bundles[0] for i, _ in enumerate(runs)]

    assert reserved(without, single) == [{"CPU": 1.0, "memory": 1.0}]
    assert reserved(with_gpus, single, single) == [{"GPU": 1.0, "memory": 1.0}, {"GPU": 1.0, "memory": 2.0}]
    assert reserved(with_gpus, on_cpu) == [{"CPU": 1.0, "memory": 1.0}]
    assert reserved(without, double) == [{"node:__internal_head__": 0.01}]
    with pytest.raises(ConfigError, match="GPU"):
        reserved(without, RUN.replace(device="cuda"))


def test_a_step_of_the_target_is_timed_at_two_batches(monkeypatch):
    monkeypatch.setattr(speed, "_time", lambda run: 0.5 + step_flops(run) / 1e9)
    found = estimated(RUN)  # the target's larger step is not to be run on a CPU
    assert found.per_flop == pytest.approx(1e-9)
    assert found.overhead == pytest.approx(0.5)
    assert "estimated" in found.source
    part = [Part(TARGET.tokens, TARGET.batch)]
    hours = found.hours(part, flops_per_token=1e6, workers=1)
    assert hours * 3600 == pytest.approx(TARGET.steps * (0.5 + 1e-3 * TARGET.batch))
    assert found.hours(part, flops_per_token=1e6, workers=2) < hours


def test_the_time_of_a_step_does_not_depend_on_how_decay_is_said(monkeypatch):
    monkeypatch.setattr(speed, "_time", lambda run: 0.5 + step_flops(run) / 1e9)
    run = Run(tokens=768 * 100, optimizer={"timescale": 0.2})
    assert estimated(run).per_flop == pytest.approx(1e-9)


class Shared(Transformer):
    """A model of one's own whose queries are in groups of four heads."""

    def __init__(self, run):
        assert run.model.heads % 4 == 0, f"{run.model.heads} heads"
        super().__init__(run)


def test_a_model_that_cannot_be_small_is_stood_for_by_our_own(monkeypatch):
    monkeypatch.setattr(speed, "_time", lambda run: 1.0)
    big = {"factory": f"{__name__}:Shared", "width": 1024, "head_dim": 64, "depth": 8, "context": 2048}
    run = Run(tokens=2**17 * 100, batch=2**17, model=big, precision="bf16")
    assert step_flops(run) > speed.AFFORDABLE
    flops, made = speed._stand_in(run)
    assert (made.model.factory, made.precision) == (Run(tokens=768).model.factory, "fp32")
    assert flops < 1e10
    found = speed.measure([run])
    assert found.instead == speed.measure([run]).instead == speed.INSTEAD  # the second is read from the cache
    assert "timed, by the package's own model" in estimated(run).source
    assert speed.measure([RUN]).instead == ""


def test_a_plan_says_what_is_known_of_the_batch(space):
    assert "768 tokens: what it costs in loss is known when stage critical_batch has run" in "\n".join(
        plan(space).lines()
    )
    alone = Space("tiny", 3, (space.stages[0],), TARGET)
    assert "a stage of the role critical_batch would tell" in plan(alone).batch


def test_a_plan_says_what_the_batch_saves(space, monkeypatch):
    monkeypatch.setattr(speed, "_time", lambda run: 0.5 + step_flops(run) / 1e9)
    far = replace(space, target=TARGET.replace({"batch": 7680, "tokens": 76_800, "slots": 3}))
    # A step of the target of 192 tokens takes .5 s and some; 400 of them against 10.
    told = plan(far).batch
    assert told.startswith("the target's batch is set, 7,680 tokens: saves ")
    saved, small = (float(told.split()[i]) for i in (8, 10))
    assert small == pytest.approx((400 * 0.5 + 64) / 60, rel=0.2)
    assert small - saved == pytest.approx((10 * 0.5 + 64) / 60, rel=0.2)
    assert "CPU minutes here against a batch of 192; what it costs in loss is known when stage" in told
    ramped = plan(replace(space, target=TARGET.replace({"schedule.ramp": ((38_400, 2),)}))).batch
    assert "768 tokens, 1,536 from 38,400 on" in ramped
