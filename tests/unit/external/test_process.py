"""A command and all that it starts is gone when its call ends, however that comes about."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from froude.external import process
from froude.external.process import run

PYTHON = [sys.executable, "-I", "-S", "-c"]
#: Two children, one in a session of its own as torchrun's workers are, whose numbers go to standard output.
CHILDREN = """
import subprocess, signal, sys, time
for own in (False, True):
    print(subprocess.Popen(["sleep", "600"], start_new_session=own).pid, flush=True)
"""


def gone(pids: str) -> bool:
    """Whether no process of these numbers runs, a moment later at most."""
    until = time.monotonic() + 5
    alive = [int(pid) for pid in pids.split()]
    while alive and time.monotonic() < until:
        alive = [pid for pid in alive if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
        time.sleep(0.02)
    return not alive


@pytest.mark.parametrize(
    ("code", "exits", "says"),
    [
        ("print('fine')", 0, ""),
        ("import sys; sys.exit('no such shard')", 1, 'exited with 1, and wrote at last "no such shard"'),
        ("import os; os.kill(os.getpid(), 9)", 137, "was ended by signal 9, and wrote nothing"),
    ],
)
def test_how_a_command_ended_is_told_with_its_last_line(tmp_path, code, exits, says):
    ended = run([*PYTHON, code], tmp_path, {})
    assert ended.code == exits
    assert says in ended.why(0, tmp_path)


def test_what_cannot_be_started_has_failed(tmp_path):
    ended = run(["/no/such/program"], tmp_path, {})
    assert (ended.code, "can't be started" in ended.why(0, tmp_path)) == (127, True)


def test_children_that_a_command_leaves_behind_are_ended(tmp_path):
    assert run([*PYTHON, CHILDREN], tmp_path, {}).code == 0
    assert gone((tmp_path / process.STDOUT).read_text())


@pytest.mark.slow
def test_a_time_limit_ends_a_command_that_hangs_and_will_not_listen(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.2)
    deaf = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    ended = run([*PYTHON, deaf + CHILDREN + "time.sleep(600)"], tmp_path, {}, time_limit=0.6)
    assert ended.timed_out
    assert "ran into its time limit of 0.6 s" in ended.why(0.6, tmp_path)
    assert gone((tmp_path / process.STDOUT).read_text())


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_who_waits_may_stop_it(tmp_path, error):
    def stop() -> None:
        if (tmp_path / process.STDOUT).read_text().count("\n") == 2:
            raise error

    with pytest.raises(error):
        run([*PYTHON, CHILDREN + "time.sleep(600)"], tmp_path, {}, tick=stop)
    assert gone((tmp_path / process.STDOUT).read_text())


def test_a_command_does_not_outlive_a_froude_that_was_killed(tmp_path):
    out = tmp_path / process.STDOUT
    command = [*PYTHON, CHILDREN + "time.sleep(600)"]
    code = "from pathlib import Path\nfrom froude.external.process import run\n"
    code += f"run({command!r}, Path({str(tmp_path)!r}), {{}})"
    killed = subprocess.Popen([sys.executable, "-c", code], env=os.environ)
    while not out.exists() or out.read_text().count("\n") < 2:
        assert killed.poll() is None
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert gone(out.read_text())


def test_the_environment_is_added_to_and_standard_input_is_empty(tmp_path: Path):
    code = (
        "import os, sys; print(os.environ['MINE'], 'PATH' in os.environ, sys.stdin.read() == '', os.getcwd())"
    )
    run([*PYTHON, code], tmp_path, {"MINE": "yes"})
    assert (tmp_path / process.STDOUT).read_text().split() == ["yes", "True", "True", str(tmp_path)]
