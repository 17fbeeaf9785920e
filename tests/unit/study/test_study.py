from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import torch

import froude
from froude import schemas
from froude.checkpoint.commit import Fenced
from froude.checkpoint.run_store import RunStore
from froude.config import ConfigError
from froude.runlog import BrokenLog
from froude.schemas import LEDGER, STEPS, TRIALS, table, to_bytes
from froude.store import Location
from froude.study import Study

FRAMES = ("trials", "steps", "evals", "commits", "ledger")


def rows(schema: pa.Schema, trial: str, steps: range, **more: Any) -> bytes:
    filled = [{"run": trial, "attempt": 1, "step": step, **more} for step in steps]
    return to_bytes(table(schema, filled))


def write_trial(place: Location, name: str, steps: int = 3, loss: float | None = 2.0) -> None:
    (place / f"steps/{name}.parquet").create(rows(STEPS, name, range(1, steps + 1)))
    (place / f"evals/{name}.parquet").create(
        rows(schemas.EVALS, name, range(steps, steps + 1), split="validation")
    )
    status = "finished" if loss is not None else "diverged"
    trial = {"run": name, "trial": name, "status": status, "loss": loss, "lr": 1e-3, "tokens": 10**12}
    (place / f"trials/{name}.parquet").create(to_bytes(table(TRIALS, [trial])))


def attempt(place: Location) -> tuple[RunStore, int, dict[str, torch.Tensor], int]:
    store = RunStore(place / "runs/large", "large")
    number = store.open_attempt("recipe")
    state = {"w": torch.zeros(2)}
    return store, number, state, store.load(state)["step"]


def save(store: RunStore, number: int, state: dict[str, torch.Tensor], steps: range) -> None:
    filled = [{"run": "large", "attempt": number, "step": step, "tokens": 10 * step} for step in steps]
    ledger = table(LEDGER, [{**row, "tokens": 10, "slot": 0, "disposition": "trained"} for row in filled])
    tables = {"steps": table(STEPS, filled), "ledger": ledger}
    store.save(state, step=steps[-1], tokens=10 * steps[-1], tables=tables)


def columns(frame: pl.LazyFrame) -> list[str]:
    return frame.collect_schema().names()


@pytest.mark.parametrize("made", [True, False])
def test_an_empty_study_has_all_columns(place: Location, made: bool) -> None:
    if made:
        (place / "study.json").create(b'{"froude": "study"}')
    study = froude.Study(place)
    assert study.exists is made
    assert study.meta == ({"froude": "study"} if made else {})
    for name in FRAMES:
        frame = getattr(study, name)()
        assert isinstance(frame, pl.LazyFrame)
        assert columns(frame) == schemas.SCHEMAS[name].names
        assert frame.collect().height == 0
    assert columns(study.ledger(all=True)) == LEDGER.names


def test_a_study_reads_alike_from_disk_and_s3(place: Location) -> None:
    (place / "study.json").create(json.dumps({"froude": "study", "seed": 3}).encode())
    write_trial(place, "a b%2é", steps=3)
    write_trial(place, "b[1]*", steps=2, loss=None)
    store, number, state, _ = attempt(place)
    save(store, number, state, range(1, 3))
    store.save(state, step=3, tokens=30, tables={}, kind="finished")

    study = Study(place.url)
    assert study.meta["seed"] == 3
    trials = study.trials().collect()
    assert trials["run"].to_list() == ["a b%2é", "b[1]*"]
    assert trials["loss"].to_list() == [2.0, None]
    assert trials["tokens"].to_list() == [10**12] * 2
    steps = study.steps().group_by("run").len().sort("run").collect()
    assert steps.rows() == [("a b%2é", 3), ("b[1]*", 2), ("large", 2)]
    assert study.evals().collect()["split"].to_list() == ["validation"] * 2
    commits = study.commits().collect()
    assert commits["kind"].to_list() == ["attempt", "checkpoint", "finished"]
    assert commits["seq"].to_list() == [0, 1, 2]
    assert commits["step"].to_list() == [0, 2, 3]
    assert commits["parent"].null_count() == 1
    assert study.ledger().select(pl.col("tokens").sum()).collect().item() == 20
    for name in FRAMES:
        frame = getattr(study, name)().collect()
        empty = pl.from_arrow(schemas.SCHEMAS[name].empty_table())
        assert isinstance(empty, pl.DataFrame)
        assert frame.schema == empty.schema


def test_parts_of_an_older_version_read_beside_new_ones(place: Location) -> None:
    """Columns that came later are null in what was written before them."""
    late = {"trials": ["last_loss", "reason", "model", "corpus"], "steps": ["seconds", "workers"]}
    for name, columns_ in late.items():
        whole = schemas.SCHEMAS[name]
        old = pa.schema([field for field in whole if field.name not in columns_])
        assert len(old) == len(whole) - len(columns_)
        row = {"run": "old", "status": "diverged", "step": 1, "world": 1}
        (place / name / "old.parquet").create(
            to_bytes(table(old, [{k: v for k, v in row.items() if k in old.names}]))
        )
    new = {"run": "new", "status": "diverged", "last_loss": 9.0, "reason": "it rose", "model": "m:M"}
    (place / "trials/new.parquet").create(to_bytes(table(TRIALS, [{**new, "corpus": "c:C"}])))
    step = {"run": "new", "step": 1, "seconds": 0.5, "workers": 2}
    (place / "steps/new.parquet").create(to_bytes(table(STEPS, [step])))

    study = Study(place.url)
    rows = {row["run"]: row for row in study.trials().collect().to_dicts()}
    assert [rows["old"][name] for name in ("status", *late["trials"])] == ["diverged", None, None, None, None]
    assert [rows["new"][name] for name in late["trials"]] == [9.0, "it rose", "m:M", "c:C"]
    steps = study.steps().select("run", "seconds", "workers").sort("run", descending=True).collect()
    assert steps.rows() == [("old", None, None), ("new", 0.5, 2)]
    assert columns(study.trials()) == TRIALS.names


def test_repeated_steps_occur_once_and_lost_ones_only_in_the_whole_ledger(place: Location) -> None:
    store, number, state, _ = attempt(place)
    save(store, number, state, range(1, 5))
    # The first attempt goes on without noticing its successor: what it writes is lost.
    second, later, other, step = attempt(place)
    with pytest.raises(Fenced):
        save(store, number, state, range(5, 9))
    save(second, later, other, range(step + 1, 7))

    study = Study(place)
    expected = [(step, 1 if step <= 4 else 2) for step in range(1, 7)]
    assert study.steps().select("step", "attempt").collect().rows() == expected
    assert study.ledger().select("step", "attempt").collect().rows() == expected
    lost = (
        study.ledger(all=True).join(study.ledger(), on=["attempt", "step", "slot"], how="anti").sort("step")
    )
    assert lost.select("step", "attempt").collect().rows() == [(step, 1) for step in range(5, 9)]
    assert study.ledger(all=True).collect().height == 10


@pytest.mark.filterwarnings("ignore:checkpoint of step")
def test_the_rows_of_a_checkpoint_that_proved_damaged_leave_with_it(tmp_path: Path) -> None:
    place = Location.parse(tmp_path)
    store, number, state, _ = attempt(place)
    save(store, number, state, range(1, 3))
    save(store, number, state, range(3, 5))
    (damaged,) = tmp_path.glob("runs/large/data/000000000004/*/manifest.parquet")
    damaged.unlink()
    second, later, other, step = attempt(place)
    assert step == 2
    save(second, later, other, range(3, 6))
    expected = [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]
    assert Study(place).ledger().select("step", "attempt").collect().rows() == expected


def test_a_trial_exists_from_its_row_on(place: Location) -> None:
    write_trial(place, "whole")
    (place / "steps/cut.parquet").create(rows(STEPS, "cut", range(1, 9)))
    assert Study(place).steps().collect()["run"].unique().to_list() == ["whole"]


def test_columns_of_other_versions_do_not_break_the_frame(tmp_path: Path) -> None:
    place = Location.parse(tmp_path)
    write_trial(place, "now")
    older = table(TRIALS, [{"run": "older"}]).drop_columns(["workers", "error"])
    newer = table(TRIALS, [{"run": "newer"}]).append_column("more", pa.array([1]))
    (place / "trials/older.parquet").create(to_bytes(older))
    (place / "trials/newer.parquet").create(to_bytes(newer))
    frame = Study(place).trials().collect()
    assert frame.columns == TRIALS.names
    assert sorted(frame["run"]) == ["newer", "now", "older"]


@pytest.mark.parametrize(
    "name", ["notes.txt", "quickstart/study.json", "data.csv", "trial.parquet", "studying"]
)
def test_a_foreign_file_is_named(place: Location, name: str) -> None:
    (place / name).create(b"")
    with pytest.raises(
        ConfigError, match=rf"only its own files, but got .*{name.split('/')[0]}; move it away"
    ):
        Study(place)


@pytest.mark.parametrize(
    "name",
    ["recipe.toml", "forecast.json", "report.html", "summary.json", ".lock", "logs/x", "ray/y", "chaos-0/z"],
)
def test_a_study_s_own_files_are_known(tmp_path: Path, name: str) -> None:
    (Location.parse(tmp_path) / name).create(b"")
    assert Study(tmp_path).trials().collect().height == 0


def test_foreign_files_among_the_parts_are_named(tmp_path: Path) -> None:
    (Location.parse(tmp_path) / "trials/a.csv").create(b"")
    with pytest.raises(ConfigError, match=r"a\.csv"):
        Study(tmp_path).trials()


def test_a_broken_description_is_named(tmp_path: Path) -> None:
    for content in (b"{", b"[1]"):
        (Location.parse(tmp_path) / "study.json").replace(content)
        with pytest.raises(ConfigError, match=r"study\.json must be"):
            _ = Study(tmp_path).meta


def test_a_broken_log_is_named(tmp_path: Path) -> None:
    place = Location.parse(tmp_path)
    attempt(place)
    attempt(place)
    (place / "runs/large/commits/00000000.parquet").delete()
    with pytest.raises(BrokenLog, match=r"00000000\.parquet, which is missing"):
        Study(place).commits()


@pytest.mark.slow
def test_an_unreachable_store_is_named(s3: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"a study must be readable, but .*; check AWS_ENDPOINT_URL"):
        Study(s3)


@pytest.mark.slow
def test_readers_see_whole_commits_only_while_a_run_writes(place: Location) -> None:
    per_save, saves = 3, 8
    done = threading.Event()
    errors: list[BaseException] = []

    def write() -> None:
        try:
            store, number, state, _ = attempt(place)
            for i in range(saves):
                save(store, number, state, range(per_save * i + 1, per_save * (i + 1) + 1))
                write_trial(place, f"trial-{i}", steps=4)
        except BaseException as error:
            errors.append(error)
            raise
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    study, seen = Study(place), [0]
    while True:
        last = done.is_set()
        steps = study.steps().collect()
        of_run = steps.filter(run="large")["step"].to_list()
        assert of_run == list(range(1, len(of_run) + 1))
        assert len(of_run) % per_save == 0
        assert set(steps.filter(pl.col("run") != "large").group_by("run").len()["len"]) <= {4}
        assert study.trials().collect()["status"].null_count() == 0
        seen.append(len(of_run))
        if last:
            break
    writer.join()
    assert not errors
    assert seen == sorted(seen)
    assert seen[-1] == per_save * saves
