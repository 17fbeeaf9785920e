"""Stored rows and records that were changed, with every hash made to fit again: what they say must still be checked."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from honest_run import FORECAST, failed, forge, records, rewrite, sealed, unknown

from froude.checkpoint.manifest import Manifest
from froude.checkpoint.parts import digest
from froude.checkpoint.run_store import save_state
from froude.checkpoint.tensors import Tensors
from froude.config import ConfigError
from froude.promote.verify import locate, verify_run
from froude.runlog import LogReader, Part, Record, record_name
from froude.store import Location
from froude.study import Study

pytestmark = pytest.mark.slow

TRAINED = "every planned token was trained once"


def once_more(**changed: Any) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """The rows and their first one again, with some of its values changed."""

    def change(rows: pl.DataFrame) -> pl.DataFrame:
        values = {name: pl.lit(value, rows.schema[name]) for name, value in changed.items()}
        return pl.concat([rows, rows.head(1).with_columns(**values)])

    return change


def test_a_token_trained_twice_under_another_runs_name_is_caught(study: Path) -> None:
    forge(study, "ledger", once_more(run="elsewhere"))
    assert TRAINED in failed(study)


def test_what_lies_beside_the_run_does_not_matter(study: Path) -> None:
    shutil.copytree(study / "runs" / "large", study / "runs" / "copy")
    assert Study(study).ledger().collect().height == 60  # each slot once
    broken = study / "runs" / "broken" / "commits"
    broken.mkdir(parents=True)
    (broken / "00000000.parquet").write_bytes(b"none")
    assert failed(study) == []


def test_rows_that_another_run_commits_are_not_this_ones(study: Path) -> None:
    forge(study, "ledger", lambda rows: rows.slice(3))
    shutil.copytree(study / "runs" / "large", study / "runs" / "other")
    forge(study, "ledger", lambda rows: rows.head(0))
    assert failed(study) == [TRAINED]


def append(folder: Path, record: Record, **changed: Any) -> None:
    """This record once more, with some of it changed, at the log's end."""
    newest = records(folder)[-1]
    more = replace(record, seq=newest.seq + 1, parent=newest.digest, **changed)
    (folder / "runs" / "large" / "commits" / record_name(more.seq)).write_bytes(more.to_bytes())


def test_a_log_that_goes_on_after_its_end_is_caught(study: Path) -> None:
    first, *_, last = records(study)
    append(study, first, attempt=2, generation="more", step=last.step, tokens=last.tokens, base=last.seq)
    append(study, last)
    wrong = [check for check in verify_run(*locate(str(study))) if check.passed is False]
    assert [check.name for check in wrong] == ["the log is one chain"]
    assert wrong[0].seen == "record 4 follows record 3, with which the run is finished"


def test_a_rerun_of_what_had_another_build_in_between_is_refused(study: Path) -> None:
    def other(record: Record) -> Record:
        build = {**record.meta["build"], "torch": "1.0"}
        return replace(record, meta={**record.meta, "build": build}) if record.seq == 2 else record

    rewrite(study, other)
    with pytest.raises(ConfigError, match=r"one build from its start, but large went on .*: torch is '1\.0'"):
        failed(study, rerun=True)


@pytest.mark.parametrize("late", [2, 3, 4])
def test_a_commit_while_it_is_verified_is_no_alarm(
    study: Path, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    """The last record comes just before the log is read for the n-th time."""
    last = max((study / "runs" / "large" / "commits").iterdir())
    content, read, calls = last.read_bytes(), LogReader.records, []
    last.unlink()

    def reading(self: LogReader) -> list[Record]:
        calls.append(self)
        if len(calls) == late:
            last.write_bytes(content)
        return read(self)

    monkeypatch.setattr(LogReader, "records", reading)
    assert failed(study) == ([] if late == 2 else ["the run is finished"])


def test_a_checkpoint_that_is_given_up_while_it_is_verified_is_no_damage(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = study / "runs" / "large"
    last = max((folder / "commits").iterdir())
    record, read, calls = Record.from_bytes(last.read_bytes()), LogReader.records, []
    last.unlink()

    def reading(self: LogReader) -> list[Record]:
        calls.append(self)
        if len(calls) == 3:  # when what verification found missing is looked for
            last.write_bytes(replace(record, meta={**record.meta, "expired": [1, 2]}).to_bytes())
        return read(self)

    monkeypatch.setattr(LogReader, "records", reading)
    for step in (2, 4):
        shutil.rmtree(folder / "data" / f"{step:012d}")
    assert failed(study) == ["the run is finished"]


SEALED, BESIDE = "the forecast was sealed before step 0", "forecast.json says what was sealed"


def test_other_numbers_in_the_forecast_beside_it_are_caught(study: Path) -> None:
    note = study / "forecast.json"
    content = json.loads(note.read_text())
    note.write_text(json.dumps(content | {"loss": content["loss"] + 0.1}))
    assert failed(study) == [BESIDE]
    note.write_text("5")
    assert failed(study) == [BESIDE]
    note.unlink()
    assert failed(study) == [BESIDE]


def test_a_recipe_that_only_the_newest_record_names_is_caught(study: Path) -> None:
    """Sealed again with another forecast; one file of the log is changed, which no other one names."""
    other = sealed(study, replace(FORECAST, loss=1.3))
    last = max((study / "runs" / "large" / "commits").iterdir())
    last.write_bytes(replace(Record.from_bytes(last.read_bytes()), recipe=other.sha256).to_bytes())
    assert failed(study) == [SEALED]


def written(folder: Path, pattern: str, seconds: float) -> None:
    """Move the store's times of these files."""
    for file in folder.glob(pattern):
        time = file.stat().st_mtime + seconds
        os.utime(file, (time, time))


def behind(folder: Path, seconds: float) -> None:
    """The log of workers by whose clocks the run began so long before the seal; the store's times are as they were."""
    before = {file: file.stat() for file in (folder / "runs" / "large" / "commits").iterdir()}
    sealed_at = datetime.fromisoformat(locate(str(folder))[1].sealed_at)
    late = records(folder)[0].time - sealed_at + timedelta(seconds=seconds)
    rewrite(folder, lambda record: replace(record, time=record.time - late))
    for file, times in before.items():
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def clocks(folder: Path) -> str:
    return next(check.seen for check in verify_run(*locate(str(folder))) if check.name == SEALED)


@pytest.mark.parametrize("seconds", [31, 600, 86_400])
def test_a_promoters_clock_ahead_of_the_workers_is_told_and_fails_no_honest_run(
    study: Path, seconds: int
) -> None:
    behind(study, seconds)
    assert failed(study) == []
    assert f"the promoter's clock was {seconds:,} s ahead of the first worker's" in clocks(study)
    assert failed(study, rerun=True) == []


def test_a_copy_of_an_honest_run_says_what_its_times_are(study: Path) -> None:
    assert "copy" not in clocks(study)
    written(study, "**/*", 3600)
    written(study, "**/commits/*", 60)
    assert failed(study) == []
    assert "UTC; the store's times are those of a copy, so only the log says so" in clocks(study)
    behind(study, 31)
    assert failed(study) == []
    assert "the promoter's clock was 31 s ahead" in clocks(study)
    assert "those of a copy" in clocks(study)
    assert unknown(study) == [SEALED]


def test_a_seal_that_is_later_than_any_clock_is_caught_in_a_copy(study: Path) -> None:
    behind(study, 1000)
    written(study, "**/*", 3600)
    written(study, "**/commits/*", 60)
    assert failed(study) == [SEALED]


def test_a_log_that_was_rewritten_for_a_later_seal_is_caught(study: Path) -> None:
    other = sealed(study, replace(FORECAST, loss=1.3))
    rewrite(study, lambda record: replace(record, recipe=other.sha256))
    written(study, "**/commits/*", 10)
    assert failed(study) == [SEALED]
    assert "as in a log that was restored or rewritten; the promoter's clock was" in clocks(study)


@pytest.mark.parametrize(
    "change",
    [
        once_more(tokens=0),
        once_more(tokens=None),
        once_more(disposition=None),
        once_more(disposition="whatever"),
        once_more(slot=None),
        lambda rows: pl.concat([rows, once_more(tokens=-64)(rows).tail(1), once_more()(rows).tail(1)]),
        lambda rows: pl.concat([rows, rows]).with_columns(tokens=pl.col("tokens") // 2),
        lambda rows: rows.with_columns(samples=pl.lit(0, pl.Int64)),
    ],
    ids=["no tokens", "null", "neither", "whatever", "no slot", "plus and minus", "in halves", "no samples"],
)
def test_rows_that_are_no_slots_are_caught(
    study: Path, change: Callable[[pl.DataFrame], pl.DataFrame]
) -> None:
    forge(study, "ledger", change)
    assert TRAINED in failed(study)


def test_an_evaluation_that_was_rewritten_is_caught_by_a_rerun(study: Path) -> None:
    forge(study, "evals", lambda rows: rows.with_columns(loss=pl.lit(1.298)))
    assert failed(study) == []
    assert failed(study, rerun=True) == ["and has the same losses at every step"]


def without_moments(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in state.items() if not name.startswith("optimizer.")}


def poisoned(name: str) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    """One number of that tensor is none."""

    def change(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        state[name].view(-1)[-1] = math.nan
        return state

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without_moments, r"`optimizer\..*` must be float32 \[.*\], but is absent"),
        (
            lambda state: {name: tensor.half() for name, tensor in state.items()},
            r"`model.embedding` must be float32 \[256, 32\], but is float16 \[256, 32\]",
        ),
        (
            lambda state: {**state, "model.more": torch.zeros(2)},
            r"`model.more` must be absent, but is float32 \[2\]",
        ),
        (poisoned("model.embedding"), "`model.embedding` must be numbers, but some of it is NaN"),
        (
            poisoned("optimizer.embedding.exp_avg"),
            "`optimizer.embedding.exp_avg` must be numbers, but some of it is NaN",
        ),
    ],
    ids=["no optimizer", "another dtype", "more", "weights that are NaN", "moments that are NaN"],
)
def test_a_checkpoint_that_no_such_run_has_is_caught(
    study: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], said: str
) -> None:
    run, last = Location.parse(study) / "runs" / "large", records(study)[-1]
    with Tensors(run, last) as tensors:
        state = change(dict(tensors))
    forged = save_state(run, "data/000000000005/forged.00000003", state)
    kept = tuple(part for part in last.parts if part.kind not in ("data", "manifest"))
    rewrite(study, lambda r: replace(r, parts=(*forged, *kept)) if r.seq == last.seq else r)
    wrong = [check for check in verify_run(*locate(str(study))) if check.passed is False]
    assert [check.name for check in wrong] == ["the checkpoint of step 5 is whole"]
    assert re.search(said, wrong[0].seen)


def test_a_checkpoint_of_nothing_is_caught(study: Path) -> None:
    run = study / "runs" / "large"
    last = records(study)[-1]
    manifest = next(part for part in last.parts if part.kind == "manifest")
    content = Manifest({}, ()).to_bytes()
    (run / manifest.path).write_bytes(content)
    new = Part("manifest", manifest.path, len(content), digest(content))
    rewrite(study, lambda r: replace(r, parts=tuple(new if p.path == manifest.path else p for p in r.parts)))
    assert failed(study) == [f"the checkpoint of step {last.step} is whole"]
