"""Bad input at the command line: exit code 2, a line or two, and nothing started or left behind."""

from __future__ import annotations

import builtins
import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from froude.checkpoint.run_store import RunStore
from froude.cli import main
from froude.config import ConfigError, Run
from froude.launch import cluster, readiness
from froude.promote.imported_runs.history import make_study
from froude.store import Location
from froude.sweep import preflight

VERBS = ("fit", "status", "report", "promote")
SPACE = """
from froude.config import Run
from froude.space import Grid, Space, Trial

def space(seed=0):
    run = Run.from_dict({"name": "a", "tokens": 7680, "model": {"width": 32}, "seed": seed, SETTING})
    trials = [Trial("a", (run,))]
    return Space("bad", seed, (Grid("law", lambda rows: trials, role="loss_law"),), run.replace(name="large"))
"""


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("a cluster was started")

    monkeypatch.setattr(cluster, "simulated", started)
    monkeypatch.setattr(cluster, "connect", started)


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What stderr says of a command that must end with exit code 2."""
    code = main(arguments)
    captured = capsys.readouterr()
    assert code == 2, captured.err
    assert captured.out == ""
    assert 1 <= len(captured.err.splitlines()) <= 2
    assert "Traceback" not in captured.err
    return captured.err


def sweep(tmp_path: Path, setting: str) -> list[str]:
    file = tmp_path / "mine.py"
    file.write_text(SPACE.replace("SETTING", setting))
    return ["sweep", str(file), "--out", str(tmp_path / "study"), "--simulate", "2"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('"data": {"source": "froude.train.data.text:TextFile", "path": "missing.txt"}', "missing.txt"),
        ('"data": {"source": "froude.train.data.text:TextFile", "path": "empty.txt"}', "empty.txt"),
        ('"optimiser": {"lr": 0.1}', "optimizer"),
        ('"optimizer": {"beta2": 1.0}', "beta2"),
        ('"batch": 100', "batch"),
        ('"batch": 128, "slots": 3', "slots"),
        ('"schedule": {"warmup_tokens": 76800}', "warmup"),
        ('"workers": 0', "workers"),
    ],
)
def test_a_run_that_cannot_be_is_refused(
    setting: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    assert words in refused(sweep(tmp_path, setting), capsys)
    assert not (tmp_path / "study").exists()


def test_a_space_without_space_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text("spaces = 1\n")
    assert "space()" in refused(
        ["sweep", str(tmp_path / "mine.py"), "--out", str(tmp_path / "study")], capsys
    )
    assert not (tmp_path / "study").exists()


def test_a_store_that_cannot_be_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    command = ["sweep", str(tmp_path / "mine.py")]
    (tmp_path / "mine.py").write_text(SPACE.replace("SETTING", '"precision": "fp32"'))
    assert "writ" in refused([*command, "--out", str(tmp_path / "file" / "study"), "--simulate", "2"], capsys)
    assert (tmp_path / "file").read_text() == "not a folder"


def test_a_foreign_file_in_the_study_is_refused_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "thesis.tex").write_text("years of work")
    command = sweep(tmp_path, '"precision": "fp32"')
    for more in ([], ["--fresh"]):
        assert "thesis.tex" in refused([*command, *more], capsys)
    assert [file.name for file in (tmp_path / "study").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("fresh", [[], ["--fresh"]])
def test_too_little_memory_is_said_before_anything_is_deleted(
    fresh: list[str],
    tmp_path: Path,
    small_study: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preflight, "free_memory", lambda: 2**20)
    shutil.copytree(small_study, tmp_path / "study")
    before = sorted((tmp_path / "study").rglob("*.parquet"))
    command = sweep(tmp_path, '"precision": "fp32"')
    assert "GiB of free memory" in refused([*command, *fresh], capsys)
    assert sorted((tmp_path / "study").rglob("*.parquet")) == before


def test_a_cluster_named_twice_is_refused_before_anything_is_deleted(
    tmp_path: Path, small_study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(small_study, tmp_path / "study")
    before = sorted((tmp_path / "study").rglob("*.parquet"))
    command = sweep(tmp_path, '"precision": "fp32"')
    assert "drop one" in refused([*command, "--fresh", "--address", "auto"], capsys)
    assert sorted((tmp_path / "study").rglob("*.parquet")) == before


@pytest.mark.parametrize("fresh", [[], ["--fresh"]])
def test_nothing_is_swept_into_a_study_made_of_a_table(
    fresh: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs.csv").write_text("params,tokens,loss\n1e6,1e8,3.1\n2e6,2e8,2.9\n")
    make_study(str(tmp_path / "runs.csv"), str(tmp_path / "study"))
    (tmp_path / "study" / "recipe.toml").write_text("sealed")
    before = {file: file.read_bytes() for file in (tmp_path / "study").rglob("*.*")}
    said = refused([*sweep(tmp_path, '"precision": "fp32"'), *fresh], capsys)
    assert "made of a table by `froude fit --from`; sweep into another --out" in said
    assert "--fresh" not in said
    assert {file: file.read_bytes() for file in (tmp_path / "study").rglob("*.*")} == before


@pytest.mark.parametrize("more", [[], ["--write-jobs", "jobs"]])
def test_a_begun_run_of_the_target_is_not_deleted_to_start_over(
    more: list[str], tmp_path: Path, small_study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(small_study, tmp_path / "study")
    RunStore(Location.parse(tmp_path / "study" / "runs" / "large"), "large").open_attempt("recipe")
    before = sorted((tmp_path / "study").rglob("*"))
    said = refused([*sweep(tmp_path, '"precision": "fp32"'), "--fresh", *more], capsys)
    assert "the run 'large' has begun" in said
    assert sorted((tmp_path / "study").rglob("*")) == before
    meta = json.loads((tmp_path / "study" / "study.json").read_text())
    meta["target"]["name"] = "renamed"  # by a sweep with another target, after the first was trained
    (tmp_path / "study" / "study.json").write_text(json.dumps(meta))
    said = refused([*sweep(tmp_path, '"precision": "fp32"'), "--fresh", *more], capsys)
    assert "the run 'large' has begun" in said


@pytest.mark.parametrize(
    ("verb", "place", "words"),
    [
        *(
            (verb, "none", "or made of a table by `froude fit --from`, but there is none at")
            for verb in VERBS
        ),
        *((verb, "runs.csv", "did you mean `froude fit --from") for verb in VERBS),
        *((verb, "h/recipe.toml", "did you mean its folder") for verb in VERBS),
        *((verb, "mine", "is a project (it has search_space.py); name the study below it") for verb in VERBS),
    ],
)
def test_what_is_no_study_is_said_with_what_was_meant(
    verb: str,
    place: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs.csv", "h/recipe.toml", "mine/search_space.py", "mine/README.md"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    assert words in refused([verb, place], capsys)


def test_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert "must be writable" in refused(["init", str(tmp_path / "file" / "new")], capsys)


@pytest.mark.parametrize("option", [["--trainer", ""], ["--context", "0"], ["--vocab", "0"]])
def test_an_option_that_is_given_nothing_is_refused(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path / "new"), *option]) == 2
    assert option[0] in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_wrong_value_is_cut_where_nobody_reads_on() -> None:
    with pytest.raises(ConfigError, match=r"`tokens` must be .* but got '1000") as error:
        Run.from_dict({"name": "a", "tokens": "1000" * 1000})
    assert len(str(error.value)) < 400


def test_ctrl_c_while_modules_are_imported_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str, *more: object) -> object:
        if name == "froude.cli.app":
            raise KeyboardInterrupt
        return imported(name, *more)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", interrupted)
    assert main(["--version"]) == 130


def test_a_local_study_of_several_hosts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    def connected(address: str) -> nullcontext[cluster.ConnectedCluster]:
        return nullcontext(cluster.ConnectedCluster(address))

    nodes = [{"NodeManagerAddress": address, "Alive": True} for address in ("10.0.0.1", "10.0.0.2")]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    with pytest.raises(ConfigError, match="--shared"):
        readiness.check_shared(Location.parse(tmp_path), shared=False)
    readiness.check_shared(Location.parse(tmp_path), shared=True)
    monkeypatch.setattr(cluster, "connect", connected)
    command = [*sweep(tmp_path, '"precision": "fp32"')[:-2], "--address", "10.0.0.1:6379"]
    assert "--shared" in refused(command, capsys)
    assert not (tmp_path / "study").exists()


@pytest.mark.slow
def test_a_recipe_edited_by_hand_is_refused(
    tmp_path: Path, small_study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study"
    shutil.copytree(small_study, study)
    names = ("lr_points", "forecast_certified")  # the first passes
    overrides = [word for name in names for word in ("--override", name, "--reason", "a test")]
    assert main(["promote", str(study), *overrides]) == 0
    assert "override  lr_points: not needed, since it passes" in capsys.readouterr().out
    recipe = study / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("beta1 = 0.9", "beta1 = 0.8"))
    assert "as it was sealed" in refused(["train", str(recipe), "--simulate", "1"], capsys)
