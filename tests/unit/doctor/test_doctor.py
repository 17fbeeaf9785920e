"""froude doctor on this machine's CPU, and on stores and processes that go wrong."""

from __future__ import annotations

import getpass
import json
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from froude.cli import main
from froude.doctor import places
from froude.doctor.examine import examine
from froude.doctor.ranks import work
from froude.store import Location


def test_a_store_that_does_what_it_must_is_left_empty(tmp_path: Path) -> None:
    found = places.check(str(tmp_path / "mine"))
    assert (found.verdict, found.figures["conditional_put"]) == ("ok", True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_store_that_overwrites_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def create(place: Location, data: bytes) -> bool:
        place.replace(data)
        return True

    monkeypatch.setattr(Location, "create", create)
    found = places.check(str(tmp_path))
    assert found.verdict == "fail"
    assert "overwrites" in found.line
    assert "conditional PUT" in found.remedy


def test_a_store_whose_clock_is_off_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Location, "modified", lambda _: datetime.now(UTC) + timedelta(seconds=90))
    found = places.check(str(tmp_path))
    assert found.verdict == "warn"
    assert "clock is +90 s" in found.line


def test_what_has_no_time_left_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = examine(gpu=False, store=str(tmp_path / "file" / "below"), minutes=0)
    said = {each.check: each for each in found.findings}
    assert said["environment"].verdict == "ok"
    assert said["store"].verdict == "fail"  # a file is no folder
    assert said["devices"].verdict == "warn"
    assert "--minutes" in said["devices"].remedy
    assert not found.passed


def test_a_process_that_fails_or_hangs_is_a_finding() -> None:
    assert (
        work(["nothing"], world=1, device="cpu", seconds=100).ended == "a process failed, KeyError: 'nothing'"
    )
    assert work(["exact"], world=1, device="cpu", seconds=0.2).ended.startswith("no answer in")


def test_a_gpu_that_is_not_there_fails_before_anything_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    file = tmp_path / "doctor.json"
    assert main(["doctor", "--gpu", "--json", str(file)]) == 1
    assert "torch finds no GPU" in capsys.readouterr().out
    assert [each["check"] for each in json.loads(file.read_text())["findings"]] == ["environment", "store"]


def test_a_file_in_no_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", str(tmp_path / "none" / "doctor.json")]) == 2
    assert "--json must be in a folder that exists" in capsys.readouterr().err


@pytest.mark.slow
def test_a_cpu_passes_and_the_file_names_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "doctor.json"
    assert main(["doctor", "--store", str(tmp_path / "store"), "--json", str(file)]) == 0
    lines = capsys.readouterr().out
    for check in (
        "environment",
        "store",
        "matrix products",
        "links",
        "determinism",
        "exactness",
        "step, small",
    ):
        assert f"ok    {check}" in lines
    text = file.read_text()
    names = {socket.gethostname(), str(Path.home()), str(tmp_path), f'"{getpass.getuser()}"'}
    assert [name for name in names if name in text] == []
    found = {each["check"]: each for each in json.loads(text)["findings"]}
    assert found["exactness"]["figures"]["workers"] == [1, 2]
    assert found["memory, small"]["figures"]["peak_bytes"] > 10**8
