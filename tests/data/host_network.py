"""Hosts that share nothing but a network, on one machine: each a set of Linux namespaces (network, mount, UTS, PID).

A host has an address, a hostname, /tmp, /home, /root, /run and /dev/shm of its own in memory, and a read-only root. The
virtual environment is on every host at its own path, read-only, as installed software is; this checkout is on none. Its
first process is the parent of all: the kernel ends them with it, and it with the thread that made the host. Nothing has
a name outside: two of these networks can be there at once, and none leaves anything behind. Needs root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

CHECKOUT = Path(__file__).resolve().parents[2]
VENV = Path(sys.prefix)
HOME = "/home/ubuntu"
SUBNET = "10.77.0."
TOOLS = ("ip", "tc", "unshare", "nsenter", "setpriv")
BOOT_SECONDS = 30.0

#: How a host knows its own name: as it should be, as Debian's installer writes it, or not at all.
NAMES = {
    "right": "127.0.0.1 localhost\n{address} {name}\n",
    "loopback": "127.0.0.1 localhost\n127.0.1.1 {name}\n",
    "none": "127.0.0.1 localhost\n",
}

# Environment and interpreter are put by before what lies around them is hidden. bash reaps the host's orphans.
FIRST_PROCESS = r"""
set -e
name=$1 venv=$2 python=$3 checkout=$4
hostname "$name"
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/venv /mnt/python
mount --bind "$venv" /mnt/venv
mount --bind "$python" /mnt/python
printf '%s' "$5" > /mnt/hosts
: > /mnt/resolv.conf
mount --bind /mnt/hosts /etc/hosts
[ ! -e /etc/resolv.conf ] || mount --bind /mnt/resolv.conf /etc/resolv.conf
for place in /tmp /home /root /run /var/tmp /var/lib/ceph "$checkout"; do
    [ ! -d "$place" ] || mount -t tmpfs -o mode=1777 tmpfs "$place"
done
mount -t tmpfs -o size=1g,mode=1777 tmpfs /dev/shm
mkdir -p "$venv" "$python" /home/ubuntu
mount --bind /mnt/venv "$venv"; mount -o remount,bind,ro "$venv"
mount --bind /mnt/python "$python"; mount -o remount,bind,ro "$python"
mount -o remount,bind,ro /
ip link set lo up
touch /run/booted
trap '' INT TERM HUP
while :; do sleep 3600 & wait; done
"""


#: What hosts are made with.
TRIAL = """
mount -t tmpfs tmpfs /mnt
ip link add switch type bridge
ip link add cable type veth peer name eth0
tc qdisc replace dev eth0 root tbf rate 20mbit burst 64kb latency 1s
"""


def missing() -> str:
    """What keeps hosts from being made here; empty if nothing does."""
    if sys.platform != "linux":
        return "hosts are made of Linux namespaces, and this is another system"
    if os.geteuid():
        return "hosts are made of namespaces, for which one must be root"
    if absent := [tool for tool in TOOLS if not shutil.which(tool)]:
        return f"hosts need {', '.join(absent)}: apt-get install iproute2 util-linux"
    tried = subprocess.run([*_unshare(), "sh", "-ec", TRIAL], capture_output=True, text=True, check=False)
    return f"hosts need namespaces, but the kernel says: {tried.stderr.strip()}" if tried.returncode else ""


def wait_for(ready: Callable[[], object], what: str, seconds: float) -> None:
    """TimeoutError, saying what was waited for, if `ready` is not true within so many seconds."""
    until = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > until:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        threading.Event().wait(0.1)


def _unshare() -> list[str]:
    return ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]


def _ip(inside: int, *commands: str) -> None:
    """`ip`, in the network of that process."""
    subprocess.run(
        ["nsenter", "-t", str(inside), "-n", "ip", "-batch", "-"],
        input="\n".join(commands),
        text=True,
        check=True,
        capture_output=True,
    )


class Host:
    """One host, from its start until `kill`, `power_off` or the end of its network."""

    def __init__(self, network: Network, name: str, number: int, names: str) -> None:
        self.network, self.name, self.address = network, name, f"{SUBNET}{number}"
        self.log = network.logs / f"{name}.log"
        known = NAMES[names].format(address=self.address, name=name)
        arguments = [name, str(VENV), sys.base_prefix, str(CHECKOUT), known]
        self._outer = network.process([*_unshare(), "bash", "-c", FIRST_PROCESS, name, *arguments], self.log)
        try:
            wait_for(self._booted, f"host {name} starts; {self.log}", BOOT_SECONDS)
            # Open, it outlives the processes: whoever asks a host that was killed is refused.
            self._network = os.open(self.network_file, os.O_RDONLY)
            cable, switch = f"host{number}", network.switch
            peer = f"link add {cable} type veth peer name eth0 netns {self.pid}"
            _ip(switch, peer, f"link set {cable} master switch up")
            own = f"addr add {self.address}/24 dev eth0"
            gateway = f"route add default via {SUBNET}254"  # leads nowhere; Ray asks by which way it would go
            _ip(self.pid, own, "link set eth0 up", gateway)
        except BaseException:
            self._outer.kill()
            raise
        self._cable = cable

    def _booted(self) -> bool:
        if self._outer.poll() is not None:
            raise RuntimeError(f"host {self.name} did not start: {self.log.read_text()[-500:]}")
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
        self.pid = int(children[0]) if children else 0
        return bool(children) and self.path("/run/booted").exists()

    @property
    def network_file(self) -> str:
        """What stands for its network namespace."""
        return f"/proc/{self.pid}/ns/net"

    def path(self, inside: str) -> Path:
        """A file of the host, as others on this machine reach it."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def command(
        self, command: Sequence[str], environment: Mapping[str, str], *, network: Host | None = None
    ) -> list[str]:
        """What runs a command there; `network`: in that host's network, as through a forwarded port."""
        known = {
            "HOME": HOME,
            "USER": "ubuntu",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PATH": f"{VENV}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            **environment,
        }
        enter = ["nsenter", "-t", str(self.pid), "-m", "-u", "-p", f"--net={(network or self).network_file}"]
        return [*enter, "--", "env", "-i", "-C", HOME, *(f"{k}={v}" for k, v in known.items()), *command]

    def start(
        self, *command: str, environment: Mapping[str, str], log: Path | None = None, via: Host | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command there; what it says goes to `log`, or to the host's."""
        return self.network.process(self.command(command, environment, network=via), log or self.log)

    def run(
        self, *command: str, environment: Mapping[str, str], seconds: float = 120, via: Host | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there to its end; TimeoutExpired if it takes longer."""
        whole = self.command(command, environment, network=via)
        return subprocess.run(whole, capture_output=True, text=True, timeout=seconds, check=False)

    def kill(self) -> None:
        """End all of the host's processes at once; its interface stays, and refuses connections."""
        os.kill(self.pid, signal.SIGKILL)
        self._outer.wait()

    def unplug(self) -> None:
        """Draw the cable: nothing reaches the host, and nothing says so."""
        _ip(self.network.switch, f"link set {self._cable} down")

    def plug(self) -> None:
        _ip(self.network.switch, f"link set {self._cable} up")

    def limit(self, rate: str) -> None:
        """How much the host may send at most (as tc writes it: 20mbit); empty for as much as it can."""
        queue = ["tc", "qdisc"]
        subprocess.run(
            ["nsenter", "-t", str(self.pid), "-n", *queue, "replace", "dev", "eth0", "root"]
            + (["tbf", "rate", rate, "burst", "64kb", "latency", "1s"] if rate else ["pfifo"]),
            check=True,
            capture_output=True,
        )

    def power_off(self) -> None:
        """Unplug, then kill: the others hear nothing of it."""
        self.unplug()
        self.kill()

    def close(self) -> None:
        if self._outer.poll() is None:
            self.kill()
        os.close(self._network)


class Network:
    """A switch and the hosts at it; all of them end with the statement, or with the thread that made them."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.hosts: dict[str, Host] = {}

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        self._switch = self.process(["unshare", "--net", "sleep", "infinity"], self.logs / "switch.log")
        own = os.stat("/proc/self/ns/net").st_ino
        wait_for(lambda: os.stat(f"/proc/{self.switch}/ns/net").st_ino != own, "a network", BOOT_SECONDS)
        _ip(self.switch, "link add switch type bridge", "link set switch up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in self.hosts.values():
            host.close()
        self._switch.kill()
        self._switch.wait()

    @property
    def switch(self) -> int:
        return self._switch.pid

    def boot(self, name: str, names: str = "right") -> Host:
        """A new host; `names` (of NAMES) says how it knows its own name."""
        self.hosts[name] = Host(self, name, len(self.hosts) + 1, names)
        return self.hosts[name]

    def process(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """A process of this machine that is killed with the thread that starts it."""
        with log.open("ab") as out:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
