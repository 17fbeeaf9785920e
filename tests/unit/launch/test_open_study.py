"""What a sweep checks before it starts: the study it is to go on with."""

import json

import pytest
from played_sweep import outcome

from froude.config import ConfigError, Run
from froude.launch.sweep import capacity, clear, open_study
from froude.space import Grid, Space, Trial
from froude.store import Location
from froude.sweep import trial_store

RUN = Run(name="a", tokens=768 * 10)
LARGE = RUN.replace(name="large")


def space(seed=0, run=RUN, target=LARGE):
    return Space("x", seed, (Grid("g", lambda rows: [Trial("a", (run,))], role="loss_law"),), target)


@pytest.fixture
def study(tmp_path):
    return Location.parse(tmp_path / "study")


def begin(study, made=None):
    return open_study(made or space(), study, trust=False, fresh=False)


def test_a_study_says_what_it_is(study):
    begin(study)
    meta = json.loads((study / "study.json").read())
    assert (meta["froude"], meta["schema"], meta["seed"], meta["space"]) == ("study", 1, 0, "x")
    assert meta["stages"]["g"]["role"] == "loss_law"
    assert Run.from_dict(meta["target"]) == LARGE


def test_a_study_that_may_yet_be_refused_is_not_written(study):
    assert not open_study(space(), study, trust=False, fresh=False, begin=False).done
    assert not study.path.exists()
    begin(study)
    before = (study / "study.json").read()
    other = space(run=RUN.replace(name="b"))
    assert not open_study(other, study, trust=False, fresh=False, begin=False).done
    assert (study / "study.json").read() == before


def test_a_study_that_is_opened_again_is_not_written_again(study):
    begin(study)
    before = (study / "study.json").path.stat().st_mtime_ns
    begin(study)
    assert (study / "study.json").path.stat().st_mtime_ns == before


def test_another_space_adds_its_stages_and_each_replaces_its_own(study):
    def of(name, *stages):
        grids = (
            Grid(stage, lambda rows, s=stage: [Trial(s, (RUN.replace(name=s),))], role="loss_law")
            for stage in stages
        )
        return Space(name, 0, tuple(grids), RUN)

    def stages():
        return list(json.loads((study / "study.json").read())["stages"])

    begin(study, of("first", "a", "b"))
    for _ in range(2):  # a command may open it more than once
        begin(study, of("second", "c"))
        assert stages() == ["a", "b", "c"]
    begin(study, of("first", "a", "d"))
    assert stages() == ["a", "c", "d"]


def test_another_target_is_taken_and_another_seed_refused(study):
    begin(study)
    begin(study, space(target=RUN.replace(name="large", tokens=768 * 20)))
    assert json.loads((study / "study.json").read())["target"]["tokens"] == 768 * 20
    with pytest.raises(ConfigError, match=r"has schema 1 and seed 0, not 1 and 3.*--fresh"):
        begin(study, space(seed=3))


def test_a_trial_of_another_configuration_is_refused_and_fresh_starts_over(study):
    begin(study)
    trial_store.write(
        study, Trial("a", (RUN,)), trials=outcome(Trial("a", (RUN,)), lambda run: 2.0).rows.to_pylist()
    )
    assert begin(study).done
    other = space(run=RUN.replace({"optimizer.beta2": 0.99}))
    with pytest.raises(ConfigError, match="'a' with other settings"):
        begin(study, other)
    (study / "logs" / "ray.log").replace(b"kept")
    assert not open_study(other, study, trust=False, fresh=True).done
    assert (study / "trials").children() == []
    assert (study / "logs" / "ray.log").exists()


def test_clear_takes_nothing_that_is_not_a_result(study):
    for name in (
        "trials/a.parquet",
        "runs/r/commits/00000000.parquet",
        "summary.json",
        "notes.txt",
        "logs/x",
    ):
        (study / name).replace(b"x")
    clear(study)
    assert [file.url.removeprefix(study.url + "/") for file in study.walk()] == ["logs/x", "notes.txt"]


@pytest.mark.parametrize(
    "make, rule",
    [
        (lambda study: (study / "notes.txt").replace(b"mine"), "hold only its own files"),
        (lambda study: (study / "study.json").replace(b"["), "must be JSON"),
        (lambda study: (study / "trials" / "a.parquet").replace(b"x"), "must be a Parquet file"),
    ],
)
def test_a_folder_that_is_no_study_is_refused(study, make, rule):
    make(study)
    with pytest.raises(ConfigError, match=rule):
        begin(study)


def test_foreign_code_needs_trust_and_nothing_is_written_without(study):
    foreign = RUN.replace({"model.factory": "somebody.elses:Model"})
    with pytest.raises(ConfigError, match=r"somebody.elses:Model.*--trust"):
        begin(study, space(run=foreign))
    with pytest.raises(ConfigError, match="--trust"):
        begin(study, space(target=foreign.replace(name="large")))
    assert not study.exists()


def test_an_unwritable_place_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="store"):
        begin(Location.parse(tmp_path / "file" / "study"))


def test_as_many_trials_run_at_once_as_there_are_processors(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    trials, on_cpu = [Trial("a", (RUN,))], [Trial("a", (RUN.replace(device="cpu"),))]
    assert capacity({"CPU": 3.0}, trials, one_machine=True) == 2
    assert capacity({"CPU": 64.0}, trials, one_machine=False) == 64
    assert capacity({"CPU": 64.0, "GPU": 8.0}, trials, one_machine=False) == 8
    assert capacity({"CPU": 64.0, "GPU": 8.0}, on_cpu, one_machine=False) == 64
    assert capacity({}, trials, one_machine=False) == 1
