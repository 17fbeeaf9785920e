"""A real S3 server: Ceph's RADOS Gateway on loopback, with signatures, policies and conditional writes as in earnest.

One monitor, one object store in memory, no manager; everything lies in a temporary folder and ends with its parent.

    python tests/data/gateway.py [ADDRESS PORT]   # starts it, prints the AWS_* variables, and stays until Ctrl-C
"""

from __future__ import annotations

import ctypes
import http.client
import itertools
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
MISSING = (
    "Ceph's RADOS Gateway is not installed: "
    "apt-get install --no-install-recommends radosgw ceph-mon ceph-osd ceph-common"
)
SECRET = "secret-of-the-tests"
PATIENCE_S = 120  # a start takes 12 s on two cores
# Without authentication the monitor's clients hang unless their mode is crc. Nothing lives long enough to be worth a
# copy; what was deleted gives its memory back at once.
SETTINGS = """\
[global]
fsid = {fsid}
mon_host = v2:127.0.0.1:{monitor}
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
ms_mon_client_mode = crc
keyring = {folder}/none
admin_socket =
run_dir = {folder}
log_file = {folder}/$name.log
mon_data = {folder}/mon
osd_data = {folder}/osd
rgw_data = {folder}/rgw
osd_objectstore = memstore
memstore_device_bytes = {capacity}
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000
rgw_frontends = beast endpoint={address}:{port}
rgw_gc_obj_min_wait = 1
rgw_gc_processor_period = 2
"""
_buckets = itertools.count()


def installed() -> bool:
    """Whether all of the server's programs are on the PATH."""
    return all(map(shutil.which, PROGRAMS))


@dataclass(frozen=True)
class Gateway:
    """A running server; `owner` may do everything, `reader` only read what the owner has."""

    endpoint: str

    def environment(self, user: str = "owner", secret: str = SECRET) -> dict[str, str]:
        """The AWS_* variables with which `user` reaches it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": user,
            "AWS_SECRET_ACCESS_KEY": secret,
        }


@contextmanager
def serve(capacity: int = 8 << 30, address: str = "127.0.0.1", port: int = 0) -> Iterator[Gateway]:
    """Start a server that holds `capacity` bytes in memory, at a port that is free or the one given.

    RuntimeError with the daemons' last words if it fails.
    """
    if not installed():
        raise RuntimeError(MISSING)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-")))
        monitor, free = _free_ports(2)
        port = port or free
        fsid = str(uuid.uuid4())
        settings = folder / "ceph.conf"
        settings.write_text(
            SETTINGS.format(
                fsid=fsid, monitor=monitor, address=address, port=port, folder=folder, capacity=capacity
            )
        )
        for name in ("mon", "osd", "rgw"):
            (folder / name).mkdir()

        def call(program: str, *arguments: str) -> str:
            return _call(program, "-c", str(settings), *arguments)

        def start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
            return stack.enter_context(_daemon([program, "-c", str(settings), *arguments, "-f"], folder))

        _call(
            "monmaptool",
            "--create",
            "--fsid",
            fsid,
            "--addv",
            "a",
            f"[v2:127.0.0.1:{monitor}]",
            f"{folder}/map",
        )
        call("ceph-mon", "-i", "a", "--mkfs", "--monmap", f"{folder}/map")
        start("ceph-mon", "-i", "a")
        disk = str(uuid.uuid4())
        call("ceph", "osd", "new", disk)
        call("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", disk)
        start("ceph-osd", "-i", "0")
        call("radosgw-admin", "user", "create", "--uid=froude", "--display-name=froude", *_keys("owner"))
        subuser = ("--uid=froude", "--subuser=froude:reader", "--access=read", "--key-type=s3")
        call("radosgw-admin", "subuser", "create", *subuser, *_keys("reader"))
        server = start("radosgw", "-n", "client.rgw")
        _until(lambda: _answers(address, port), server, folder)
        yield Gateway(f"http://{address}:{port}")


def _keys(user: str) -> tuple[str, str]:
    return f"--access-key={user}", f"--secret-key={SECRET}"


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _environment() -> dict[str, str]:
    """Ceph's own Python programs must find the system's packages, not ours."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CEPH"))}


def _call(*command: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, env=_environment(), check=False
    )
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


@contextmanager
def _daemon(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is killed on leaving, and by the kernel if the thread that started it ends before."""
    libc = ctypes.CDLL(None)

    def die_with_parent() -> None:
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    with open(folder / f"{command[0]}.out", "wb") as out:
        daemon = subprocess.Popen(
            command, stdout=out, stderr=out, env=_environment(), preexec_fn=die_with_parent
        )
    try:
        yield daemon
    finally:
        daemon.kill()  # asked politely, the store in memory would first write itself to disk
        daemon.wait()


def _answers(address: str, port: int) -> bool:
    connection = http.client.HTTPConnection(address, port, timeout=5)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _until(ready: Callable[[], bool], daemon: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        if daemon.poll() is not None or time.monotonic() > deadline:
            words = "\n".join(f"{path.name}: {path.read_text()[-500:]}" for path in folder.glob("*.out"))
            raise RuntimeError(f"the gateway did not start\n{words}")
        threading.Event().wait(0.05)


@contextmanager
def reached(gateway: Gateway, user: str = "owner", secret: str = SECRET) -> Iterator[None]:
    """The environment in which froude's clients reach the gateway as `user`."""
    from froude.launch.cluster import environment

    with environment(gateway.environment(user, secret)):
        yield


def new_bucket() -> str:
    """Name of a bucket that was just made, at the server of the present environment."""
    from froude.store import Location

    name = f"bucket-{next(_buckets)}"
    filesystem, _ = Location.parse(f"s3://{name}").fsspec()
    filesystem.call_s3("create_bucket", Bucket=name)
    return name


def main(arguments: Sequence[str]) -> int:
    if not installed():
        print(MISSING, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        place = {"address": arguments[0], "port": int(arguments[1])} if arguments else {}
        with serve(**place) as gateway:
            for name, value in gateway.environment().items():
                print(f"export {name}={value}")
            print("# Ctrl-C stops it; the key `reader` may only read", flush=True)
            while True:
                signal.pause()
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
