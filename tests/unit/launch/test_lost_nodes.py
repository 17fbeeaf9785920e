"""A trial whose nodes are lost has done nothing wrong: Ray Tune counts that as its failure, and a sweep does not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayActorError, RayTaskError
from ray.tune.experiment import Trial as TuneTrial

from froude.launch import ray_internals
from froude.launch.ray_internals import node_lost
from froude.launch.tuning import LOST_NODES, RETRIES, _Ear


class Played:
    """A trial that Tune starts again as its own rule says, by a count that only its callback may lower."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = {"name": "a", "attempt": 1}
        self.run_metadata, self.max_failures = SimpleNamespace(num_failures=0), RETRIES
        self.error_file = str(folder / "error.txt")
        self.ended: list[tuple[str, str, int]] = []
        queue: Any = SimpleNamespace(shares={"a": 0.0}, end=lambda *told: self.ended.append(told))
        self.ear = _Ear(queue, None)

    def set_config(self, config: dict[str, Any]) -> None:
        self.config = config

    def fail(self, error: BaseException, node: str = "n1", counted: bool = True) -> None:
        trial: Any = self
        self.ear.on_trial_result(0, [], trial, {"progress": 0.5, "node": node})
        self.run_metadata.num_failures += counted
        with Path(self.error_file).open("a") as file:  # as Tune does
            file.write(f"Failure # {self.run_metadata.num_failures} (occurred at noon)\n{error}\n")
        again = TuneTrial.should_recover(trial)
        (self.ear.on_trial_recover if again else self.ear.on_trial_error)(0, [], trial)


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    monkeypatch.setattr(ray_internals, "live_nodes", lambda: {"n2"})
    return Played(tmp_path)


def test_lost_nodes_are_no_failures_of_the_trial(played: Played) -> None:
    for _ in range(LOST_NODES):
        played.fail(ActorDiedError(), node="n1")
    assert (played.ended, played.run_metadata.num_failures) == ([], 0)
    assert played.config["attempt"] == LOST_NODES + 1


def test_a_trial_that_ends_every_node_is_failed_and_says_why(played: Played) -> None:
    attempts = LOST_NODES + RETRIES + 1
    for _ in range(attempts):
        assert played.ended == []
        played.fail(ActorDiedError())
    ((name, error, tried),) = played.ended
    assert (name, tried) == ("a", attempts)
    assert error.endswith(f"(its node was lost in {attempts - 1} of {attempts - 1} attempts before)")


def test_a_process_that_dies_on_a_node_that_lives_is_a_failure(played: Played) -> None:
    for _ in range(RETRIES + 1):
        played.fail(ActorDiedError(), node="n2")
    assert played.ended == [("a", ActorDiedError.BASE_ERROR_MSG, RETRIES + 1)]


def test_what_tune_does_not_count_is_not_given_back(played: Played) -> None:
    for _ in range(RETRIES):
        played.fail(RayActorError(preempted=True), counted=False)
    assert played.run_metadata.num_failures == 0
    for _ in range(RETRIES + 1):
        played.fail(ValueError("a bug"), node="n2")
    assert [error for _, error, _ in played.ended] == ["a bug"]


def test_which_errors_are_the_loss_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_internals, "live_nodes", lambda: {"alive"})
    other = RayActorError(error_msg="The actor died because its node has died. Node Id: 1f")
    assert node_lost("its connection broke", "gone")
    assert not node_lost("its connection broke", "alive")
    assert not node_lost(str(ActorDiedError()), "")  # lost before it said where it was
    assert node_lost(str(other), "alive")  # of several nodes, another one
    assert node_lost(str(RayTaskError("step", f"traceback\n{other}", other)), "alive")
    assert not node_lost(str(RayTaskError("step", "ValueError: a bug", ValueError("a bug"))), "alive")
