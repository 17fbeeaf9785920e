"""Runs that others logged, read out of W&B's offline folders and MLflow's stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import wandb
from mlflow.tracking import MlflowClient

from froude.cli import main
from froude.promote.imported_runs import table_file
from froude.store import Location

pytestmark = pytest.mark.slow

RATES = (1e-3, 2e-3)


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script's two runs of one name, and one that was killed; the rate that it logs decays."""
    folder = tmp_path_factory.mktemp("offline")
    for i, lr in enumerate((*RATES, 4e-3)):
        config = {"lr": lr, "model": {"n_params": 1000 * (i + 1)}, "betas": [0.9, 0.95], "status": "finished"}
        run = wandb.init(
            project="theirs",
            dir=str(folder),
            mode="offline",
            name="baseline" if i < 2 else "killed",
            config=config,
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
        )
        for step in (1, 2, 3):
            run.log(
                {"val": {"loss": 4.0 - step - i / 10}, "tokens_seen": 100 * step, "lr": lr / step}, step=step
            )
        run.finish(exit_code=0 if i < 2 else 1)
    wandb.teardown()  # writes what it holds
    return folder


def test_settings_of_wandb_keep_their_names(offline: Path) -> None:
    table = table_file.read(Location.parse(offline / "wandb")).sort("model.n_params")
    assert table["lr"].to_list() == [*RATES, 4e-3]
    assert table["summary.lr"].to_list() == pytest.approx([lr / 3 for lr in (*RATES, 4e-3)])
    assert table["betas"].to_list() == ["[0.9, 0.95]"] * 3
    assert table["status"].to_list() == ["finished", "finished", "failed"]
    names = table["run"].to_list()
    assert [name.split(" ")[0] for name in names] == ["baseline", "baseline", "killed"]
    assert len(set(names)) == 3


def test_a_command_makes_a_study_of_them_and_says_what_is_missing(
    offline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["fit", "--from", str(offline / "wandb"), "--out", str(tmp_path / "study")]
    mapping = "params=model.n_params,loss=val.loss"
    assert main([*command, "--columns", mapping]) == 2
    said = capsys.readouterr().err
    assert "column 'tokens' is missing; the file has: run, status, lr, model.n_params" in said
    assert "--columns tokens=" in said
    main([*command, "--columns", f"{mapping},tokens=tokens_seen"])
    assert "3 rows: 2 finished, 1 failed" in capsys.readouterr().out


def logged(uri: str) -> None:
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("theirs")
    for i, lr in enumerate(RATES):
        run: Any = client.create_run(experiment, run_name=f"run {i}").info.run_id
        client.log_param(run, "lr", lr)
        for step in (1, 2):
            client.log_metric(run, "loss", 4.0 - step - i, step=step)
            client.log_metric(run, "lr", lr / step, step=step)
        client.set_terminated(run, "FINISHED")


def test_a_folder_of_mlflow_is_read_though_none_is_made_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        logged((tmp_path / "mlruns").as_uri())
    table = table_file.read(Location.parse(tmp_path / "mlruns")).sort("run")
    assert table["run"].to_list() == ["run 0", "run 1"]
    assert [float(lr) for lr in table["lr"]] == list(RATES)
    assert table["metric.lr"].to_list() == [lr / 2 for lr in RATES]
    assert table["loss"].to_list() == [2.0, 1.0]
    assert table["status"].to_list() == ["finished"] * 2


def test_a_database_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("create table runs (a int)")
    assert main(["fit", "--from", str(tmp_path / "other.db"), "--out", str(tmp_path / "study")]) == 2
    assert "an MLflow store must be" in capsys.readouterr().err
    (tmp_path / "text.db").write_text("no database at all, but a text")
    assert main(["fit", "--from", str(tmp_path / "text.db"), "--out", str(tmp_path / "study")]) == 2
    assert "an MLflow store must be" in capsys.readouterr().err
