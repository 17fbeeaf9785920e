"""Runs one command and lets nothing of it live on; a program of its own, of the standard library only.

    python guard.py GRACE COMMAND…

Its standard input is a pipe that says nothing: when the other end is closed, by whoever started this or by that
process's death, of whatever kind, the command and all that it has started get SIGTERM, and SIGKILL after GRACE seconds.
So do processes that the command leaves behind when it ends. The exit code is the command's, 128 + N after signal N.
Without a pipe, as in a job's script, the death of the process that started this does the same, on Linux.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import stat
import subprocess
import sys
import time

ADOPT, PARENTS_DEATH = 36, 1  # PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG of prctl(2)
NOT_FOUND = 127


def main(arguments: list[str]) -> int:
    """Run the command to its end, or until this is told to stop; its exit code."""
    grace, command = float(arguments[0]), arguments[1:]
    told = [0] if stat.S_ISFIFO(os.fstat(0).st_mode) else []
    try:  # orphans of the command, also those in sessions of their own, become children of this process
        ctypes.CDLL(None).prctl(ADOPT, 1, 0, 0, 0)
        if not told:
            ctypes.CDLL(None).prctl(PARENTS_DEATH, int(signal.SIGTERM), 0, 0, 0)
    except (AttributeError, OSError):
        pass  # not Linux: its process group is all that can be found
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    stops: list[int] = []
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: stops.append(number))
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"{command[0]} can't be started: {error.strerror}", file=sys.stderr)
        return NOT_FOUND
    while not ended(child.pid) and not stops:
        readable, _, _ = select.select([*told, woken], [], [])
        if woken in readable:
            os.read(woken, 512)
        if 0 in readable and not os.read(0, 512):
            break
    end_all(child.pid, grace)
    code = child.wait()
    return code if code >= 0 else 128 - code


def ended(pid: int) -> bool:
    """Whether the child has ended; it is left a zombie, so that its number stays its own, and its group's."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end_all(pid: int, grace: float) -> None:
    """End the child's process group and all descendants of this process."""
    until = time.monotonic() + grace
    send(pid, signal.SIGTERM)
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    while alive(pid):
        send(pid, signal.SIGKILL)
        time.sleep(0.02)


def send(pid: int, number: int) -> None:
    """Send a signal to the child's group and to all descendants."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # macOS: EPERM where all that is left are zombies
        pass
    for other in descendants():
        try:
            os.kill(other, number)
        except ProcessLookupError:
            pass


def alive(pid: int) -> bool:
    """Whether anything of the command still runs; its orphans are reaped on the way."""
    for other in descendants(zombies=True):
        if other != pid:
            try:
                os.waitpid(other, os.WNOHANG)
            except ChildProcessError:
                pass  # not an own child, or not any more
    return not ended(pid) or bool(descendants())


def descendants(*, zombies: bool = False) -> list[int]:
    """Processes below this one, by /proc; without it none."""
    parents: dict[int, int] = {}
    names = os.listdir("/proc") if os.path.isdir("/proc") else []
    for name in filter(str.isdigit, names):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        parents[int(name)] = int(parent) if zombies or state not in (b"Z", b"X") else 0
    found, new = set[int](), {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return sorted(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
