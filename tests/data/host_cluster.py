"""A Ray cluster of hosts (host_network.py), used as the README says: `ray start` on each, jobs, a study in a bucket.

Besides the head and the workers there is a host with Ceph's RADOS Gateway, and the user's, which alone has this code.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gateway
from host_network import CHECKOUT, HOME, SUBNET, VENV, Host, Network, wait_for

from froude.launch.ray_internals import MODERATE_KNOBS

S3_PORT = 8000
#: The first host.
S3 = gateway.Gateway(f"http://{SUBNET}1:{S3_PORT}")
CODE = f"{HOME}/froude"
PATIENCE = 300.0  # of anything that the cluster is asked for, on two busy cores
SMALL = "--object-store-memory=100000000"

#: Prints each record of a run's commit log when it is there; the store may be away for a while.
FOLLOW = """
import json, sys, time
from froude.runlog import LogReader
from froude.store import Location
log, seen = LogReader(Location.parse(sys.argv[1])), 0
while True:
    try:
        records = log.records()
    except OSError:
        records = []
    for record in records[seen:]:
        told = {name: getattr(record, name) for name in ("kind", "attempt", "world", "step")}
        print(json.dumps(told), flush=True)
    seen = max(seen, len(records))
    time.sleep(0.3)
"""


class Job:
    """A job that was submitted; its log is that of the driver."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float = PATIENCE) -> str:
        """Its log, when it has ended."""
        wait_for(lambda: self.process.poll() is not None, f"a job ends; {self.log}", seconds)
        return self.text


class HostCluster:
    """The hosts of one cluster; `head` is where it is submitted to, and may be another one later."""

    head: Host

    def __init__(self, network: Network) -> None:
        self.network = network
        self.s3, self.user = network.boot("s3"), network.boot("user")
        for host in (self.s3, self.user):
            for folder in ("platform", "jobs", "search_spaces", "tests/data"):
                leave = shutil.ignore_patterns("__pycache__")
                shutil.copytree(CHECKOUT / folder, host.path(f"{CODE}/{folder}"), ignore=leave)
        program = [str(VENV / "bin/python"), f"{CODE}/tests/data/gateway.py", "0.0.0.0", str(S3_PORT)]
        self.s3.start(*program, environment={})

    def create_bucket(self) -> None:
        """Make the bucket `bucket`, when the server answers."""
        wait_for(lambda: "AWS_REGION" in self.s3.log.read_text(), "the S3 server", gateway.PATIENCE_S)
        self.python(
            "from froude.store import Location; "
            "Location.parse('s3://bucket').fsspec()[0].call_s3('create_bucket', Bucket='bucket')"
        )

    def python(self, script: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        """What a script prints on the user's host."""
        done = self.run("python", "-c", script, *arguments, environment=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(
        self, *command: str, environment: Mapping[str, str] | None = None, seconds: float = PATIENCE
    ) -> subprocess.CompletedProcess[str]:
        """A command on the user's host, with the keys, outside of the cluster."""
        known = {
            **S3.environment(),
            "PYTHONPATH": f"{CODE}/platform:{CODE}/tests/data",
            **(environment or {}),
        }
        return self.user.run(*command, environment=known, seconds=seconds)

    def start_head(self, name: str) -> None:
        self.head = self.network.boot(name)
        own = ("--head", "--port=6379", "--dashboard-host=127.0.0.1", "--num-cpus=0", "--disable-usage-stats")
        self._ray(self.head, {}, *own).wait()
        wait_for(self._serves_jobs, f"the head; {self.head.log}", PATIENCE)

    def _serves_jobs(self) -> bool:
        listed = self.user.run("ray", "job", "list", environment=self._forwarded(), via=self.head)
        return listed.returncode == 0

    def join(self, host: Host, environment: Mapping[str, str] | None = None) -> None:
        """`ray start` on a host, with the processor that stands for a GPU; returns before the head knows of it."""
        self._ray(host, environment or {}, f"--address={self.head.address}:6379", "--num-cpus=1")

    def _ray(self, host: Host, environment: Mapping[str, str], *arguments: str) -> subprocess.Popen[bytes]:
        known = {**S3.environment(), **MODERATE_KNOBS, "RAY_AUTH_MODE": "disabled", **environment}
        return host.start("ray", "start", SMALL, *arguments, environment=known)

    def _forwarded(self) -> dict[str, str]:
        own = {"RAY_ADDRESS": "http://localhost:8265", "RAY_AUTH_MODE": "disabled"}
        return {**own, "PYTHONUNBUFFERED": "1"}

    def submit(self, name: str, *command: str) -> Job:
        """`ray job submit` from the user's host, through the forwarded port of the head."""
        log = self.network.logs / f"job-{name}.log"
        submit = ["ray", "job", "submit", "--submission-id", name, "--runtime-env", "jobs/runtime_env.yaml"]
        process = self.user.start(
            *("env", "-C", CODE, *submit, "--working-dir", ".", "--", "python", *command),
            environment=self._forwarded(),
            log=log,
            via=self.head,
        )
        return Job(process, log)


class Follower:
    """The commit log of a run, as it grows, read from the user's host."""

    def __init__(self, cluster: HostCluster, run: str) -> None:
        self.log = cluster.network.logs / "records.log"
        self.log.touch()
        cluster.user.start(
            *("python", "-c", FOLLOW, run),
            environment={**S3.environment(), "PYTHONPATH": f"{CODE}/platform"},
            log=self.log,
        )

    def records(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def until(
        self, ready: Callable[[dict[str, Any]], bool], what: str, job: Job, seconds: float = PATIENCE
    ) -> None:
        """Wait for a record that is so; AssertionError if the job ends before there is one."""

        def look() -> bool:
            over = job.process.poll() is not None
            found = any(map(ready, self.records()))
            assert found or not over, f"the job ended before {what}:\n{job.text[-3000:]}"
            return found

        wait_for(look, f"{what}; {job.log}", seconds)
