"""A trial's files: written whole, read back with their description."""

import pytest
from played_sweep import outcome

from froude import schemas
from froude.checkpoint.run_store import RunStore
from froude.config import ConfigError, Run
from froude.launch.status import status
from froude.launch.sweep import open_study
from froude.space import Grid, Space, Trial
from froude.store import Location
from froude.study import Study
from froude.sweep import trial_store
from froude.train.api import Unsupervised
from froude.train.worker import run_worker

RUN = Run(name="a", tokens=768 * 10, stage="g")
TRIAL = Trial("a", (RUN,), params={"batch": 768})


def rows(trial=TRIAL, loss=2.0):
    return outcome(trial, lambda run: loss).rows.to_pylist()


def test_a_trial_is_read_back_as_it_was_written(tmp_path):
    place = Location.parse(tmp_path)
    step = {"run": "a", "attempt": 1, "step": 1, "tokens": 768, "loss": 5.0}
    trial_store.write(place, TRIAL, trials=rows(), steps=[step])
    stored = trial_store.read(place, "a")
    assert stored.trial == TRIAL
    assert stored.rows.to_pylist() == rows()
    assert stored.rows.schema.equals(schemas.TRIALS)
    assert list(trial_store.read_all(place)) == ["a"]
    study = Study(place)
    assert study.trials().collect()["loss"].to_list() == [2.0]
    assert study.steps().collect()["loss"].to_list() == [5.0]
    assert study.evals().collect().height == 0


def test_metrics_of_a_trial_count_from_its_row_on(tmp_path):
    """A worker that is killed between the files leaves metrics that nobody reads."""
    place = Location.parse(tmp_path)
    step = {"run": "a", "attempt": 1, "step": 1, "tokens": 768, "loss": 5.0}
    trial_store.write(place, TRIAL, trials=rows(), steps=[step], evals=[{"run": "a", "step": 1}])
    (place / "trials" / "a.parquet").delete()
    assert Study(place).steps().collect().height == 0
    assert trial_store.read_all(place) == {}


def test_metrics_that_a_trial_does_not_have_are_not_those_of_one_before_it(tmp_path):
    """A failed trial would show the curve of an attempt that was killed, or of whatever had its name."""
    place = Location.parse(tmp_path)
    step = {"run": "a", "attempt": 1, "step": 1, "tokens": 768, "loss": 5.0}
    trial_store.write(place, TRIAL, trials=rows(), steps=[step], evals=[{"run": "a", "step": 1}])
    trial_store.write_failed(place, TRIAL, error="OSError: no", attempts=3)
    study = Study(place)
    assert study.trials().collect()["status"].to_list() == ["failed"]
    assert study.steps().collect().height == study.evals().collect().height == 0


def test_a_trial_is_in_the_study_last(tmp_path, monkeypatch):
    order = []
    replace = Location.replace

    def watched(self, data):
        order.append(self.parent.name)
        replace(self, data)

    monkeypatch.setattr(Location, "replace", watched)
    trial_store.write(
        Location.parse(tmp_path), TRIAL, trials=rows(), steps=[{"run": "a"}], evals=[{"run": "a"}]
    )
    assert order == ["steps", "evals", "trials"]


def test_a_failed_trial_has_a_row_per_run_and_gives_way_to_a_finished_one(tmp_path):
    place = Location.parse(tmp_path)
    runs = tuple(RUN.replace(name=f"n{n}", tokens=768 * n) for n in (5, 10))
    trial = Trial("b", runs)
    trial_store.write_failed(place, trial, error="OSError: no", attempts=3)
    stored = trial_store.read(place, "b")
    assert stored.failed
    found = stored.rows.to_pylist()
    assert [row["run"] for row in found] == ["n5", "n10"]
    assert {(row["status"], row["error"], row["attempts"], row["loss"]) for row in found} == {
        ("failed", "OSError: no", 3, None)
    }
    trial_store.write(place, trial, trials=rows(trial))
    assert not trial_store.read(place, "b").failed


def test_a_file_that_no_sweep_wrote_is_refused(tmp_path):
    place = Location.parse(tmp_path)
    (place / "trials" / "a.parquet").replace(b"nonsense")
    with pytest.raises(ConfigError, match="must be a Parquet file"):
        trial_store.read(place, "a")
    (place / "trials" / "a.parquet").replace(schemas.to_bytes(schemas.table(schemas.TRIALS, rows())))
    with pytest.raises(ConfigError, match="this version's sweep"):
        trial_store.read(place, "a")


def test_a_status_counts_trials_by_stage(tmp_path):
    place = Location.parse(tmp_path)
    with pytest.raises(ConfigError, match="there is none at"):
        status(place)
    trials = [Trial(name, (RUN.replace(name=name),)) for name in ("a", "b", "c")]
    space = Space("x", 0, (Grid("g", lambda rows: trials, role="loss_law"),), RUN.replace(name="large"))
    open_study(space, place, trust=False, fresh=False)
    trial_store.write(place, trials[0], trials=rows(trials[0]))
    trial_store.write(place, trials[1], trials=rows(trials[1], loss=float("nan")))
    found = status(place)
    assert found.to_dict()["stages"]["g"] == {"planned": 3, "finished": 1, "diverged": 1, "failed": 0}
    assert (found.recipe, found.run, found.step, found.steps, found.finished) == (
        False,
        "large",
        0,
        10,
        False,
    )
    assert "not begun" in found.lines()[-1]
    assert any(line.startswith("diverged  b: ") for line in found.lines())


@pytest.mark.slow
def test_a_status_says_what_the_noise_scale_means_for_the_batch(tmp_path):
    """From the steps that the run's log reaches; here that of a bigram, whose noise is known to be large."""
    run = RUN.replace(
        {
            "name": "large",
            "batch": 128,
            "slots": 2,
            "tokens": 128 * 300,
            "reduction": "exact",
            "noise_every": 1,
            "norms_every": 0,
            "eval_windows": 16,
            "checkpoint_every": 300,
            "parametrization": "sp",
            "model": {"factory": "spiky:Spiky", "width": 16},
            "optimizer.lr": 1e-3,
        }
    )
    place = Location.parse(tmp_path)
    space = Space("x", 0, (Grid("g", lambda rows: [TRIAL], role="loss_law"),), run)
    open_study(
        space, place, trust=True, fresh=False, skip_probe=("forward",)
    )  # on its marks it is not finite
    assert status(place).noise is None
    store = RunStore(place / "runs" / "large", "large")
    run_worker(run, store, Unsupervised(store.open_attempt("recipe")), device="cpu")
    noise = status(place).noise
    assert noise.batch == 128
    assert noise.noise_scale > 0
    assert status(place).lines()[-1].startswith("noise scale ")
    assert "trend signal" in status(place).lines()[-1]
