"""froude doctor on this machine's CPU, and on stores and processes that go wrong."""

from __future__ import annotations

import getpass
import json
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from froude.cli import main
from froude.config import ConfigError
from froude.doctor import environment, places
from froude.doctor import examine as examining
from froude.doctor.examine import examine
from froude.doctor.finding import Examination, Finding
from froude.doctor.ranks import Work, work
from froude.store import Location


def test_a_store_that_does_what_it_must_is_left_empty(tmp_path: Path) -> None:
    found = places.check(str(tmp_path / "mine"))
    assert (found.verdict, found.figures["conditional_put"]) == ("ok", True)
    assert list((tmp_path / "mine").iterdir()) == []  # a folder, too, would make a study's directory none


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


def test_a_store_that_is_none_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = examine(gpu=False, store=str(tmp_path / "file" / "below"), minutes=0)
    assert {each.check: each.verdict for each in found.findings}["store"] == "fail"
    assert not found.passed


def test_what_there_was_no_time_for_is_a_warning_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    done = {
        1: Work({"devices": [], "matmul": {"fp32": 1e-8}, "links": {}}, late=True),
        2: Work({}, late=True),
    }
    monkeypatch.setattr("froude.doctor.examine.work", lambda *_, world, **__: done[world])
    # On a busy machine it alone may take those minutes, and then nothing else is asked for.
    monkeypatch.setattr(environment, "check", lambda _: Finding("environment", "ok", "", ""))
    found = examine(gpu=False, minutes=0.1)
    (left,) = (each for each in found.findings if each.verdict == "warn")
    assert left.line == (
        "0.1 minutes are too few for exactness, determinism, step small; links, exactness at 2 workers"
    )
    assert "--minutes" in left.remedy
    assert found.passed


@pytest.mark.parametrize(("gpus", "tried"), [(1, [1]), (6, [1, 2, 3, 4, 6]), (32, [1, 2, 3, 4, 8, 24])])
def test_exactness_is_tried_at_all_gpus(monkeypatch: pytest.MonkeyPatch, gpus: int, tried: list[int]) -> None:
    asked = []
    one = {"name": "H100", "total_bytes": 8, "free_bytes": 8, "capability": "9.0", "bf16": True}

    def done(names: object, *, world: int, **_: object) -> Work:
        asked.append(world)
        return Work({"devices": [one] * gpus} if world == 1 else {})

    monkeypatch.setattr("froude.doctor.examine.work", done)
    monkeypatch.setattr(environment, "check", lambda _: Finding("environment", "ok", "", ""))
    examine(gpu=True)
    assert asked == tried


@pytest.mark.slow
def test_a_process_that_fails_or_hangs_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        work(["nothing"], world=1, device="cpu", seconds=100).ended == "a process failed, KeyError: 'nothing'"
    )
    assert work(["exact"], world=1, device="cpu", seconds=0.2) == Work({}, late=True)
    monkeypatch.setattr("froude.doctor.ranks.HANGS", 0)
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


@pytest.mark.parametrize(
    ("built", "driver", "words"),
    [
        (None, None, "built for CPUs; install a CUDA build (https://pytorch.org/get-started/locally), and a driver"),
        (None, "550.54", "built for CPUs; install a CUDA build (https://pytorch.org/get-started/locally)"),
        ("12.8", None, "built for CUDA 12.8, but nvidia-smi finds no driver"),
        ("12.8", "450.80", "built for CUDA 12.8; update the driver 450.80"),
    ],
)  # fmt: skip
def test_where_no_gpu_is_found_it_says_whether_torch_or_the_driver_is_missing(
    monkeypatch: pytest.MonkeyPatch, built: str | None, driver: str | None, words: str
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(environment, "_driver", lambda: driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = environment.check(gpu=True)
    assert (found.verdict, words in found.remedy) == ("fail", True), found
    assert ("a driver: nvidia-smi" in found.remedy) == (built is None and driver is None)


def test_a_file_in_no_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", str(tmp_path / "none" / "doctor.json")]) == 2
    assert "--json must be in a folder that exists" in capsys.readouterr().err
    assert main(["doctor", "--json", str(tmp_path)]) == 2
    assert "--json must be a file that can be written" in capsys.readouterr().err
    assert main(["doctor", "--json", "/proc/doctor.json"]) == 2
    assert "--json must be a file that can be written" in capsys.readouterr().err


@pytest.mark.parametrize("full", [False, True])
def test_the_file_is_whole_or_is_not(
    full: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "doctor.json"
    file.write_text("before")

    def examined(**_: object) -> Examination:
        if full:
            monkeypatch.setattr("froude.durable.os.fsync", no_room)
        return Examination(False, [])

    def no_room(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("froude.doctor.examine.examine", examined)
    assert main(["doctor", "--json", str(file)]) == int(full)
    if full:
        assert file.read_text() == "before"
        assert f"{file} can't be: No space left on device" in capsys.readouterr().err
    else:
        assert json.loads(file.read_text())["findings"] == []
    assert [each.name for each in tmp_path.iterdir()] == ["doctor.json"]


@pytest.mark.parametrize("host", ["vm", "box-7"])
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(2, "No such file or directory", "/none"), "no such file or directory: /none"),
        (ConfigError("a server refuses the keys of host {}"), "a server refuses the keys of this host"),
        (ConfigError("{} says 12:00"), "this host says 12:00"),
        (ValueError("odd"), "ValueError: odd"),
    ],
)
def test_a_stores_error_is_told_in_words_without_the_hosts_name(
    host: str, error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing() -> Finding:
        raise error if isinstance(error, OSError) else type(error)(str(error).format(host))

    monkeypatch.setattr(socket, "gethostname", lambda: host)
    assert examining._guarded("store", failing).line == words


def test_ctrl_c_says_that_nothing_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> Work:
        raise KeyboardInterrupt

    monkeypatch.setattr("froude.doctor.examine.work", interrupted)
    file = tmp_path / "doctor.json"
    assert main(["doctor", "--json", str(file)]) == 130
    said = capsys.readouterr().err
    assert said == f"froude: interrupted; nothing was written to {file}; the same command starts anew\n"
    assert not file.exists()


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
    memory = found["memory, small"]
    figures = memory["figures"]
    assert memory["verdict"] == "ok"
    assert figures["peak_bytes"] == pytest.approx(
        figures["planned_bytes"], rel=0.02
    )  # of the process: several times that
