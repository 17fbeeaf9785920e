"""Every kind of failure once, on real processes: the run ends as it would have without them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import torch
from chaos_recipe import write_recipe
from s3_server import s3, s3_server

from froude.cli import main
from froude.launch.chaos import KINDS
from froude.launch.chaos.available import chosen
from froude.launch.chaos.conduct import Course, Recovery
from froude.launch.chaos.verdict import verdict
from froude.promote.verify import locate
from froude.runlog import LogReader
from froude.store import Location

__all__ = ["s3", "s3_server"]

pytestmark = pytest.mark.long

NODES = 2


@pytest.fixture(autouse=True)
def torch_as_before() -> Iterator[None]:
    """The undisturbed run is trained in this process, with settings of its own."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def run_chaos(
    recipe: Location, out: Location, kinds: list[str], capsys: pytest.CaptureFixture[str]
) -> dict[str, object]:
    """Each of these kinds once; what the verb says of it."""
    options = ["--simulate", str(NODES), "--kinds", ",".join(kinds), "--failures", str(len(kinds))]
    code = main(["chaos", recipe.url, *options, "--seed", "1", "--out", out.url, "--json"])
    content: dict[str, object] = json.loads(capsys.readouterr().out)
    failed = [check for check in content["checks"] if not check["passed"]]  # type: ignore[attr-defined]
    assert (code, failed) == (0, [])
    return content


@pytest.mark.campaign
def test_every_kind_that_is_possible_on_a_local_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Location.parse(tmp_path)
    kinds, left_out = chosen([], place / "out")
    assert {"s3-5xx", "s3-hang"} <= left_out.keys() <= {"s3-5xx", "s3-hang", "disk-full", "clock-jump"}
    # Steps take 60 ms, and a busy machine needs half a minute until a woken driver knows that it was superseded.
    write_recipe(place, steps=100 * len(kinds), every=10, workers=NODES)
    content = run_chaos(place / "recipe.toml", place / "out", kinds, capsys)
    assert {row["kind"] for row in content["kinds"]} == set(kinds)  # type: ignore[attr-defined]
    assert content["good"]
    must = {kind for kind in kinds if KINDS[kind].restarts}
    assert {f["kind"] for f in content["failures"] if f["restarted"]} >= must  # type: ignore[attr-defined]
    assert not (tmp_path / "runs").exists()  # the recipe's own study
    tampered = tmp_path / "tampered"
    shutil.copytree(tmp_path / "out", tampered)
    assert_a_tampered_ledger_is_seen(tampered)


def assert_a_tampered_ledger_is_seen(folder: Path) -> None:
    """One row of the ledger is another slot's: the verdict must say so, though everything else is as it was."""
    study, recipe = locate(str(folder))
    course = Course((Recovery("worker-kill", 1, "", 1.0, True),), frozenset(), "")
    run = folder / "runs" / "large"
    # of a record, since parts of killed attempts, which do not count, lie beside
    last = LogReader(Location.parse(run)).records()[-1]
    part = run / next(part.path for part in last.parts if part.kind == "ledger")
    rows = pl.read_parquet(part)
    rows.with_columns(slot=pl.lit(0, rows.schema["slot"])).write_parquet(part)
    failed = {check.name for check in verdict(study, recipe, course, 1) if not check.passed}
    assert "every planned token was trained once" in failed
    assert any("each commit" in name for name in failed)
    failed = {check.name for check in verdict(study, recipe, course, 2) if not check.passed}
    assert "each failure struck, and was recovered from" in failed


def test_every_kind_that_needs_s3(
    tmp_path: Path, s3: Location, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the logs of a study on S3 go
    kinds = ["s3-5xx", "s3-hang"]
    recipe = Location.parse(tmp_path)
    write_recipe(recipe, steps=40 * len(kinds), every=10, workers=NODES)
    content = run_chaos(recipe / "recipe.toml", s3 / "out", kinds, capsys)
    assert [row["kind"] for row in content["kinds"]] == kinds  # type: ignore[attr-defined]
