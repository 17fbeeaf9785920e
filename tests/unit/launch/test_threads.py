"""Threads of a worker: as many as its run names, and as many CPUs of one node reserved for them."""

from types import SimpleNamespace

import pytest
import torch

from froude.config import ConfigError, Run
from froude.launch import threads, worker
from froude.launch.threads import worker_resources
from froude.launch.trainable import Proxy, Task
from froude.launch.tuning import needs
from froude.space import Trial
from froude.sweep.preflight import cpus
from froude.train import trial as train_trial

ONE = Run(name="one", tokens=768)
TWO = Run(name="two", tokens=768, compute={"threads": 2})
ON_GPUS = {"CPU": 16.0, "GPU": 4.0}


@pytest.fixture
def before(monkeypatch):
    """The process's threads, which every test leaves as they were."""
    count = torch.get_num_threads()
    yield count
    torch.set_num_threads(count)


def task(run, device="cpu"):
    return Task("t", Trial("t", (run,)).to_json(), "runs/study", device, lane=3).config()


def test_a_worker_reserves_a_cpu_for_each_thread_that_its_run_names():
    assert worker_resources("cpu", ON_GPUS) == {"CPU": 1}
    assert worker_resources("cpu", ON_GPUS, 2) == {"CPU": 2}
    assert worker_resources("auto", ON_GPUS) == {"GPU": 1}
    assert worker_resources("auto", ON_GPUS, 2) == {"GPU": 1, "CPU": 2}
    assert [cpus(runs) for runs in ([], [ONE], [ONE, TWO])] == [1, 1, 2]


def test_a_trial_reserves_a_cpu_for_each_thread():
    for run, device, wanted in (
        (ONE, "cpu", {"CPU": 1}),
        (TWO, "cpu", {"CPU": 2}),
        (TWO, "cuda", {"GPU": 1, "CPU": 2}),
    ):
        (bundle,) = Proxy.default_resource_request(task(run, device)).bundles
        assert bundle == {**wanted, "memory": 4}


def test_a_trial_takes_as_many_cpus_of_a_sweep_as_it_has_threads():
    assert [needs(Trial("t", (run,)), {"CPU": 4.0}) for run in (ONE, TWO)] == [{"CPU": 1}, {"CPU": 2}]
    both = TWO.replace(workers=2, slots=2, name="w", batch=768)
    assert needs(Trial("t", (both,)), {"CPU": 4.0}) == {"CPU": 4}
    assert needs(Trial("t", (TWO,)), ON_GPUS) == {"GPU": 1, "CPU": 2}
    assert needs(Trial("t", (TWO.replace(device="cpu"),)), ON_GPUS) == {"CPU": 2}


@pytest.mark.parametrize("asked, named, found", [("", 0, 3), ("2,1", 0, 2), ("2,1", 4, 4), ("1", 2, 2)])
def test_a_worker_of_an_elastic_run_has_the_threads_of_its_run(before, monkeypatch, asked, named, found):
    context = SimpleNamespace(get_assigned_resources=lambda: {"CPU": 3.0})
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    worker.use_own_cores(named)
    assert torch.get_num_threads() == found


def test_each_trial_sets_its_own_threads_in_a_process_that_others_have_used(before, monkeypatch):
    seen = []
    monkeypatch.setattr(train_trial, "run_trial", lambda runs, **_: seen.append(torch.get_num_threads()))
    for run in (ONE, TWO, ONE):
        proxy = SimpleNamespace(
            _trial=Trial("t", (run,)), _task=SimpleNamespace(device="cpu"), _note=lambda *_: None
        )
        Proxy._alone(proxy)
    assert seen == [1, 2, 1]


def test_more_threads_than_a_node_has_cpus_are_refused(monkeypatch):
    nodes = [{"Alive": True, "Resources": {"CPU": 1.0}}, {"Alive": False, "Resources": {"CPU": 8.0}}]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    threads.check_nodes([ONE])
    with pytest.raises(ConfigError, match=r"`compute.threads` = 2, but the largest node has 1; lower it"):
        threads.check_nodes([ONE, TWO])
    nodes[1]["Alive"] = True
    threads.check_nodes([ONE, TWO])


def test_a_worker_s_gpu_and_cpus_must_be_of_one_node(monkeypatch):
    """A sum over nodes of what a worker wants is no place for it: it would wait for ever."""
    nodes = [
        {"Alive": True, "Resources": {"CPU": 16.0}},
        {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0}},
    ]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    wide = TWO.replace({"compute.threads": 8})
    threads.check_nodes([TWO, ONE, wide.replace(device="cpu")])
    for device in ("cuda", "auto"):
        with pytest.raises(
            ConfigError, match=r"with a GPU and a CPU .* = 8, but the largest node with a GPU has 4"
        ):
            threads.check_nodes([wide.replace(device=device)])
