"""An error that a user can correct ends a trial at its first attempt; a host without the study ends the sweep."""

from types import SimpleNamespace

import pytest

from froude.config import ConfigError, Run
from froude.launch.trainable import Proxy, Task
from froude.launch.tuning import Queue, Room, _Ear
from froude.space import Trial
from froude.store import Location

RUN = Run(
    name="a",
    model={"factory": "foreign_model:factory", "width": 32},
    data={"source": "unsound:Beyond"},
    tokens=768,
    eval_windows=500,
)


class Heard:
    """Stands where the queue does, and keeps what it is told."""

    def __init__(self):
        self.ends = []

    def end(self, *told):
        self.ends.append(told)


def ended(task):
    """The last result of the task's proxy; what that raised, Tune would try again."""
    proxy = Proxy(config=task.config())
    try:
        result = {"done": False}
        while not result["done"]:
            result = proxy.step()
    finally:
        proxy.cleanup()
    return result


def test_a_config_error_in_a_trial_s_process_is_an_end_with_its_text_and_no_reason_to_try_again(tmp_path):
    study = Location.parse(tmp_path / "study")
    (study / "study.json").replace(b"{}")
    task = Task("a", Trial("a", (RUN,)).to_json(), study.url, "cpu")
    result = ended(task)
    assert result["refused"].startswith("ConfigError: token ids must be from 0 to 255")
    assert not (tmp_path / "study" / "trials").exists()

    queue = Heard()
    _Ear(queue, None).on_trial_complete(0, [], SimpleNamespace(config=task.config(), last_result=result))
    assert queue.ends == [("a", result["refused"], 1)]


def test_a_host_that_does_not_see_the_study_trains_nothing_and_the_sweep_ends_with_its_name(tmp_path):
    study = Location.parse(tmp_path / "study")
    task = Task("a", Trial("a", (Run(name="a", tokens=768),)).to_json(), study.url, "cpu")
    result = ended(task)
    assert not study.path.exists()
    queue = Queue(None, study, None, lambda: Room({"CPU": 1.0}, one_machine=False))
    _Ear(queue, None).on_trial_complete(0, [], SimpleNamespace(config=task.config(), last_result=result))
    with pytest.raises(ConfigError, match=f"this host does not see {study}; mount it there"):
        queue.suggest("next")
