"""An error that a user can correct ends a trial at its first attempt."""

from types import SimpleNamespace

from froude.config import Run
from froude.launch.trainable import Proxy, Task
from froude.launch.tuning import _Ear
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


def test_a_config_error_in_a_trial_s_process_is_an_end_with_its_text_and_no_reason_to_try_again(tmp_path):
    task = Task("a", Trial("a", (RUN,)).to_json(), Location.parse(tmp_path / "study").url, "cpu")
    proxy = Proxy(config=task.config())
    try:
        result = {"done": False}
        while not result["done"]:
            result = proxy.step()  # what it raised, Tune would try again
    finally:
        proxy.cleanup()
    assert result["refused"].startswith("ConfigError: token ids must be from 0 to 255")
    assert not (tmp_path / "study" / "trials").exists()

    queue = Heard()
    ended = SimpleNamespace(config=task.config(), last_result=result)
    _Ear(queue, None).on_trial_complete(0, [], ended)
    assert queue.ends == [("a", result["refused"], 1)]
