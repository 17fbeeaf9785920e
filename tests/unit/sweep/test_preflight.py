"""What is checked before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from froude.config import ConfigError, Run
from froude.sweep import preflight


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(preflight, "CGROUP", tmp_path)
    monkeypatch.setattr(
        preflight.psutil, "virtual_memory", lambda: type("M", (), {"available": 8 * preflight.GIB})
    )
    return tmp_path


def limit(cgroup: Path, most: str, current: int, inactive: int) -> None:
    (cgroup / "memory.max").write_text(f"{most}\n")
    (cgroup / "memory.current").write_text(f"{current}\n")
    (cgroup / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n")


def test_free_memory_is_the_machines_without_a_cgroup(cgroup: Path) -> None:
    assert preflight.free_memory() == 8 * preflight.GIB


def test_a_cgroup_can_leave_less(cgroup: Path) -> None:
    limit(cgroup, str(4 * preflight.GIB), 3 * preflight.GIB, preflight.GIB)
    assert preflight.free_memory() == 2 * preflight.GIB
    limit(cgroup, "max", 3 * preflight.GIB, 0)
    assert preflight.free_memory() == 8 * preflight.GIB
    limit(cgroup, str(100 * preflight.GIB), 0, 0)
    assert preflight.free_memory() == 8 * preflight.GIB


def test_a_worker_has_the_cpus_of_its_threads_and_a_command_those_that_it_reserves() -> None:
    own = Run(compute={"threads": 3}, batch=768, tokens=768 * 10)
    commanded = Run(trainer={"command": ["train"], "cpus": 2}, batch=768, tokens=768 * 10)
    assert [preflight.cpus(runs) for runs in ([own, commanded], [commanded], [])] == [3, 2, 1]


def test_too_little_memory_is_an_error_with_both_numbers(cgroup: Path) -> None:
    preflight.check_memory(8 * preflight.GIB, what="the quickstart")
    with pytest.raises(
        ConfigError, match=r"the quickstart needs 9\.0 GiB of free memory, but 8\.0 GiB are free"
    ):
        preflight.check_memory(9 * preflight.GIB, what="the quickstart")
