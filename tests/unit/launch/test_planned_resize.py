"""When workers are asked to hold, and what becomes of a resize then; the cluster and its channel are dictionaries."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError
from ray.train.v2._internal.execution.failure_handling import FailureDecision
from ray.train.v2._internal.execution.scaling_policy import NoopDecision, ResizeDecision
from ray.train.v2._internal.execution.scaling_policy.elastic import ElasticScalingPolicy
from ray.train.v2.api.exceptions import PreemptionError

from froude.config import Run
from froude.launch import control_channel
from froude.launch.control_channel import Beat, ControlChannel
from froude.launch.hosts.admission import Unfit
from froude.launch.ray_internals import failures, resizing
from froude.launch.ray_internals.failures import LOST_NODES, BoundedFailures
from froude.launch.ray_internals.resizing import HOLD_SECONDS, PlannedResize
from froude.launch.worker import Fatal, RaySupervisor
from froude.store import Location

GROUP = ("a", "b")
WORLD = len(GROUP)


class Spares:
    def __init__(self) -> None:
        self.warm = False

    def refill(self, nodes: set[str]) -> bool:
        return self.warm

    def used(self) -> None:
        """Nothing was."""


class Stage:
    """A policy whose group of attempt 1 has made a step on nodes a and b."""

    def __init__(self, patch: pytest.MonkeyPatch, *, least: int = 1, most: int = 4) -> None:
        kept: dict[str, Any] = {}
        self.now, self.live, self.draining, self.most = 1000.0, {*GROUP}, set[str](), most
        patch.setattr(control_channel, "put_value", kept.__setitem__)
        patch.setattr(control_channel, "get_value", kept.get)
        patch.setattr(resizing.time, "monotonic", lambda: self.now)
        patch.setattr(resizing, "draining_nodes", lambda: self.draining)
        patch.setattr(resizing, "live_nodes", lambda ask=False: self.live)
        patch.setattr(failures, "live_nodes", lambda ask=False: {*self.live})
        self.channel = ControlChannel("run")
        made: Any = object.__new__(PlannedResize)
        made.channel, made.spares, made._asked, made._before, made._looked = (
            self.channel,
            None,
            None,
            0,
            -math.inf,
        )
        made.scaling_config = SimpleNamespace(min_workers=least, elastic_resize_monitor_interval_s=1.0)
        made._maybe_send_resource_request = lambda: None
        made._hosts, made._began, made._crowded = set, None, False
        made._unused = lambda reserved, own: reserved
        made._get_reserved_resources = lambda: dict.fromkeys(self.live)
        made._count_possible_workers = lambda nodes: min(len(nodes.keys() - self.draining), self.most)
        made._get_resize_decision = lambda n: ResizeDecision(num_workers=n, resources_per_worker={})
        self.policy = made
        self.beat(1)

    def beat(self, attempt: int) -> None:
        self.channel.write_beat(Beat(attempt, WORLD, 7, 0.0))

    def look(self, seconds: float = 2.0) -> int | None:
        """What the policy decides so many seconds later: the new size, if any."""
        self.now += seconds
        workers = [SimpleNamespace(metadata=SimpleNamespace(node_id=node)) for node in GROUP]
        group = SimpleNamespace(num_workers=WORLD, workers=workers, start_time=0.0)
        decision = self.policy.make_decision_for_running_worker_group(group, None)
        assert isinstance(decision, ResizeDecision | NoopDecision)
        return decision.num_workers if isinstance(decision, ResizeDecision) else None

    @property
    def asked(self) -> bool:
        return self.channel.asked_to_hold(1)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def test_growth_waits_until_the_workers_hold(stage):
    stage.live.add("c")
    assert stage.look() is None
    assert stage.asked
    assert stage.look() is None
    assert stage.channel.confirm_held(1)
    assert stage.look() == 3


def test_past_the_bound_they_are_released_and_it_is_tried_later(stage):
    stage.live.add("c")
    stage.look()
    assert stage.look(HOLD_SECONDS + 1) is None
    assert not stage.asked
    stage.look()
    assert stage.asked


def test_a_reason_that_is_gone_by_then_releases_them(stage):
    stage.live.add("c")
    stage.look()
    stage.live.remove("c")
    stage.channel.confirm_held(1)
    assert stage.look() is None
    assert not stage.asked


def test_an_answer_to_an_earlier_request_counts_no_more(stage):
    """Workers whose save took too long say that they hold, and go on: the next resize must wait for them anew."""
    supervisor = RaySupervisor(
        attempt=1, run=Run(name="run", tokens=768 * 100), channel=stage.channel, rank=0, world=WORLD
    )
    stage.live.add("c")
    stage.look()
    stage.channel.confirm_held(1)  # too late by one look
    stage.policy._asked = None
    stage.channel.release()
    supervisor.hold()  # returns at once: nobody waits any longer
    stage.look()
    assert stage.asked
    assert stage.look() is None
    stage.channel.confirm_held(1)
    assert stage.look() == 3


def test_a_lost_node_is_no_reason_to_hold(stage):
    """Its worker can't commit; the failure will be seen."""
    stage.live.remove("b")
    assert stage.look() is None
    assert not stage.asked


def test_a_node_with_notice_is_left(stage):
    stage.draining = {"b"}
    stage.look()
    assert stage.asked
    stage.channel.confirm_held(1)
    assert stage.look() == 1


def test_a_node_with_notice_is_left_though_as_many_others_are_there(stage):
    stage.live.add("c")
    stage.draining = {"b"}
    stage.look()
    stage.channel.confirm_held(1)
    assert stage.look() == WORLD


def test_another_node_with_notice_is_nothing_to_the_group(monkeypatch):
    stage = Stage(monkeypatch, most=WORLD)
    stage.live.add("c")
    stage.draining = {"c"}
    stage.look()
    assert not stage.asked


def test_too_few_to_go_on_are_not_asked_until_a_node_comes(monkeypatch):
    stage = Stage(monkeypatch, least=WORLD, most=WORLD)
    stage.draining = {"b"}
    stage.look()
    assert not stage.asked
    stage.live.add("c")
    stage.look()
    assert stage.asked
    stage.channel.confirm_held(1)
    assert stage.look() == WORLD


def test_growth_waits_for_spares_and_a_notice_does_not(stage):
    stage.policy.spares = Spares()
    stage.live.add("c")
    stage.look()
    assert not stage.asked
    stage.draining = {"a"}
    stage.look(0.1)
    assert stage.asked


def test_the_beat_of_the_attempt_before_is_not_the_groups(stage):
    stage.policy.on_controller_start_worker_group(scaling_config=None, num_workers=WORLD)
    stage.live.add("c")
    stage.look()
    assert not stage.asked
    stage.beat(2)
    stage.look()
    assert stage.channel.asked_to_hold(2)


@pytest.mark.parametrize(("left", "head"), [(1, 0), (3, 0), (3, 1), (2, 2), (2, 5)])
@pytest.mark.parametrize("reason", ["growth", "notice"])
def test_whatever_beat_an_earlier_driver_left_the_first_group_grows_and_heeds_a_notice(
    stage, left, head, reason
):
    """The log may have begun anew under its URL: then its attempts count from 1, and the beat is of the old one's."""
    stage.beat(left)
    stage.channel.clear(head)
    stage.policy.on_controller_start_worker_group(scaling_config=None, num_workers=WORLD)
    stage.beat(head + 1)
    if reason == "growth":
        stage.live.add("c")
    else:
        stage.draining = {"a"}
    stage.look()
    assert stage.channel.asked_to_hold(head + 1)


def test_a_host_that_was_left_out_is_no_reason_to_hold(stage, monkeypatch):
    """Its node counts neither as growth, nor as a place for a worker or a spare."""
    monkeypatch.setattr(ElasticScalingPolicy, "_count_possible_workers", lambda _, nodes: len(nodes))
    del stage.policy._count_possible_workers
    stage.policy._starts = False
    stage.live.add("c")
    stage.channel.leave_out({"c": "its keys are refused"})
    stage.look()
    assert not stage.asked
    (nodes,) = stage.policy.on_controller_start_worker_group(scaling_config=None, num_workers=WORLD).values()
    assert nodes == "in(a,b)"
    stage.live.add("d")
    stage.beat(2)
    stage.look()
    assert stage.channel.asked_to_hold(2)


def test_an_unfit_host_is_left_out_and_the_run_goes_on_while_there_is_another(monkeypatch):
    stage = Stage(monkeypatch)
    nodes = [{"NodeID": node, "Resources": {"CPU": 1.0}} for node in GROUP]
    monkeypatch.setattr(resizing.ray, "nodes", lambda: [*nodes, {"NodeID": "head", "Resources": {}}])
    stage.live.add("head")
    place = Location.parse("/nowhere")
    policy = BoundedFailures(stage.channel, place, 1, Fatal, {"CPU": 1})

    def failed(**hosts: str) -> FailureDecision:
        return policy.make_decision(WorkerGroupError("unfit", {0: Unfit(hosts), 1: Unfit(hosts)}))

    assert failed(a="host 1: its torch is another") is FailureDecision.RETRY
    assert stage.channel.left_out() == {"a": "host 1: its torch is another"}
    assert failed(b="host 2: its keys are refused") is FailureDecision.RAISE
    assert not stage.channel.given_up()
    stage.channel.clear(1)
    assert stage.channel.left_out() == {}


@pytest.mark.parametrize(
    "failure",
    [
        WorkerGroupError("a node died", {0: RuntimeError("lost")}),
        PreemptionError(SimpleNamespace(preempted_ranks=[0])),
        ControllerError(WorkerGroupStartupFailedError("a worker failed at its start")),
    ],
    ids=["worker", "preemption", "start"],
)
def test_no_number_of_failures_ends_a_run_that_goes_on(monkeypatch, failure):
    """Each comes after another checkpoint; three more that do not end it."""
    stage, committed = Stage(monkeypatch), iter([*range(1, 301), 300, 300, 300])
    policy = BoundedFailures(stage.channel, Location.parse("/nowhere"), 3, Fatal, {"CPU": 1})
    monkeypatch.setattr(policy, "_checkpoints", lambda: next(committed))
    assert {policy.make_decision(failure) for _ in range(302)} == {FailureDecision.RETRY}
    assert not stage.channel.given_up()
    assert policy.make_decision(failure) is FailureDecision.RAISE
    assert stage.channel.given_up()


@pytest.mark.parametrize(("used", "workers"), [({}, 4), ({"c": 1.0}, 3), ({"c": 0.5, "d": 1.0}, 2)])
def test_what_others_hold_is_no_place_to_grow_into(stage, monkeypatch, used, workers):
    """Two workers are on nodes a and b, with nothing free beside them; c and d are two more of one processor."""
    free = {node: {"CPU": 1.0 - used.get(node, 0.0)} for node in "cd"} | {node: {} for node in GROUP}
    monkeypatch.setattr(resizing, "available_resources_per_node", lambda: free)
    del stage.policy._unused
    del stage.policy._count_possible_workers
    stage.policy._starts = False
    stage.policy._get_reserved_resources = lambda: {node: {"CPU": 1.0} for node in "abcd"}
    stage.policy.scaling_config = SimpleNamespace(
        min_workers=1,
        max_workers=4,
        use_tpu=False,
        elastic_resize_monitor_interval_s=1.0,
        _resources_per_worker_not_none={"CPU": 1.0},
    )
    stage.live |= {"c", "d"}
    stage.look()
    assert stage.asked == (workers > WORLD)
    if stage.asked:
        stage.channel.confirm_held(1)
        assert stage.look() == workers


def test_a_group_without_room_for_all_is_begun_again_with_those_that_have_it(stage, monkeypatch):
    """At first by what is reserved: what has just ended seems to be in use for a while."""
    monkeypatch.setattr(resizing, "available_resources_per_node", lambda: {"a": {"CPU": 1.0}})
    monkeypatch.setattr(resizing, "start_timeout", lambda: 60.0)
    counted = []
    monkeypatch.setattr(
        ElasticScalingPolicy,
        "make_decision_for_non_running_worker_group",
        lambda self: counted.append(self._count_possible_workers({node: {"CPU": 1.0} for node in "ab"})),
    )
    del stage.policy._unused
    del stage.policy._count_possible_workers
    stage.policy.scaling_config = SimpleNamespace(
        max_workers=4, use_tpu=False, _resources_per_worker_not_none={"CPU": 1.0}
    )
    for seconds in (5.0, 60.0, 5.0):
        stage.policy.on_controller_start_worker_group(scaling_config=None, num_workers=WORLD)
        stage.now += seconds
        stage.policy.make_decision_for_non_running_worker_group()
    assert counted == [2, 1, 1]


def test_nodes_that_are_lost_one_after_another_do_not_end_a_run_soon(monkeypatch):
    """Nothing is committed meanwhile; other failures count as before, whatever was lost between them."""
    stage, failure = Stage(monkeypatch), WorkerGroupError("a peer closed the connection", {0: OSError()})
    policy = BoundedFailures(stage.channel, Location.parse("/nowhere"), 3, Fatal, {"CPU": 1})
    monkeypatch.setattr(policy, "_checkpoints", lambda: 7)
    assert policy.make_decision(failure) is FailureDecision.RETRY  # what was there before is not known
    for number in range(LOST_NODES):
        stage.live = {*GROUP, f"spot-{number}"}
        assert policy.make_decision(failure) is FailureDecision.RETRY
    assert policy.make_decision(failure) is FailureDecision.RETRY
    assert not stage.channel.given_up()
    assert policy.make_decision(failure) is FailureDecision.RAISE
    assert stage.channel.given_up()
