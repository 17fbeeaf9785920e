"""A command's words, its files, and what makes it another run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from froude.config import Run
from froude.material import commands
from froude.section import ConfigError
from froude.train.api import check_trust
from froude.train.size import size_of


def run(*command: str, **more) -> Run:
    return Run(tokens=768, name="r", trainer={"command": command, **more})


def test_names_in_braces_are_filled_in_and_files_found(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    made = run(
        "{python}", "train.py", "--width={model.width}", "{run}", "{steps}", '{"a": 1}', "--f", "absent"
    )
    assert commands.filled(made, {"run": "/x/run.json"}, [str(tmp_path)]) == [
        sys.executable, str(tmp_path / "train.py"), "--width=64", "/x/run.json", "1", '{"a": 1}', "--f", "absent",
    ]  # fmt: skip
    commands.check(made)
    with pytest.raises(ConfigError, match=r"\{model.widht\} \(did you mean 'model.width'\?\)"):
        commands.check(run("{python}", "{model.widht}"))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (run("no-such-program"), "there is no 'no-such-program'"),
        (run("{python}", "absent.py"), "absent.py does not"),
        (run("{python}", files=["absent"]), "`trainer.files` must exist, but absent"),
    ],
)
def test_what_cannot_be_started_is_told_before_anything_is(made, words):
    with pytest.raises(ConfigError, match=words):
        commands.check(made)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trainer": {"gpus": 1}}, "`trainer.gpus` needs a `trainer.command`"),
        ({"trainer": {"command": "python train.py"}}, "lists of words"),
        ({"trainer": {"command": ["python"], "time_limit": -1}}, "time_limit"),
        ({"trainer": {"command": ["python"]}, "workers": 2, "slots": 2}, "`workers` must be 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        Run(tokens=768, **changes)


def test_a_command_needs_trust_and_a_size():
    with pytest.raises(ConfigError, match=r"python train.py; read what it runs, then pass --trust"):
        check_trust(run("python", "train.py"), False)
    with pytest.raises(ConfigError, match=r"set `trainer.params`"):
        size_of(run("python"))
    assert size_of(run("python", params=50)).flops_per_token == 300


def test_code_is_the_material_and_resources_are_not_another_run(tmp_path: Path):
    for folder, text in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / folder / "lib").mkdir(parents=True)
        (tmp_path / folder / "train.py").write_text(text)
        (tmp_path / folder / "lib" / "model.py").write_text(text)
    made = {name: run("python", str(tmp_path / name / "train.py")) for name in "abc"}
    digests = {name: commands.material(each).digest for name, each in made.items()}
    assert digests["a"] == digests["b"] != digests["c"]
    assert len({each.fingerprint for each in made.values()}) == 1
    assert (
        made["a"].replace({"trainer.gpus": 8, "trainer.time_limit": 60.0}).fingerprint
        == made["a"].fingerprint
    )
    assert made["a"].replace({"trainer.command": ["python"]}).fingerprint != made["a"].fingerprint
    # Data in another folder are other data, and nothing but their path says so.
    one, two = (run("/a/python", "/b/t.py", "--data", f"/data/{version}/tokens") for version in ("v1", "v2"))
    assert one.fingerprint == two.fingerprint
    assert one.trainer.differences(one.trainer) == []
    assert two.trainer.differences(one.trainer) == [
        "trainer.command /data/v2/tokens instead of /data/v1/tokens"
    ]
    assert made["a"].trainer.differences(made["b"].trainer) == []
    named = made["a"].replace({"trainer.files": ["lib"]})
    assert list(commands.material(named, [str(tmp_path / "a")]).modules) == ["lib/model.py"]
    assert Run.from_toml(named.to_toml()) == named


def test_files_of_one_name_are_told_apart_or_refused(tmp_path: Path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.py").write_text(folder)
    both = [str(tmp_path / folder / "model.py") for folder in "ab"]
    with pytest.raises(ConfigError, match=r"must differ in their names, but .*a/model.py and .*b/model.py"):
        commands.material(run("python", files=both))
    below = commands.material(run("python", files=["a/model.py", "b"]), [str(tmp_path)])
    assert sorted(below.modules) == ["a/model.py", "b/model.py"]
    assert commands.material(run("python", files=[both[0], both[0]])).modules.keys() == {"model.py"}


def test_a_run_without_a_command_is_what_it_was():
    assert "trainer" not in Run(tokens=768).to_dict()
    assert os.sep not in commands.model(run("python", "/where/ever/train.py"))
