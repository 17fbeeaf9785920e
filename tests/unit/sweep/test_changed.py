"""A study never takes runs of another corpus or of other code for its own; what 0.1 did not record is said."""

import shutil
import sys
from pathlib import Path

import pytest
from played_sweep import outcome

from froude.checkpoint.commit import CommitLog
from froude.config import ConfigError, Run
from froude.launch.sweep import open_study
from froude.launch.tuning import Queue, Room
from froude.material import Material
from froude.runlog import LogReader
from froude.space import Grid, Space, Trial, load_space
from froude.store import Location
from froude.study import Study
from froude.sweep import trial_store
from froude.train.api import material_of

DATA = Path(__file__).parents[2] / "data"
SOURCE = """
import hashlib
from pathlib import Path

import numpy as np


class Tokens:
    def __init__(self, run, split):
        data = Path(run.data.path).read_bytes()
        self.sha256, self.length = hashlib.sha256(data).hexdigest(), 50

    def read(self, first, n):
        return np.zeros((n, 65), dtype=np.int64)
"""
MODEL = """
import my_layers
from froude.train.model import Transformer


def factory(run):
    return Transformer(run)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with a corpus, a model and a source of one's own, on the path."""
    folder = tmp_path / "code"
    folder.mkdir()
    for name, text in {"my_source": SOURCE, "my_model": MODEL, "my_layers": "SCALE = 1\n"}.items():
        (folder / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    (folder / "corpus.bin").write_bytes(b"one corpus")
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.fixture
def study(tmp_path):
    return Location.parse(tmp_path / "study")


def made(corpus, names=("a", "b"), factory="my_model:factory"):
    common = {"model": {"factory": factory}, "data": {"source": "my_source:Tokens", "path": str(corpus)}}
    runs = [Run(name=name, tokens=768 * 10, **common) for name in names]
    trials = [Trial(run.name, (run,)) for run in runs]
    return Space("x", 0, (Grid("g", lambda rows: trials, role="loss_law"),), runs[0])


def swept(space, study):
    """The space's trials as a sweep would leave them."""
    open_study(space, study, trust=True, fresh=False)
    for trial in (trial for trials in space.planned().values() for trial in trials):
        rows = outcome(trial, lambda run: 2.0).rows.to_pylist()
        steps = [{"run": trial.name, "attempt": 1, "step": 1, "tokens": 768, "loss": 5.0}]
        trial_store.write(study, trial, trials=rows, steps=steps, material=material_of(trial.runs[-1]))
    assert open_study(space, study, trust=True, fresh=False).done


def again(space, study, **more):
    return open_study(space, study, trust=True, fresh=False, **more)


@pytest.mark.slow
def test_another_corpus_is_refused_by_name(mine, study):
    swept(made(mine / "corpus.bin"), study)
    (mine / "corpus.bin").write_bytes(b"another corpus")
    with pytest.raises(
        ConfigError, match=r"since 'a' and 1 more the corpus is .* instead of .*--rerun-changed"
    ):
        again(made(mine / "corpus.bin"), study)
    with pytest.raises(ConfigError, match="the corpus is"):  # under other names, too
        again(made(mine / "corpus.bin", ("c",)), study)


def test_moving_the_corpus_changes_nothing(mine, study, tmp_path):
    swept(made(mine / "corpus.bin"), study)
    (mine / "corpus.bin").rename(tmp_path / "elsewhere.bin")
    assert again(made(tmp_path / "elsewhere.bin"), study).done


def test_a_relative_path_is_recorded_absolute(mine, monkeypatch):
    monkeypatch.chdir(mine)
    assert made("corpus.bin").target.data.path == str(mine / "corpus.bin")
    assert made("s3://bucket/corpus").target.data.path == "s3://bucket/corpus"


@pytest.mark.parametrize("module", ["my_model", "my_layers", "my_source"])
def test_edited_code_is_refused_by_module(mine, study, module):
    swept(made(mine / "corpus.bin"), study)
    file = mine / f"{module}.py"
    file.write_text(file.read_text() + "\nEDITED = True\n")
    with pytest.raises(ConfigError, match=rf"module {module} is .* instead of"):
        again(made(mine / "corpus.bin"), study)


def test_what_changed_is_retired_and_trained_again(mine, study):
    swept(made(mine / "corpus.bin"), study)
    old = Study(study).trials().collect()
    (mine / "corpus.bin").write_bytes(b"another corpus")
    agenda = again(made(mine / "corpus.bin"), study, rerun_changed=True)
    assert [trial.name for _, trial in agenda.left()] == ["a", "b"]
    assert Study(study).trials().collect().height == 0
    assert Study(study).steps().collect().height == 0
    retired = Study(study / "retired" / agenda.retired)
    assert retired.trials().sort("run").collect().equals(old.sort("run"))
    assert retired.steps().collect().height == 2
    assert not again(made(mine / "corpus.bin"), study).done  # and from now on without the option


def test_other_settings_are_named_and_may_be_trained_again_too(mine, study):
    space = made(mine / "corpus.bin")
    swept(space, study)
    runs = [run.replace({"optimizer.beta2": 0.99}) for run in (t.runs[0] for t in space.planned()["g"])]
    other = Space(
        "x", 0, (Grid("g", lambda rows: [Trial(r.name, (r,)) for r in runs], role="loss_law"),), runs[0]
    )
    with pytest.raises(ConfigError, match=r"other settings \(optimizer.beta2 0.95 instead of 0.99\)"):
        again(other, study)
    agenda = again(other, study, rerun_changed=True)
    assert set(agenda.changed) == {"a", "b"}
    assert not agenda.done


@pytest.mark.parametrize("mended", ["code", "settings", "one worker", "nothing"])
def test_a_failed_trial_of_several_workers_begins_anew_where_it_was_mended(mine, study, mended):
    base = made(mine / "corpus.bin").target.to_dict()

    def wide(**settings):
        run = Run.from_dict({**base, "name": "wide", "workers": 2, "slots": 2, **settings})
        grid = Grid("g", lambda rows: [Trial("wide", (run,))], role="loss_law")
        return Space("x", 0, (grid,), run.replace(name="large"))

    (trial,) = wide().planned()["g"]
    log, about = LogReader(study / "runs" / "wide"), {"material": material_of(trial.runs[0]).to_dict()}
    CommitLog(log.location).open_attempt("wide", trial.runs[0].fingerprint, 2, about)
    trial_store.write_failed(study, trial, error="a bug", attempts=3)
    before = log.head()
    if mended == "code":
        (mine / "my_layers.py").write_text("SCALE = 2\n")
    settings = {"settings": {"slots": 4}, "one worker": {"workers": 1}}.get(mended, {})
    agenda = again(wide(**settings), study)
    assert Queue(agenda, study, None, lambda: Room({"CPU": 2}, False)).suggest("1")["name"] == "wide"
    if mended == "nothing":
        assert LogReader(log.location).head() == before
        return
    assert log.location.walk() == []
    assert LogReader(study / "retired" / agenda.retired / "runs" / "wide").head() == before


def test_other_versions_are_noted_and_nothing_more(mine, study):
    space = made(mine / "corpus.bin")
    swept(space, study)
    for trial in space.planned()["g"]:
        now = material_of(trial.runs[0])
        old = Material(now.corpus, now.modules, {**now.versions, "torch": "2.0.1"})
        trial_store.write(
            study, trial, trials=trial_store.read(study, trial.name).rows.to_pylist(), material=old
        )
    agenda = again(space, study)
    assert agenda.done
    assert agenda.notes[0].startswith("a and 1 more trials are trained with torch 2.0.1 (now 2.")


def test_a_source_without_a_hash_is_refused(mine, study):
    (mine / "my_source.py").write_text(SOURCE.replace(".hexdigest()", ".hexdigest()[:8]"))
    with pytest.raises(ConfigError, match="`sha256`, 64 hex digits"):
        again(made(mine / "corpus.bin"), study)


def test_a_study_of_0_1_goes_on_and_what_it_did_not_record_is_said(tmp_path):
    shutil.copytree(DATA / "study_0_1", tmp_path / "old")
    study, space = Location.parse(tmp_path / "old"), load_space(DATA / "space_0_1.py")
    agenda = again(space, study)
    assert agenda.done
    assert agenda.notes == (
        "trial theirs is from froude 0.1, which recorded neither content nor code of foreign_model:factory, "
        "foreign_model:Counting: taken as unchanged",
    )
    rows = Study(study).trials().collect()
    assert rows["material"].null_count() == rows.height == 2
    assert rows["loss"].null_count() == 0
