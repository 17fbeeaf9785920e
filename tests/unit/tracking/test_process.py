"""A tracker that hangs or raises changes nothing but a warning, and what can be known of it is said before a start."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from chaos_recipe import write_recipe

from froude.checkpoint.run_store import RunStore
from froude.checkpoint.tensors import digest
from froude.cli import main
from froude.config import ConfigError, Run
from froude.promote.recipe import Recipe
from froude.runlog import LogReader
from froude.store import Location
from froude.tracking import places, process
from froude.tracking.process import tracked
from froude.train.api import Unsupervised
from froude.train.worker import run_worker

HANGS = "import time\ntime.sleep(1e6)\n"
RAISES = "raise RuntimeError('no route to host')\n"


def train(study: Path, recipe: Recipe, run: Run) -> str:
    """The digest of what comes out."""
    place = Location.parse(study) / "runs" / run.name
    store = RunStore(place, run.name)
    run_worker(run, store, Unsupervised(attempt=store.open_attempt(recipe.sha256)), device="cpu")
    return digest(place, LogReader(place).lineage()[-1])


@pytest.mark.parametrize(
    "text",
    [
        "MlflowException: API request to http://bob:hunter2@127.0.0.1:9/api failed",
        "postgres://bob:hunter2@db/x",
        "postgresql://db/x?password=hunter2&ssl=1",
        "mysql://bob:hunter2/@here@db",
    ],
)
def test_no_password_is_told(capsys: pytest.CaptureFixture[str], text: str) -> None:
    process.warn("mlflow:somewhere", text)
    with pytest.raises(ConfigError) as caught:
        places.check_mlflow(f"x{text}")
    for told in (capsys.readouterr().err, str(caught.value)):
        assert "hunter2" not in told
        assert "***" in told


@pytest.mark.parametrize(
    ("code", "words"), [("import os; os.kill(os.getpid(), 9)", "exit code -9"), ("", "")]
)
def test_one_that_is_killed_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str, words: str
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", code])
    process.Child("mlflow:here", ended, tmp_path / "sign").end()
    assert words in (told := capsys.readouterr().err)
    assert bool(told) == bool(words)


@pytest.mark.long
def test_one_that_hangs_and_one_that_raises_change_nothing_but_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for package, code in (("wandb", HANGS), ("mlflow", RAISES)):
        (tmp_path / "packages" / package).mkdir(parents=True)
        (tmp_path / "packages" / package / "__init__.py").write_text(code)
    path = [str(tmp_path / "packages"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setattr(process, "END_SECONDS", 5.0)
    study, alone = tmp_path / "study", tmp_path / "alone"
    recipe = write_recipe(Location.parse(study), steps=12, every=4)
    run = Run(
        name="large", tokens=768, batch=128, slots=2, eval_windows=16, checkpoint_every=2, model={"width": 16}
    )
    targets = ["wandb:mine", "mlflow:http://nowhere", f"tensorboard:{tmp_path}/boards"]
    with tracked(targets, Location.parse(study), facts={"params": 7}):
        bits = train(study, recipe, run)
        began = time.monotonic()
        while not list((tmp_path / "boards").rglob("events*")):
            assert time.monotonic() - began < 300, "the tracker that works has not begun"
            time.sleep(0.05)
    assert bits == train(alone, recipe, run)
    warnings = [line for line in capfd.readouterr().err.splitlines() if line.startswith("froude: tracker")]
    assert sorted(warnings) == [
        "froude: tracker mlflow: RuntimeError: no route to host; training is not concerned, and the same command "
        "sends what is missing",
        "froude: tracker wandb: it gave no sign for 5 s, and was ended; training is not concerned, and the same "
        "command sends what is missing",
    ]
    (ended,) = (tmp_path / "boards").rglob("froude-ended")  # the one beside them was told of the end
    assert ended.read_text() == LogReader(Location.parse(study) / "runs" / "large").records()[0].digest[:16]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("wandb", "must be wandb:PROJECT, mlflow:URI or tensorboard:DIR"),
        ("comet:mine", "but got 'comet:mine'"),
        ("tensorboard:", "must be"),
        ("mlflow:mlruns", "must be a server or a database, but got 'mlruns'"),
        ("tensorboard:file", "must be a local folder, but file is none"),
        (
            "tensorboard:file/below",
            "must have a folder that can be written to, but file/below is none (Not a directory)",
        ),
        ("mlflow:sqlite:///file/m.db", "must have a folder that can be written to, but file is none"),
        ("mlflow:sqlite:///file", "must be an SQLite database, but file is none (file is not a database)"),
    ],
)
def test_a_target_that_is_none_is_refused_first(
    target: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("words" * 100)
    assert main(["train", "nothing.toml", "--track", target]) == 2
    assert words in capsys.readouterr().err
    assert main(["sweep", "nothing.py", "--out", "study", "--track", target]) == 2
    assert words in capsys.readouterr().err


def test_a_package_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["train", "nothing.toml", "--track", "wandb:mine"]) == 2
    said = capsys.readouterr().err
    assert "needs the package wandb, which is not installed here; pip install -e '.[wandb]' in froude" in said


def test_nobody_logged_in_is_said_where_wandb_is_online(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert main(["train", "nothing.toml", "--track", "wandb:mine"]) == 2
    assert "set WANDB_API_KEY, or set WANDB_MODE=offline" in capsys.readouterr().err


def test_a_folder_that_wandb_would_leave_for_another_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "file" / "below"))
    assert main(["train", "nothing.toml", "--track", "wandb:mine"]) == 2
    assert (
        "which writes below WANDB_DIR, must have a folder that can be written to" in capsys.readouterr().err
    )
