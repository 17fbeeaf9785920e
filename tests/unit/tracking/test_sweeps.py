"""A sweep's trials in each tracker, and back out of it: `froude fit --from` reads what it stored."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wandb
from mlflow.tracking import MlflowClient

from froude.config import ConfigError
from froude.promote.imported_runs import table_file, wandb_files
from froude.promote.imported_runs.history import make_study
from froude.store import Location
from froude.study import Study
from froude.tracking import load
from froude.tracking.session import SweepSession

pytestmark = pytest.mark.long


def steps(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"run": row["run"], "attempt": 1, "step": i, "tokens": 10 * i, "loss": 5 - i, "time": row["time"]}
        for i in (1, 2, 3)
    ]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, study_factory: Callable[..., Path]) -> Path:
    """A study of few trials, two of which did not finish."""
    kept: list[str] = []

    def few(row: dict[str, Any]) -> dict[str, Any] | None:
        kept.append(row["run"])
        if len(kept) > 5:
            return None
        ends = {
            2: {"status": "diverged", "loss": None},
            3: {"status": "failed", "loss": None, "error": "OSError"},
        }
        return {**row, **ends.get(len(kept), {})}

    return study_factory(tmp_path_factory.mktemp("swept") / "swept", change=few, steps=steps)


def place_of(name: str, told: Path, folder: Path) -> tuple[str, Path]:
    """A target in the folder, and what `--from` reads then."""
    if name == "wandb":
        return "wandb:mine", folder / "wandb"
    database = Path(shutil.copy(told / "mlflow.db", folder))  # for one takes seconds to make
    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    for run in client.search_runs([each.experiment_id for each in client.search_experiments()]):
        client.delete_run(run.info.run_id)
    return f"mlflow:sqlite:///{database}", database


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_trials_come_back_as_they_were(
    name: str, swept: Path, told: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    target, source = place_of(name, told, tmp_path)
    study = Location.parse(swept)
    session = SweepSession(study, load(target))
    session.send()
    session.send(final=True)
    SweepSession(study, load(target)).send(final=True)  # finds that all are there
    wandb.teardown()  # writes what it holds
    ours = Study(swept).trials().sort("run").collect()
    back = make_study(str(source), tmp_path / "back").trials().sort("run").collect()
    columns = ["run", "status", "params", "tokens", "batch", "lr", "loss", "seed", "width", "parametrization"]
    assert back.select(columns).equals(ours.select(columns))
    assert set(ours["status"]) == {"finished", "diverged", "failed"}


def test_a_file_that_was_cut_short_has_what_it_has_and_a_damaged_one_is_named(
    told: Path, tmp_path: Path
) -> None:
    file = wandb_files.found(Location.parse(told / "wandb"))[-1]
    content = file.read()
    whole = list(wandb_files.messages(content, "it"))
    for end in (len(content) - 1, len(content) // 2, 100, 7):
        found = list(wandb_files.messages(content[:end], "it"))
        assert found == whole[: len(found)]
    (tmp_path / "run-a.wandb").write_bytes(content[:500] + b"\0\1" + content[502:])
    with pytest.raises(ConfigError, match=r"must be whole, but .*run-a.wandb is damaged at byte \d+"):
        table_file.read(Location.parse(tmp_path))
    (tmp_path / "run-a.wandb").write_bytes(b"PK" + content)
    with pytest.raises(ConfigError, match="must begin with"):
        table_file.read(Location.parse(tmp_path))


@pytest.mark.parametrize("source", ["wandb", "mlflow.db"])
def test_a_store_without_a_column_says_which(source: str, told: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"column 'params' is missing; the file has: .*Say which it is"):
        make_study(str(told / source), tmp_path / "study")
    mapped = {"params": "run.model.width", "tokens": "run.tokens", "loss": "loss"}
    study = make_study(str(told / source), tmp_path / "study", columns=mapped)
    (row,) = study.trials().filter(run="large").collect().iter_rows(named=True)
    assert (row["status"], row["params"]) == ("finished", 16)
