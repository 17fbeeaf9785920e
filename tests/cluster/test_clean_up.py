"""A simulated cluster ends with its driver, however that ends, and leaves neither processes nor files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

ENDINGS = ("return", "exception", "SIGINT", "SIGTERM", "SIGKILL", "host SIGKILL")

DRIVER = """
import sys
from pathlib import Path
import ray
from froude.launch.cluster import simulated

with simulated(1, log_dir=Path(sys.argv[1])) as cluster:

    @ray.remote(num_cpus=1)
    class Worker:
        def pid(self):
            import os
            return os.getpid()

    worker = Worker.remote()
    print(cluster.host_pid, ray.get(worker.pid.remote()), flush=True)
    word = sys.stdin.readline()
    if word == "exception\\n":
        raise ZeroDivisionError
"""


@dataclass
class Driver:
    process: subprocess.Popen[str]
    host: int
    worker: int
    temp: Path
    logs: Path

    def processes(self) -> list[psutil.Process]:
        """All that belong to the cluster: they inherit the host's environment."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("RAY_TMPDIR") == str(self.temp):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Driver]]:
    """One driver with a cluster for each ending, all at the same time: they must not disturb each other."""
    script = tmp_path_factory.mktemp("drivers") / "driver.py"
    script.write_text(DRIVER)
    started: list[subprocess.Popen[str]] = []
    drivers: dict[str, Driver] = {}
    try:
        for ending in ENDINGS:
            logs = tmp_path_factory.mktemp("logs")
            started.append(
                subprocess.Popen(
                    [sys.executable, str(script), str(logs)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            drivers[ending] = Driver(started[-1], 0, 0, Path(), logs)
        for driver in drivers.values():
            assert driver.process.stdout is not None
            driver.host, driver.worker = map(int, driver.process.stdout.readline().split())
            driver.temp = Path(psutil.Process(driver.host).environ()["RAY_TMPDIR"])
        yield drivers
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_is_left(drivers: dict[str, Driver], ending: str) -> None:
    driver = drivers[ending]
    assert driver.process.poll() is None
    before = {process.pid for process in driver.processes()}
    assert {driver.host, driver.worker} <= before
    others = {name: other for name, other in drivers.items() if other.process.poll() is None and name != ending}

    if ending in ("return", "exception"):
        driver.process.communicate(f"{ending}\n", timeout=60)
    elif ending == "host SIGKILL":
        os.kill(driver.host, signal.SIGKILL)
    else:
        driver.process.send_signal(getattr(signal, ending))

    if ending != "host SIGKILL":
        driver.process.wait(timeout=60)
    if ending not in ("SIGKILL", "host SIGKILL"):
        assert driver.processes() == []
        assert not driver.temp.exists()
    assert wait_until(lambda: driver.processes() == []), driver.processes()
    if ending == "host SIGKILL":
        driver.process.communicate("return\n", timeout=60)
    else:
        assert wait_until(lambda: not driver.temp.exists())
        assert (driver.logs / "ray" / "raylet.out").exists()
    assert driver.process.returncode == {
        "return": 0,
        "exception": 1,
        "SIGINT": -signal.SIGINT,
        "SIGTERM": 128 + signal.SIGTERM,
        "SIGKILL": -signal.SIGKILL,
        "host SIGKILL": 0,
    }.get(ending)
    assert all(other.process.poll() is None for other in others.values())


def test_the_next_start_removes_what_a_killed_cluster_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from froude.launch import cluster

    monkeypatch.setattr(cluster, "_temp_root", lambda: str(tmp_path))
    stale = tmp_path / f"{cluster.PREFIX}stale"
    (stale / "ray").mkdir(parents=True)
    (stale / "lock").touch()
    used = tmp_path / f"{cluster.PREFIX}used"
    used.mkdir()
    with cluster._locked(used):
        cluster._remove_stale()
        assert not stale.exists()
        assert used.exists()
    cluster._remove_stale()
    assert not used.exists()


def test_sockets_fit_whatever_the_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from froude.launch import cluster

    deep = tmp_path / ("d" * 80)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    assert cluster._temp_root() == "/tmp"
    monkeypatch.setattr("tempfile.tempdir", "/var/tmp")
    assert cluster._temp_root() == "/var/tmp"


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"nodes": 1, "cpus_per_node": 0}])
def test_a_cluster_without_workers_is_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    from froude.launch.cluster import simulated

    with pytest.raises(ValueError, match=">= 1, got 0"), simulated(**wrong, log_dir=tmp_path):
        pass
