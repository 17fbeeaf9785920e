"""A simulated cluster ends with its driver, however that ends, and leaves neither processes nor files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from waiting import wait_until

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
    sys.stdin.readline()
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
                mine = process.environ().get("RAY_TMPDIR") == str(self.temp)
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found


@contextmanager
def driver(folder: Path) -> Iterator[Driver]:
    """A process that has started a cluster of one node, with a worker on it, and waits for a word."""
    script = folder / "driver.py"
    script.write_text(DRIVER)
    command = [sys.executable, str(script), str(folder / "logs")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        host, worker = map(int, process.stdout.readline().split())
        temp = Path(psutil.Process(host).environ()["RAY_TMPDIR"])
        yield Driver(process, host, worker, temp, folder / "logs")
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def bystander(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A second cluster on the same machine, which must not notice the end of another."""
    with driver(tmp_path_factory.mktemp("bystander")) as other:
        yield other


# SIGINT, SIGTERM and an ordinary end: test_quickstart.py.
@pytest.mark.long
@pytest.mark.parametrize("ending", ["SIGKILL", "SIGKILL of the host"])
def test_nothing_is_left(bystander: Driver, tmp_path: Path, ending: str) -> None:
    unharmed = {process.pid for process in bystander.processes()}
    with driver(tmp_path) as mine:
        assert {mine.host, mine.worker} <= {process.pid for process in mine.processes()}
        if ending == "SIGKILL of the host":
            os.kill(mine.host, signal.SIGKILL)
            assert wait_until(lambda: mine.processes() == []), mine.processes()
            mine.process.communicate("return\n", timeout=120)
            # 1 is Ray's: it ends a driver that has not reached a head for 60 s, as on a machine slow to get here.
            assert mine.process.returncode in (0, 1)
            return
        mine.process.kill()
        assert mine.process.wait(timeout=60) == -signal.SIGKILL
        # Nobody can tidy up before the process is gone: a moment later.
        assert wait_until(lambda: mine.processes() == [] and not mine.temp.exists()), mine.processes()
        assert (mine.logs / "ray" / "raylet.out").exists()
    assert unharmed <= {process.pid for process in bystander.processes()}


def test_the_next_start_removes_what_a_killed_cluster_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_sockets_fit_whatever_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
