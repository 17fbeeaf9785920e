"""A run is checked again from what is stored: an honest one passes, and each kind of tampering is caught."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator
from dataclasses import replace

import polars as pl
import pytest
import torch
from honest_run import failed, sealed, train

from froude.cli import main
from froude.config import ConfigError
from froude.promote import verify
from froude.promote.recipe import Recipe, digest
from froude.runlog import Record, record_name
from froude.store import Location
from froude.study import Study
from froude.train.data.order import Batches
from froude.train.exact import environment
from froude.train.stability.spikes import SpikePolicy
from froude.train.trainer import Trainer

pytestmark = pytest.mark.slow

KEPT = "what the run's commits keep is whole"
TRAINED = "every planned token was trained once"
POLICY = "only what the run's policy decided was left out"
DIGESTS = "every digest is that of the corpus's tokens"
COURSE = "steps, evaluations and attempts are those of the records"


@pytest.fixture(autouse=True)
def torch_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def recipe(tmp_path) -> Recipe:
    return sealed(tmp_path)


def test_an_honest_run_passes_and_a_rerun_has_its_bits(tmp_path, recipe, capsys):
    train(tmp_path, recipe)
    assert main(["verify-run", str(tmp_path), "--rerun", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["failed"] == 0
    assert len(content["checks"]) == 12
    assert main(["checkpoints", "digest", str(tmp_path)]) == 0
    digest = capsys.readouterr().out.strip()
    assert {check["seen"] for check in content["checks"] if "bits" in check["name"]} == {f"digest {digest}"}


def test_another_order_of_data_is_caught(tmp_path, recipe, monkeypatch):
    plan = Batches.windows
    monkeypatch.setattr(
        Batches, "windows", lambda self, batch, slot, factor: plan(self, batch, 11 - slot, factor)
    )
    train(tmp_path, recipe)
    monkeypatch.undo()
    assert failed(tmp_path) == [DIGESTS]
    assert "an undisturbed rerun ends with the same bits" in failed(tmp_path, rerun=True)


def test_a_batch_that_was_dropped_is_caught(tmp_path, recipe, monkeypatch):
    step = Trainer.step

    def dropping(self, run, at, rows=None, attempt=1, **more):
        return step(self, run, at, [] if at == 2 else rows, attempt, **more)

    monkeypatch.setattr(Trainer, "step", dropping)
    train(tmp_path, recipe)
    monkeypatch.undo()
    assert failed(tmp_path) == [TRAINED]


def test_a_batch_that_was_run_twice_is_caught(tmp_path, recipe, monkeypatch):
    step = Trainer.step

    def twice(self, run, at, rows=None, attempt=1, **more):
        if at == 2:
            step(self, run, at, rows, attempt, batch=at)
        return step(self, run, at, rows, attempt, **more)

    monkeypatch.setattr(Trainer, "step", twice)
    train(tmp_path, recipe)
    monkeypatch.undo()
    assert failed(tmp_path) == [TRAINED]
    assert "and has the same losses at every step" in failed(tmp_path, rerun=True)


def test_a_batch_that_was_left_out_against_the_policy_is_caught(tmp_path, recipe, monkeypatch):
    monkeypatch.setattr(
        SpikePolicy, "leave_out", lambda self, step: range(self.batch, self.batch + (self.batch == 2))
    )
    train(tmp_path, recipe)
    monkeypatch.undo()
    assert POLICY in failed(tmp_path)


def test_a_ledger_that_was_rewritten_is_caught(tmp_path, recipe):
    """Its hash is in the log; and a reader that trusts it sees the wrong digest."""
    train(tmp_path, recipe)
    part = min((tmp_path / "runs" / "large" / "parts").glob("ledger-*"))  # of the first checkpoint
    rows = pl.read_parquet(part).with_columns(digest=pl.lit("0" * 16))
    content = io.BytesIO()
    rows.write_parquet(content)
    part.write_bytes(content.getvalue())
    assert failed(tmp_path) == [KEPT, DIGESTS]
    assert main(["checkpoints", "verify", str(tmp_path)]) == 1


def test_a_damaged_checkpoint_is_caught(tmp_path, recipe):
    train(tmp_path, recipe)
    part = sorted((tmp_path / "runs" / "large" / "data").glob("*5/*/part-*"))[-1]
    content = bytearray(part.read_bytes())
    content[-3000] ^= 1
    part.write_bytes(content)
    assert failed(tmp_path) == [KEPT, "the checkpoint of step 5 is whole"]


def test_metrics_that_were_rewritten_are_caught(tmp_path, recipe):
    train(tmp_path, recipe)
    part = min((tmp_path / "runs" / "large" / "parts").glob("steps-*"))
    rows = pl.read_parquet(part).with_columns(pl.col("loss") - 0.3)
    rows.write_parquet(part)
    assert failed(tmp_path) == [KEPT]


def test_a_ledger_that_was_cut_short_is_no_traceback(tmp_path, recipe):
    train(tmp_path, recipe)
    part = min((tmp_path / "runs" / "large" / "parts").glob("ledger-*"), key=lambda path: path.name[-40:])
    part.write_bytes(part.read_bytes()[:-100])
    assert failed(tmp_path) == [KEPT, TRAINED, COURSE]


def test_a_run_that_only_says_that_it_is_finished_is_caught(tmp_path, recipe):
    train(tmp_path, recipe)
    commits = sorted((tmp_path / "runs" / "large" / "commits").glob("*.parquet"))
    commits[-1].unlink()
    last = Record.from_bytes(commits[-2].read_bytes())
    commits[-2].write_bytes(replace(last, kind="finished").to_bytes())
    assert failed(tmp_path) == ["the run is finished"]


def test_a_forecast_that_was_sealed_afterwards_is_caught(tmp_path, recipe):
    train(tmp_path, recipe)
    note = tmp_path / "forecast.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"sha256": "0" * 64}))
    assert failed(tmp_path) == ["forecast.json says what was sealed"]


def test_what_cannot_be_verified_is_refused(tmp_path, recipe, capsys):
    with pytest.raises(ConfigError, match="has no log; train it first"):
        failed(tmp_path)
    assert main(["verify-run", str(tmp_path / "nowhere")]) == 2
    assert "recipe" in capsys.readouterr().err


def test_code_that_is_not_here_is_an_error_before_any_check(tmp_path, recipe):
    train(tmp_path, recipe)
    foreign = replace(recipe, run=recipe.run.replace({"model.factory": "not_here:Model"}, name="large"))
    checks = verify.verify_run(Study(tmp_path), foreign)
    with pytest.raises(ConfigError, match=r"'not_here:Model'.*PYTHONPATH"):
        next(checks)


def test_a_rerun_elsewhere_is_refused(tmp_path, recipe, monkeypatch):
    train(tmp_path, recipe)
    monkeypatch.setattr(environment, "_processor", lambda: "another")
    with pytest.raises(
        ConfigError, match="to rerun large bit for bit, this machine's processor is 'another'"
    ):
        failed(tmp_path, rerun=True)
    assert Study(tmp_path).ledger().collect().height == 60


def test_a_log_rewritten_for_a_forecast_of_the_same_time_is_not_said_to_be_sealed(tmp_path, recipe):
    train(tmp_path, recipe)
    other = replace(recipe, forecast=replace(recipe.forecast, loss=1.3), sha256="")
    other = replace(other, sha256=digest(other.content()))
    other.write(Location.parse(tmp_path) / "recipe.toml")
    parent = None
    for file in sorted((tmp_path / "runs" / "large" / "commits").iterdir()):
        record = replace(Record.from_bytes(file.read_bytes()), recipe=other.sha256, parent=parent)
        file.write_bytes(record.to_bytes())
        os.utime(file, (file.stat().st_atime, file.stat().st_mtime + 10))
        parent = hashlib.sha256(record.to_bytes()).hexdigest()
    checks = verify.verify_run(*verify.locate(str(tmp_path)))
    (found,) = (check for check in checks if check.name == "the forecast was sealed before step 0")
    assert found.passed is None
    assert found.seen.endswith("as in a log that was restored or rewritten")


def test_another_run_than_the_recipes_is_not_verified_in_its_place(tmp_path, recipe):
    runs = tmp_path / "runs"
    for name in ("large", "other"):
        (runs / name / "commits").mkdir(parents=True)
        (runs / name / "commits" / record_name(0)).touch()
    assert verify.locate(str(runs / "large"))[1].run.name == "large"
    with pytest.raises(
        ConfigError, match=r"only the run of a recipe can be verified, large, but .* is another's; name "
    ):
        verify.locate(str(runs / "other"))
