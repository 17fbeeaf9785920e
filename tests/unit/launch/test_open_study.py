"""What a sweep checks before it starts: the study it is to go on with."""

import json

import polars as pl
import pytest
from played_sweep import outcome

from froude.config import ConfigError, Run
from froude.launch.sweep import clear, open_study
from froude.launch.tuning import Queue, Room
from froude.space import Grid, Space, Trial
from froude.store import Location
from froude.sweep import trial_store
from froude.sweep.agenda import Agenda

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


def test_the_study_keeps_what_a_stage_was_laid_out_without(study, monkeypatch):
    def law(rows):
        done = rows.filter(pl.col("status") == "finished")
        lr = done["lr"].max() if done.height else 1e-2
        return [Trial("law", (RUN.replace({"optimizer.lr": lr}, name="law"),))]

    rates = [Trial(f"r{lr}", (RUN.replace({"optimizer.lr": lr}, name=f"r{lr}"),)) for lr in (0.01, 0.02)]
    made = Space("x", 0, (Grid("rates", lambda _: rates, "lr_transfer"), Grid("law", law, "loss_law")), LARGE)

    def sweep(loss, count):
        agenda = begin(study, made)
        queue = Queue(agenda, study, None, lambda: Room({"CPU": 1}, one_machine=False))
        trained = []
        while isinstance(task := queue.suggest("1"), dict):
            trial = Trial.from_json(task["trial"])
            trained.append(trial.name)
            value = loss(trial.runs[0])
            if value > 0:
                rows = outcome(trial, lambda run, value=value: value).rows.to_pylist()
                trial_store.write(study, trial, trials=rows)
            queue.end(trial.name, "OSError: no disk" if value < 0 else None, 1)
        assert len(trained) == count
        return json.loads((study / "study.json").read())["stages"]

    stages = sweep(lambda run: -1.0 if run.name == "r0.02" else 2.0, count=3)
    assert stages["rates"]["names"] == ["r0.01", "r0.02"]
    assert (stages["law"]["names"], stages["law"]["without"]) == (["law"], ["r0.02"])
    assert sweep(lambda run: 2.0, count=1) == stages
    assert begin(study, made).done
    assert trial_store.read(study, "law").trial.runs[0].optimizer.lr == 0.01


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


def test_an_interrupted_clear_leaves_no_trial_without_its_metrics(study, monkeypatch):
    for name in ("evals/a.parquet", "steps/a.parquet", "steps/b.parquet", "trials/a.parquet"):
        (study / name).replace(b"x")
    delete = Location.delete

    def interrupted(file):
        if file.name == "b.parquet":
            raise KeyboardInterrupt
        delete(file)

    monkeypatch.setattr(Location, "delete", interrupted)
    with pytest.raises(KeyboardInterrupt):
        clear(study)
    assert (study / "trials").children() == []


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


def at_once(run, cluster, *, one_machine=False, crowded=False):
    return Room(cluster, one_machine).at_once(Trial("a", (run,)), crowded=crowded)


def test_as_many_trials_run_at_once_as_there_are_processors(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    gpus = {"CPU": 64.0, "GPU": 8.0}
    assert at_once(RUN, {"CPU": 3.0}, one_machine=True) == 2
    assert at_once(RUN, {"CPU": 3.0}, one_machine=True, crowded=True) == 3
    assert at_once(RUN, {"CPU": 64.0}) == 64
    assert at_once(RUN, gpus) == 8
    assert at_once(RUN.replace(device="cpu"), gpus) == 64
    assert at_once(RUN.replace({"compute.threads": 4}), {"CPU": 16.0}) == 4
    assert at_once(RUN, {}) == 1


def started(queue):
    count = 0
    while queue.suggest(str(count)):
        count += 1
    return count


def many(**changes):
    runs = [RUN.replace({**changes, "seed": seed}, name=f"a{seed}") for seed in range(20)]
    return Space(
        "x", 0, (Grid("g", lambda _: [Trial(run.name, (run,)) for run in runs], role="loss_law"),), LARGE
    )


def test_a_concurrency_counts_trials_and_room_counts_what_they_reserve(study):
    def count(made, concurrency, cluster):
        return started(Queue(Agenda(made, {}), study, concurrency, lambda: Room(cluster, False)))

    threads = many(**{"compute.threads": 4})
    assert count(threads, 3, {"CPU": 16.0}) == 3
    assert count(threads, None, {"CPU": 16.0}) == 4
    command = {"trainer": {"command": ["python"], "cpus": 8, "gpus": 8, "params": 1000}}
    assert count(many(**command), 2, {"CPU": 64.0, "GPU": 16.0}) == 2
    alone = {"trainer": {"command": ["python"], "params": 1000}}
    assert count(many(**alone), None, {"CPU": 12.0, "GPU": 1.0}) == 12


def test_nodes_that_come_later_are_used_and_what_is_lost_is_waited_for(study, monkeypatch):
    monkeypatch.setattr("froude.launch.tuning.LOOK_SECONDS", 0.0)
    now = {"CPU": 2.0}
    queue = Queue(Agenda(many(device="auto"), {}), study, None, lambda: Room(dict(now), False))
    assert started(queue) == 2
    now |= {"CPU": 5.0, "GPU": 4.0}  # the sweep has begun on CPUs
    device = queue.suggest("3")["device"]
    assert (device, started(queue)) == ("cpu", 2)
    now["CPU"] = 1.0
    assert started(queue) == 0
    assert queue.room.resources == {"CPU": 5.0}
