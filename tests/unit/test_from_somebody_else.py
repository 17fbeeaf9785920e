"""Folders, names and texts that somebody else wrote: nothing outside is deleted, nothing is run, no secret is shown."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from froude import Study
from froude.checkpoint import retention
from froude.config import ConfigError, Run
from froude.corpora.prepare import whole
from froude.external import jobs
from froude.launch.status import BadTrial
from froude.launch.sweep import clear
from froude.promote.counted import counted_alike
from froude.promote.promotion import parameters
from froude.space import Grid, Space, Trial
from froude.starter import project
from froude.starter.data import Corpus
from froude.store import Location
from froude.tracking.session import settings

RUN = Run(name="large", tokens=7680, batch=768)
COMMAND = {"trainer.command": ("python", "train.py"), "trainer.environment": {"HF_TOKEN": "hf_SECRET"}}


def test_fresh_deletes_no_file_that_a_link_leads_to(tmp_path: Path) -> None:
    study, outside = tmp_path / "study", tmp_path / "outside"
    for folder in (study / "external" / "t1", study / "trials", outside / "corpus", outside / "runs"):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    (study / "external" / "t1" / "data").symlink_to(outside / "corpus")
    (study / "runs").symlink_to(outside / "runs")
    clear(Location.parse(study))
    assert list(study.iterdir()) == []
    assert (outside / "corpus" / "file").exists()
    assert (outside / "runs" / "file").exists()


def test_a_checkpoint_that_is_another_runs_by_a_link_is_not_expired(tmp_path: Path) -> None:
    for run in ("own", "copy"):
        (tmp_path / run).mkdir()
    (tmp_path / "own" / "data").mkdir()
    (tmp_path / "copy" / "data").symlink_to(tmp_path / "own" / "data")
    record: Any = SimpleNamespace(parts=[SimpleNamespace(kind="data", path="data/part")])
    for run, stays in (("copy", True), ("own", False)):
        (tmp_path / "own" / "data" / "part").touch()
        retention.delete(Location.parse(tmp_path / run), [record])
        assert (tmp_path / "own" / "data" / "part").exists() is stays


@pytest.mark.parametrize("begun", [False, True])
def test_texts_are_prepared_into_no_folder_with_files_of_others(begun: bool, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "pieces").mkdir(parents=True)
    (folder / "pieces" / ("inputs.json" if begun else "notes.txt")).write_text("{}")
    (folder / "weights.bin").touch()
    with pytest.raises(ConfigError, match="--out must be a new folder"):
        whole._already(Location.parse(folder))
    assert sorted(file.name for file in folder.iterdir()) == ["pieces", "weights.bin"]


@pytest.mark.parametrize(
    "content",
    [b"\xff{}", b"[" * 100_000, b'{"a": ' + b"1" * 5000 + b"}", b'{"stages": []}', b'{"target": "large"}'],
)
def test_a_study_json_that_is_none_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"study\.json must .*restore it"):
        _ = Study(tmp_path).meta


def test_a_line_about_a_trial_moves_no_terminal() -> None:
    line = BadTrial("failed", "bad\x1b]0;owned\x07", "s", "bad\x1b]0;owned\x07", 1, 1, "why\x1b[31m").line()
    assert line.isprintable()
    assert "]0;owned" in line


@pytest.mark.parametrize("name", ["MY-VAR", "X=1; touch INJECTED; Y", ""])
def test_jobs_export_no_name_that_a_shell_would_run(name: str, tmp_path: Path) -> None:
    run = RUN.replace({**COMMAND, "trainer.environment": {name: "x"}})
    space = Space("tiny", 0, (Grid("g", lambda rows: [Trial("large", (run,))], "loss_law"),), run)
    with pytest.raises(ConfigError, match=r"names in `trainer\.environment`"):
        jobs.check(space, Location.parse(tmp_path / "study"), tmp_path / "jobs", fresh=False)


def test_a_tracker_is_told_the_names_of_variables_only() -> None:
    told = settings(RUN.replace(COMMAND))
    assert told["trainer"]["environment"] == {"HF_TOKEN": "***"}
    assert "hf_SECRET" not in json.dumps(told)
    assert settings(RUN) == RUN.to_dict()


def test_an_error_about_a_url_has_no_password() -> None:
    with pytest.raises(ConfigError) as error:
        Location.parse("postgresql://ml:hunter2@db.corp/mlflow")
    assert "hunter2" not in str(error.value)
    assert "db.corp/mlflow" in str(error.value)


def test_a_targets_model_is_counted_by_foreign_code_only_when_trusted() -> None:
    largest = {"trainer": "external", "run": "p", "params": 1, "width": 64, "depth": 2, "head_dim": 16} | {
        "context": 64,
        "vocab": 256,
    }
    fits: Any = SimpleNamespace(
        largest=largest, target=RUN.replace({**COMMAND, "model.factory": "nowhere:GPT"})
    )
    with pytest.raises(ConfigError, match="--trust"):
        counted_alike(fits, parameters)


def test_jobs_with_foreign_code_are_taken_in_only_when_trusted(tmp_path: Path) -> None:
    run = RUN.replace({**COMMAND, "model.factory": "nowhere:GPT"})
    study, place = tmp_path / "study", tmp_path / "jobs"
    (place / "large").mkdir(parents=True)
    study.mkdir()
    (study / "study.json").write_text("{}")
    (place / jobs.ABOUT).write_text(json.dumps({"froude": "jobs", "study": str(study), "name": "study"}))
    described = {"trial": json.loads(Trial("large", (run,)).to_json()), "material": {}}
    (place / "large" / jobs.TRIAL).write_text(json.dumps(described))
    with pytest.raises(ConfigError, match="nowhere:GPT; read that code, then pass --trust"):
        jobs.ingest(place)
    assert jobs.ingest(place, trust=True).waiting == ["large"]


def test_a_projects_path_is_a_string_whatever_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    path = '/data/we"ird\\ö"; import os.txt'
    monkeypatch.setattr(project, "corpus", lambda *_, **__: Corpus("froude.train.data.text:TextFile", path))
    written = dict(project.files("tank", project.Wishes(data=path)))["search_space.py"].decode()
    paths = [
        ast.literal_eval(each.value)
        for each in ast.walk(ast.parse(written))
        if isinstance(each, ast.keyword) and each.arg == "path"
    ]
    assert paths == [path]
