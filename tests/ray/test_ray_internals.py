"""The contracts of what froude uses of Ray's internals; a new version of Ray that breaks one fails here."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray
from ray.train import WorkerGroupError
from ray.train.torch import TorchTrainer
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from froude.config import ConfigError, Run
from froude.launch import ray_internals
from froude.launch.cluster import SimulatedCluster, connect, simulated
from froude.launch.control_channel import Beat, ControlChannel
from froude.launch.elastic import (
    Limits,
    NoProgress,
    RunFailed,
    _explain,
    torch_backend,
    train,
)
from froude.launch.knobs import RAY_KNOBS, TRAIN_HUNG_SECONDS, TRAIN_POLL_SECONDS, in_force
from froude.launch.ray_internals.failures import BoundedFailures, find_cause
from froude.launch.ray_internals.resizing import PlannedResize
from froude.launch.ray_internals.spares import own_template, prestart
from froude.launch.ray_internals.trainer import ElasticTrainer
from froude.launch.threads import worker_resources
from froude.launch.worker import Fatal, use_own_cores, warm
from froude.runlog import LogReader
from froude.store import Location


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedCluster]:
    with simulated(2, log_dir=tmp_path_factory.mktemp("logs")) as running:
        yield running


def head() -> str:
    (node,) = [node for node in ray.nodes() if "node:__internal_head__" in node["Resources"]]
    return str(node["NodeID"])


def test_this_is_the_ray_that_was_tested() -> None:
    assert ray_internals.supported()


def test_the_cluster_is_a_head_without_cpus_and_nodes_of_one(cluster: SimulatedCluster) -> None:
    by_id = {node["NodeID"]: node["Resources"] for node in ray.nodes()}
    assert set(by_id) == {head(), *(node.node_id for node in cluster.nodes)}
    assert "CPU" not in by_id[head()]
    assert [by_id[node.node_id]["CPU"] for node in cluster.nodes] == [1.0, 1.0]
    assert ray.get_runtime_context().get_node_id() == head()
    addresses = {node["NodeManagerAddress"] for node in ray.nodes()}
    assert len(addresses) == 3
    assert all(address.startswith("127.") for address in addresses)


def test_the_coordinator_lives_on_the_head(cluster: SimulatedCluster) -> None:
    ray.get(ray_internals._coordinator().get_reserved_resources.remote("nobody"), timeout=60)
    actor = ray._private.state.actors(ray_internals._coordinator()._actor_id.hex())
    assert actor["Address"]["NodeID"] == head()


def test_a_reservation_is_cancelled_by_its_run_id(cluster: SimulatedCluster) -> None:
    from ray.train.v2._internal.execution.scaling_policy.autoscaling_coordinator_client import (
        TrainAutoscalingCoordinatorClient,
    )

    config = ray.train.ScalingConfig(num_workers=(1, 2), resources_per_worker={"CPU": 1})
    TrainAutoscalingCoordinatorClient("train-dead").send_resource_request(config, 2)
    reserved = ray_internals._coordinator().get_reserved_resources
    assert len(ray.get(reserved.remote("train-dead", recompute=True))) == 2
    ray_internals.cancel_reservation("dead")
    assert ray.get(reserved.remote("train-dead", recompute=True)) == {}


def test_a_run_reserves_under_its_run_id() -> None:
    from ray.train.v2._internal.execution.scaling_policy.scaling_policy import ScalingPolicy

    assert 'f"train-{train_run_context.run_id}"' in inspect.getsource(ScalingPolicy.after_controller_start)


@pytest.mark.parametrize(
    "ours, hooks",
    [
        (
            PlannedResize,
            [
                "_get_num_workers_for_resource_request",
                "_get_reserved_resources",
                "_count_possible_workers",
                "_get_resize_decision",
                "on_controller_start_worker_group",
                "make_decision_for_non_running_worker_group",
                "make_decision_for_running_worker_group",
            ],
        ),
        (BoundedFailures, ["make_decision"]),
        (ElasticTrainer, ["_create_default_callbacks", "_initialize_and_run_controller"]),
    ],
)
def test_policies_override_what_ray_calls(ours: type, hooks: list[str]) -> None:
    (base,) = ours.__bases__
    for hook in hooks:
        theirs, mine = inspect.signature(getattr(base, hook)), inspect.signature(getattr(ours, hook))
        assert [p.kind for p in mine.parameters.values()] == [p.kind for p in theirs.parameters.values()]


def test_the_trainer_hands_both_policies_to_its_controller() -> None:
    from ray.train.v2._internal.execution.controller import TrainController

    fit = inspect.getsource(TorchTrainer.fit)
    assert "scaling_policy=create_scaling_policy" in fit
    assert "failure_policy=create_failure_policy" in fit
    assert inspect.iscoroutinefunction(TrainController.abort)
    callbacks = [type(call).__name__ for call in TorchTrainer(print)._create_default_callbacks()]
    ours = [type(call).__name__ for call in ElasticTrainer(print)._create_default_callbacks()]
    assert ours == [name for name in callbacks if name != "DatasetsCallback"]
    assert len(ours) == len(callbacks) - 1


def test_notes_reach_every_process(cluster: SimulatedCluster) -> None:
    channel = ControlChannel("/some/run")
    assert channel.beat() is None
    beat = Beat(attempt=2, world=3, step=40, time=12.5)

    @ray.remote(num_cpus=1)
    def write() -> bool:
        channel.write_beat(beat)
        return channel.asked_to_hold(2)

    channel.ask_to_hold(2)
    assert ray.get(write.remote())
    assert channel.beat() == beat
    assert not channel.asked_to_hold(3)
    channel.confirm_held(2)
    assert channel.held(2)
    channel.give_up()
    channel.clear(2)
    assert not channel.asked_to_hold(2)
    assert not channel.held(2)
    assert not channel.given_up()
    assert channel.beat() == beat
    channel.clear(1)
    assert channel.beat() is None
    assert ControlChannel("/another/run").beat() is None


def test_failures_are_bounded_by_progress(tmp_path: Path, cluster: SimulatedCluster) -> None:
    from ray.train.v2._internal.execution.failure_handling import FailureDecision

    retry, stop = FailureDecision.RETRY, FailureDecision.RAISE
    channel, lost = (
        ControlChannel(f"{tmp_path}/run"),
        WorkerGroupError("lost", {1: RuntimeError("node died")}),
    )

    def bounded() -> BoundedFailures:
        return BoundedFailures(channel, Location.parse(tmp_path), 2, Fatal, {"CPU": 1})

    policy, committed = bounded(), iter([0, 0, 5, 5, 5])
    policy._checkpoints = lambda: next(committed)  # type: ignore[method-assign]
    assert [policy.make_decision(lost) for _ in range(4)] == [retry] * 4
    assert not channel.given_up()
    assert policy.make_decision(lost) is stop
    assert channel.given_up()

    fatal = Fatal("ConfigError", "no")
    assert find_cause(WorkerGroupError("no", {0: RuntimeError("other"), 1: fatal}), Fatal) is fatal
    assert bounded().make_decision(WorkerGroupError("no", {0: fatal})) is stop


def test_a_user_is_told_the_cause_in_one_line(cluster: SimulatedCluster, tmp_path: Path) -> None:
    run, limits = Run(name="large", tokens=7680), Limits(no_progress=3, resize_seconds=1)
    channel, log = ControlChannel(f"{tmp_path}/told"), LogReader(Location.parse(tmp_path))
    lost = WorkerGroupError("Traceback ...\n  File ...\nOSError: the disk is on fire\n", {})

    def told(error: Exception) -> Exception:
        return _explain(error, run, log, channel, limits)

    assert type(told(lost)) is RunFailed
    assert str(told(lost)) == "run large failed: OSError: the disk is on fire"
    channel.give_up()
    assert type(told(lost)) is NoProgress
    assert "3 restarts in a row committed nothing" in str(told(lost))
    mendable = told(WorkerGroupError("...", {0: Fatal("ConfigError", "a rule, a value")}))
    assert (type(mendable), str(mendable)) == (ConfigError, "a rule, a value")
    diverged = told(WorkerGroupError("...", {1: Fatal("Diverged", "not finite")}))
    assert isinstance(diverged, RunFailed)
    assert diverged.kind == "Diverged"


@pytest.mark.parametrize(
    "device, cluster, resources, backend",
    [
        ("auto", {"CPU": 3.0}, {"CPU": 1}, "gloo"),
        ("auto", {"CPU": 8.0, "GPU": 4.0}, {"GPU": 1}, "cpu:gloo,cuda:nccl"),
        ("cpu", {"CPU": 8.0, "GPU": 4.0}, {"CPU": 1}, "gloo"),
        ("cuda", {"CPU": 8.0, "GPU": 4.0}, {"GPU": 1}, "cpu:gloo,cuda:nccl"),
    ],
)
def test_each_worker_asks_for_a_gpu_where_there_are_some(
    device: str, cluster: dict[str, float], resources: dict[str, float], backend: str
) -> None:
    assert worker_resources(device, cluster) == resources
    assert torch_backend(resources) == backend


def test_the_driver_prints_nothing_of_rays(cluster: SimulatedCluster) -> None:
    from ray._private.ray_logging import global_worker_stdstream_dispatcher

    assert global_worker_stdstream_dispatcher.handlers == []


def test_a_spare_has_imported_all_and_the_next_worker_is_one(cluster: SimulatedCluster) -> None:
    node = cluster.nodes[0]

    @ray.remote(num_cpus=1)
    class Actor:
        def look(self) -> tuple[int, bool, dict[str, str]]:
            return os.getpid(), "froude.train.loop" in sys.modules, own_template()

        def threads(self) -> int:
            import torch

            use_own_cores()  # without it all of the machine's: torch was imported before Ray could say how many
            return torch.get_num_threads()

    environment = ray_internals.run_first(warm)
    environment["env_vars"]["OMP_NUM_THREADS"] = ""  # as for users, who have none; tests set 1

    def start() -> tuple[ray.actor.ActorHandle, int, bool, dict[str, str]]:
        here = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        actor = Actor.options(scheduling_strategy=here, runtime_env=environment).remote()
        return actor, *ray.get(actor.look.remote(), timeout=120)

    def processes() -> set[int]:
        return {child.pid for child in psutil.Process(node.raylet_pid).children(recursive=True)}

    first, _, warmed, template = start()
    assert warmed
    before = processes()
    prestart(node.node_id, template["job"], template["environment"])
    until = time.monotonic() + 60
    while not (spare := processes() - before) and time.monotonic() < until:
        time.sleep(0.1)
    ray.kill(first)
    second, pid, warmed, _ = start()
    assert warmed
    assert pid in spare
    assert ray.get(second.threads.remote(), timeout=60) == 1
    ray.kill(second)


def test_connecting_again_keeps_the_connection(cluster: SimulatedCluster) -> None:
    with connect(cluster.address) as again:
        assert again.address == cluster.address
    assert ray.is_initialized()


def test_knobs_are_in_force_while_the_cluster_lives(cluster: SimulatedCluster) -> None:
    assert os.environ.items() >= {**ray_internals.DRIVER_SETTINGS, **ray_internals.FAST_KNOBS}.items()
    assert os.environ["RAY_AUTH_MODE"] == "disabled"


def test_the_head_tells_which_knobs_it_started_with(cluster: SimulatedCluster) -> None:
    found = in_force()
    assert found.name == "fast"
    assert found.poll == float(ray_internals.FAST_KNOBS["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"])


def test_rays_own_knobs_are_what_we_say_of_them() -> None:
    from ray.train.v2._internal import constants

    names = [name.removeprefix("RAY_") for name in RAY_KNOBS]
    script = f"from ray._raylet import Config\nfor n in {names}: print(getattr(Config, n)())"
    bare = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=bare, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == list(RAY_KNOBS.values())
    assert constants.DEFAULT_HEALTH_CHECK_INTERVAL_S == TRAIN_POLL_SECONDS
    assert constants.DEFAULT_WORKER_HEALTH_CHECK_TIMEOUT_S == TRAIN_HUNG_SECONDS


@pytest.mark.long
def test_another_ray_is_used_by_its_public_behaviour(
    cluster: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_internals.supported.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(ray, "__version__", "3.0.0")
        with pytest.warns(UserWarning, match=r"Ray 3\.0\.0 is not 2\.60"):
            assert not ray_internals.supported()
        for hook in (ray_internals.coordinator_on_head, ray_internals.silence_driver):
            hook()
        ray_internals.cancel_reservation("nobody")
        ray_internals.put_value("key", {"a": 1})
        assert ray_internals.get_value("key") is None
        run = Run(name="plain", model={"width": 32}, slots=2, tokens=768 * 20, workers=(1, 2), eval_windows=8)
        result = train(run, Location.parse(tmp_path), cluster=cluster)
    ray_internals.supported.cache_clear()
    assert result.finished
    assert result.world_sizes == [2]


def test_a_stopped_raylet_accepts_connections_and_does_not_answer(cluster: SimulatedCluster) -> None:
    first, second = cluster.nodes
    assert ray_internals.live_nodes(ask=True) == {head(), first.node_id, second.node_id}
    raylet = psutil.Process(first.raylet_pid)
    raylet.suspend()
    try:
        assert ray_internals.live_nodes() == {head(), first.node_id, second.node_id}
        assert ray_internals.live_nodes(ask=True) == {head(), second.node_id}
    finally:
        raylet.resume()


def test_a_dead_node_is_not_live_although_ray_believes_in_it(cluster: SimulatedCluster) -> None:
    """Last: the cluster is one node smaller afterwards."""
    first, second = cluster.nodes
    assert ray_internals.live_nodes() == {head(), first.node_id, second.node_id}
    cluster.kill_node(second)
    assert ray_internals.live_nodes() == {head(), first.node_id}
    third = cluster.add_node()
    assert third.node_id in ray_internals.live_nodes()
    assert cluster.nodes == [first, third]
