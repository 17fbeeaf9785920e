"""One driver with its cluster, as seen from outside: its processes, and what it says of the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from froude.launch.cluster import NodeHandle
from froude.launch.control_channel import Beat

MODULE = "froude.launch.chaos.driver"
WORKER = "RayTrainWorker"  # in the title that Ray gives to such a process
END_SECONDS = 60.0


@dataclass(frozen=True)
class Seen:
    """A beat, and when it was seen (monotonic seconds of this process)."""

    at: float
    beat: Beat


class Life:
    """A driver process from its start to its end; what it says is read by a thread.

    `nodes` are the cluster's worker nodes, `beats` the signs of life so far, `end` the kind and text of the end that it
    announced, `refused` what it could not do.
    """

    def __init__(self, order: Mapping[str, Any], environment: Mapping[str, str], log: Path) -> None:
        self.nodes: list[NodeHandle] = []
        self.beats: list[Seen] = []
        self.end: tuple[str, str] | None = None
        self.refused: list[str] = []
        self.log = log
        self.began = time.monotonic()
        self._host = 0
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **environment},
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._write(order)

    def request(self, operation: str, node: NodeHandle | None = None) -> None:
        """Have the cluster changed: add, kill or drain."""
        self._write({"op": operation, "node_id": node.node_id if node else ""})

    def over(self) -> bool:
        """Whether the driver has ended, and all that it said is read."""
        return self.process.poll() is not None and not self._reader.is_alive()

    def family(self) -> list[psutil.Process]:
        """The driver and all processes below it, parents first."""
        try:
            driver = psutil.Process(self.process.pid)
            return [driver, *driver.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def workers(self) -> list[psutil.Process]:
        """The processes that train, by process id."""
        return sorted((p for p in self.family() if WORKER in title(p)), key=lambda process: process.pid)

    def head(self) -> list[psutil.Process]:
        """What runs on the head: the driver, and Ray's daemons and actors there."""
        try:
            driver, host = psutil.Process(self.process.pid), psutil.Process(self._host)
        except psutil.NoSuchProcess:
            return []
        others = {node.raylet_pid for node in self.nodes}
        found = [driver]
        for daemon in host.children():
            if daemon.pid not in others and not title(daemon).startswith("ray::"):
                found += [daemon, *daemon.children(recursive=True)]
        return found

    def close(self) -> None:
        """End the driver and its cluster, gently if it still can."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                send(self.family(), signal.SIGKILL)
                self.process.wait()
        self._reader.join(END_SECONDS)

    def _write(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except OSError:  # it has ended: `over` and `end` tell
            return

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            now, message = time.monotonic(), json.loads(line)
            event = message.pop("event")
            if event == "beat":
                self.beats.append(Seen(now, Beat(**message)))
            elif event == "nodes":
                self._host = message["host"]
                self.nodes = [NodeHandle(**node) for node in message["nodes"]]
            elif event == "refused":
                self.refused.append(message["text"])
            else:
                self.end = (message["kind"], message["text"])


def title(process: psutil.Process) -> str:
    """How a process calls itself; empty if it is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def lives(process: psutil.Process) -> bool:
    """Whether a process still runs; one that nobody has waited for yet does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def stands_still(process: psutil.Process) -> bool:
    """Whether no thread of a process runs any more: each has stopped, or the process is gone."""
    try:
        threads = [psutil.Process(thread.id) for thread in process.threads()] if psutil.LINUX else [process]
        return all(thread.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE) for thread in threads)
    except psutil.NoSuchProcess:
        return not lives(process)


def send(processes: list[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to each of these processes that still lives."""
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue
