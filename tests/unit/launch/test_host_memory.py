"""How much of the host's memory a sweep asks for, before it starts."""

import pytest

from froude.config import Run
from froude.hardware.sizes import PROCESS_BYTES
from froude.launch.sweep import _workers_at_once
from froude.launch.tuning import Room
from froude.space import Trial
from froude.sweep.plan import worker_bytes

LARGE = Run(name="p", model={"width": 1024, "depth": 24, "vocab": 8192}, batch=65536, tokens=65536)
WITH_GPUS, WITHOUT = Room({"CPU": 16.0, "GPU": 2.0}, True), Room({"CPU": 16.0}, True)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_trial_on_a_gpu_takes_its_process_and_copies_for_checkpoints_of_the_host(precision):
    run = LARGE.replace(precision=precision)
    at_once, each = _workers_at_once([Trial("p", (run,))], WITH_GPUS, None)
    weights = 4 * 12 * run.model.depth * run.model.width**2
    assert at_once == 2
    assert weights < each - PROCESS_BYTES < 6 * weights
    assert each < worker_bytes(run) / 2


@pytest.mark.parametrize("room, device", [(WITHOUT, "auto"), (WITH_GPUS, "cpu")])
def test_one_on_cpus_takes_all_of_it_there(room, device):
    run = LARGE.replace(device=device)
    assert _workers_at_once([Trial("p", (run,))], room, 3) == (3, worker_bytes(run))


def test_the_largest_counts():
    small = LARGE.replace({"model.width": 128, "batch": 1024}, name="q", device="cpu")
    own = worker_bytes(LARGE, gpu=True)
    assert _workers_at_once([Trial("p", (LARGE,)), Trial("q", (small,))], WITH_GPUS, 1) == (1, own)
