"""What befalls a run on hosts (host_cluster.py): each scenario does one thing to it and waits until it has gone on."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from host_cluster import PATIENCE, Follower, HostCluster, Job
from host_network import Host, Network

from froude.launch.chaos import clock

STUDY = "s3://bucket/study"
RECIPE = """
import sys
from chaos_recipe import write_recipe
from froude.store import Location
write_recipe(Location.parse(sys.argv[1]), steps=int(sys.argv[2]), every=int(sys.argv[3]))
"""
EVERY = 25
SLOW = "20mbit"  # slows steps, and takes no processor from what is to be seen between them


class Life:
    """A run on a cluster of hosts, and what it has gone through; `seen` says so in words, life.log also when."""

    def __init__(self, network: Network, *, steps: int = 900) -> None:
        # A run that takes a change in late must not have ended before.
        self.cluster, self.workers, self.seen = HostCluster(network), dict[str, Host](), list[str]()
        self.steps, self._log, self._began = steps, network.logs / "life.log", time.monotonic()
        self.job: Job
        self.follower: Follower

    def begin(self, workers: Mapping[str, Mapping[str, Any]]) -> None:
        """Start a head and these workers (by name, with what `add` is told), and train on all of them."""
        self.cluster.start_head("head")
        for name, about in workers.items():
            self.add(name, **about)
        self.cluster.create_bucket()
        self.cluster.python(RECIPE, STUDY, str(self.steps), str(EVERY))
        self.note("all are started, and there is a recipe")
        self.follower = Follower(self.cluster, f"{STUDY}/runs/large")
        self.submit("first")

    def submit(self, name: str) -> None:
        self.job = self.cluster.submit(name, "jobs/train.py", f"{STUDY}/recipe.toml")

    def add(
        self, name: str, *, names: str = "right", clock: int = 0, environment: Mapping[str, str] | None = None
    ) -> Host:
        """A new host that joins; `clock`: how many seconds its own is ahead."""
        host = self.workers[name] = self.cluster.network.boot(name, names)
        host.limit(SLOW)
        self.cluster.join(host, {**(wrong_clock(host, clock) if clock else {}), **(environment or {})})
        return host

    def until(self, world: int, what: str, after: int = 0) -> None:
        """Wait until an attempt that came after that one, of so many workers, has committed."""
        self.follower.until(
            lambda r: r["kind"] == "checkpoint" and r["attempt"] > after and r["world"] == world,
            what,
            self.job,
        )
        self.seen.append(f"{what}: {world} workers")
        self.note(self.seen[-1])

    def note(self, what: str) -> None:
        """Write down that this has happened, and after how many seconds."""
        with self._log.open("a") as log:
            log.write(f"{time.monotonic() - self._began:6.1f} {what}\n")

    @property
    def attempt(self) -> int:
        return max((record["attempt"] for record in self.follower.records()), default=0)

    @property
    def finished(self) -> bool:
        return any(record["kind"] == "finished" for record in self.follower.records())

    def finish(self) -> None:
        """Let the run end, as fast as it can."""
        for worker in self.workers.values():
            worker.limit("")
        self.job.wait(2 * PATIENCE)
        self.note("the job has ended")

    def verify(self) -> str:
        """What `froude verify-run --rerun` says from the user's host."""
        done = self.cluster.run("froude", "verify-run", STUDY, "--rerun", seconds=2 * PATIENCE)
        self.note("verified")
        return f"{done.stdout}{done.stderr}exit code {done.returncode}"


def lost_host(life: Life, name: str, left: int) -> None:
    """All of a host's processes are killed."""
    before = life.attempt
    life.workers.pop(name).kill()
    life.until(left, f"{name} is lost", before)


def fresh_host(life: Life, name: str, world: int, **about: Any) -> None:
    """A host that was never there joins."""
    before = life.attempt
    life.add(name, **about)
    life.until(world, f"{name} joins", before)


def partition(life: Life, name: str, left: int) -> None:
    """A host's cable is drawn; put back, it is a stranger to the cluster."""
    before = life.attempt
    life.workers[name].unplug()
    life.until(left, f"{name} is cut off", before)
    life.workers.pop(name).plug()


def unlike_host(life: Life, name: str, world: int) -> str:
    """A host joins whose torch takes other instructions; returns its address."""
    return left_out(life, name, world, {"ATEN_CPU_CAPABILITY": "default"})


def wrong_secret(life: Life, name: str, world: int) -> str:
    """A host joins at which the store's secret is mistyped; returns its address."""
    return left_out(life, name, world, {"AWS_SECRET_ACCESS_KEY": "mistyped"})


def left_out(life: Life, name: str, world: int, environment: Mapping[str, str]) -> str:
    """A host with this environment joins, and the run goes on without it."""
    before = life.attempt
    host = life.add(name, environment=environment)
    life.until(world, f"{name} joins and is left out", before)
    return host.address


def lost_head(life: Life, workers: int) -> None:
    """The head loses its power while its workers live on; a new head and fresh workers take the run over."""
    before = life.attempt
    life.cluster.head.power_off()
    life.job.process.kill()
    life.workers.clear()
    life.cluster.start_head("head-2")
    for number in range(workers):
        life.add(f"fresh-{number + 1}")
    life.submit("second")
    life.until(workers, "another head", before)


def wrong_clock(host: Host, seconds: int) -> dict[str, str]:
    """The environment in which what starts on a host has a clock that is wrong by so much, as under `froude chaos`."""
    with tempfile.TemporaryDirectory() as folder:
        clock.preload(Path(folder))
        shutil.copy(Path(folder) / "clock.so", host.path("/tmp/clock.so"))
    host.path("/tmp/clock").write_bytes(seconds.to_bytes(8, "little", signed=True))
    return {"LD_PRELOAD": "/tmp/clock.so", "RAY_LD_PRELOAD_ON_WORKERS": "1", clock.VARIABLE: "/tmp/clock"}
