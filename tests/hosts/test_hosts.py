"""One run on hosts that share only a network and a store, as the README's cloud path has it, and all that befalls it.

`make campaign` plays each scenario alone (benchmarks/campaign/hosts.py).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gateway
import host_network
import host_scenarios as scenarios
import pytest

pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Course:
    """What a run went through: its life, the first driver's words, addresses of hosts that joined, the verdict."""

    life: scenarios.Life
    words: str
    unlike: str
    refused: str
    verdict: str


MAKER = """
import sys, threading
from pathlib import Path
import host_network
with host_network.Network(Path(sys.argv[1])) as network:
    host = network.boot("one")
    host.start("sleep", "infinity", environment={})
    host_network.wait_for(lambda: len(list(host.path("/proc").glob("[0-9]*"))) > 2, "it sleeps", 10)
    print(host.pid, flush=True)
    threading.Event().wait()
"""


@pytest.fixture(scope="module")
def possible() -> None:
    if why := host_network.missing():
        pytest.skip(why)


@pytest.fixture(scope="module")
def course(possible: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Course]:
    if not gateway.installed():
        pytest.skip(gateway.MISSING)
    with host_network.Network(tmp_path_factory.mktemp("hosts")) as network:
        life = scenarios.Life(network)
        life.begin(
            {
                "loopback": {"names": "loopback", "clock": -300},
                "nameless": {"names": "none", "clock": 300},
                "lost": {},
            }
        )
        life.until(3, "all begin")
        scenarios.lost_host(life, "lost", left=2)
        unlike = scenarios.unlike_host(life, "unlike", world=2)
        scenarios.fresh_host(life, "fresh", world=3)
        scenarios.partition(life, "loopback", left=2)
        refused = scenarios.wrong_secret(life, "refused", world=2)
        words = life.job.text
        scenarios.lost_head(life, workers=2)
        life.finish()
        yield Course(life, words, unlike, refused, life.verify())


def test_a_host_may_resolve_its_own_name_wrongly_or_not_at_all(course: Course) -> None:
    """Or gloo would listen on 127.0.1.1, where nobody else finds it, or nowhere."""
    assert course.life.seen[0] == "all begin: 3 workers"


def test_the_run_goes_on_as_hosts_come_and_go(course: Course) -> None:
    assert course.life.seen[1:] == [
        "lost is lost: 2 workers",
        "unlike joins and is left out: 2 workers",
        "fresh joins: 3 workers",
        "loopback is cut off: 2 workers",
        "refused joins and is left out: 2 workers",
        "another head: 2 workers",
    ]


def test_a_host_that_computes_otherwise_is_named(course: Course) -> None:
    (line,) = [line for line in course.words.splitlines() if f"left out: host {course.unlike}" in line]
    assert "instructions is 'DEFAULT' instead of" in line


def test_a_host_with_wrong_keys_is_named(course: Course) -> None:
    (line,) = [line for line in course.words.splitlines() if f"left out: host {course.refused}" in line]
    assert "the keys of host refused (SignatureDoesNotMatch)" in line
    assert "AWS_SECRET_ACCESS_KEY" in line


def test_every_bit_is_that_of_an_undisturbed_run(course: Course) -> None:
    assert course.life.finished, course.life.job.text[-2000:]
    assert "FAIL" not in course.verdict
    assert course.verdict.endswith("exit code 0"), course.verdict


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGKILL])
def test_hosts_end_with_whoever_made_them(possible: None, tmp_path: Path, way: signal.Signals) -> None:
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(host_network.__file__).parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with maker:
        assert maker.stdout
        host = pid_namespace(Path("/proc") / maker.stdout.readline().strip())
        assert host
        inside = [process for process in Path("/proc").glob("[0-9]*") if pid_namespace(process) == host]
        assert len(inside) >= 3  # the first process, what it waits for, and what was started there
        maker.send_signal(way)
    host_network.wait_for(lambda: host not in map(pid_namespace, inside), "a host's processes end", 10)


def pid_namespace(process: Path) -> int:
    """0 where there is no such process any more."""
    try:
        return (process / "ns/pid").stat().st_ino
    except OSError:
        return 0
