"""A node falls silent, another takes its run up, and then it wakes: its worker goes on where it was stopped."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from froude.checkpoint import tools
from froude.config import Run
from froude.launch.cluster import SimulatedCluster, simulated
from froude.launch.elastic import Progress, train
from froude.promote.token_audit import token_account
from froude.runlog import LogReader, Record
from froude.study import Study

pytestmark = pytest.mark.long

RUN = Run(
    name="large",
    model={"width": 32},
    slots=12,
    reduction="exact",
    tokens=768 * 600,
    checkpoint_every=10,
    schedule={"warmup_tokens": 768 * 10},
    eval_windows=64,
)


@dataclass
class Silence:
    """Stops the only node's processes and adds another node; wakes them when that one has committed.

    All but the raylet, which would find out that it is dead, and take its worker with it.
    """

    cluster: SimulatedCluster
    log: LogReader
    stopped: list[psutil.Process] = field(default_factory=list)
    before: list[Record] = field(default_factory=list)
    worker: psutil.Process | None = None
    asleep: float = 0.0  # CPU seconds of the worker when it was woken, and later
    awake: float = 0.0

    def __call__(self, now: Progress) -> None:
        if now.step >= 3 * RUN.checkpoint_every and not self.stopped:
            raylet = psutil.Process(self.cluster.nodes[0].raylet_pid)
            self.stopped = [raylet, *raylet.children(recursive=True)]
            for process in self.stopped:
                process.send_signal(signal.SIGSTOP)
            (worker,) = (found for found in self.stopped if "RayTrainWorker" in " ".join(found.cmdline()))
            self.asleep, self.worker = used(worker), worker
            self.cluster.add_node()
        elif self.worker and not self.before:
            records = self.log.records()
            if records[-1].attempt == 2 and records[-1].kind == "checkpoint":
                self.before = records
                for process in self.stopped[1:]:
                    process.send_signal(signal.SIGCONT)
        elif self.worker:
            with contextlib.suppress(psutil.NoSuchProcess):
                self.awake = used(self.worker)


def used(process: psutil.Process) -> float:
    """CPU seconds."""
    return sum(process.cpu_times()[:2])


def test_a_worker_that_wakes_on_a_silenced_node_changes_nothing_that_a_reader_sees(tmp_path: Path) -> None:
    study = Study(tmp_path / "study")
    place = study.location / "runs" / RUN.name
    with simulated(1, log_dir=tmp_path / "logs") as cluster:
        silence = Silence(cluster, LogReader(place))
        result = train(RUN, study.location, cluster=cluster, progress=silence, spares=False)
        silence.stopped[0].send_signal(signal.SIGCONT)
        psutil.wait_procs(silence.stopped, timeout=60)
    assert silence.before
    assert silence.awake > silence.asleep
    assert result.finished
    assert result.world_sizes == [1, 1]
    records = LogReader(place).records()
    assert records[: len(silence.before)] == silence.before
    assert {record.attempt for record in records[len(silence.before) :]} == {2}
    tokens = token_account(study, RUN.name, RUN)
    assert (tokens.expected, tokens.skipped, tokens.repeated) == (RUN.tokens, 0, 0)
    assert not [damage for _, damage in tools.verify(place, records) if damage]
