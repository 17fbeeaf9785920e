"""A run with a resize, restarts and a rollback reads in each tracker as it does in its study."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tracked_run import RUN, STEPS

from froude.promote.imported_runs import wandb_files
from froude.store import Location
from froude.study import Study

pytestmark = pytest.mark.long

Column = dict[int, float]


def of_wandb(folder: Path) -> dict[str, Column]:
    (run,) = wandb_files.read(Location.parse(folder / "wandb"))
    assert (run.name, run.group, run.exit_code) == ("large", "study", 0)
    found: dict[str, Column] = {}
    for row in run.history:
        for name, value in row.items():
            if isinstance(value, int | float):
                assert row["_step"] not in found.setdefault(name, {}), "a point was sent twice"
                found[name][row["_step"]] = value
    return found


def of_mlflow(folder: Path) -> dict[str, Column]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("study")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("large", "FINISHED")
    found = {}
    for name in run.data.metrics:
        points = client.get_metric_history(run.info.run_id, name)
        found[name] = {point.step: point.value for point in points}
        assert len(found[name]) == len(points), "a point was sent twice"
    return found


def of_tensorboard(folder: Path) -> dict[str, Column]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (place,) = (folder / "boards" / "study").iterdir()
    board = EventAccumulator(str(place), size_guidance={"scalars": 0})
    board.Reload()
    found = {}
    for name in board.Tags()["scalars"]:
        points = board.Scalars(name)
        found[name] = {point.step: point.value for point in points}
        assert len(found[name]) == len(points), "a point was sent twice"
    return found


READERS = {"wandb": (of_wandb, 0.0), "mlflow": (of_mlflow, 0.0), "tensorboard": (of_tensorboard, 1e-6)}


@pytest.mark.parametrize("name", READERS)
def test_a_run_that_went_back_reads_as_in_its_study(told: Path, name: str) -> None:
    read, precision = READERS[name]
    found, study = read(told), Study(told / "study")
    steps = study.steps().sort("step").collect()
    assert steps["step"].to_list() == list(range(1, STEPS + 1))
    assert steps["workers"].unique().sort().to_list() == [1, 2]
    assert {"rollback"} <= set(study.events().collect()["action"])
    assert steps["attempt"].n_unique() == 4
    for column in ("loss", "lr", "grad_norm", "tokens", "tokens_per_second", "workers", "attempt"):
        expected = dict(steps.select("step", pl.col(column).cast(float)).iter_rows())
        assert found[f"train/{column}"] == pytest.approx(expected, rel=precision, abs=0)
    evals = dict(study.evals().select("step", "loss").collect().iter_rows())
    assert found["validation/loss"] == pytest.approx(evals, rel=precision, abs=0)


def test_what_the_policy_did_is_told_at_its_step(told: Path) -> None:
    events = Study(told / "study").events().sort("time").collect()
    expected: dict[int, list[str]] = {}
    for step, action, why in events.select("step", "action", "why").iter_rows():
        expected.setdefault(step, []).append(f"{action}: {why}")
    (run,) = wandb_files.read(Location.parse(told / "wandb"))
    found = {row["_step"]: row["events"] for row in run.history if "events" in row}
    assert found == {step: "; ".join(lines) for step, lines in expected.items()}
    assert any(line.startswith("rollback") for lines in expected.values() for line in lines)


def test_a_summary_has_the_forecast_of_the_recipe_and_what_came(told: Path) -> None:
    (run,) = wandb_files.read(Location.parse(told / "wandb"))
    last = Study(told / "study").evals().sort("step").collect().row(-1, named=True)
    assert (run.summary["loss"], run.summary["status"]) == (last["loss"], "finished")
    assert run.config["run"] == RUN.to_dict()
