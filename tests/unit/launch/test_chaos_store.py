"""What chaos puts around a store: a proxy that passes, refuses or holds requests, and a disk that gets full."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
from honest_run import sealed

from froude.launch.chaos import clock, faults
from froude.launch.chaos.available import missing
from froude.launch.chaos.conduct import stage
from froude.launch.chaos.s3_proxy import S3Proxy
from froude.launch.chaos.scene import wait_for
from froude.launch.chaos.small_disk import SmallDisk
from froude.store import Location, probe_writable

pytestmark = pytest.mark.slow


@pytest.fixture
def proxy(s3: Location, s3_server: str, monkeypatch: pytest.MonkeyPatch):
    with S3Proxy(s3_server) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.url)
        yield running


def test_it_passes_on_what_every_client_asks(s3: Location, proxy: S3Proxy) -> None:
    probe_writable(s3 / "a folder")
    content = bytes(range(256)) * 40_000  # more than one part of an upload
    with (s3 / "big").output() as sink:
        sink.write(content)
    assert (s3 / "big").read() == content
    assert (s3 / "big").size() == len(content)
    assert (s3 / "big").read_range(255, 3) == b"\xff\x00\x01"
    assert s3.children() == ["big"]


@pytest.mark.long
def test_a_short_burst_is_absorbed_and_a_long_one_is_an_error(s3: Location, proxy: S3Proxy) -> None:
    proxy.refuse(2)
    assert (s3 / "a").create(b"1")
    assert proxy.refusals == 0
    proxy.refuse(1000)
    with pytest.raises(OSError):
        (s3 / "b").create(b"1")
    proxy.refuse(0)
    assert not (s3 / "b").exists()


def test_a_held_request_gets_no_answer_until_it_flows_again(s3: Location, proxy: S3Proxy) -> None:
    done = threading.Event()

    def ask() -> None:
        (s3 / "a").create(b"1")
        done.set()

    proxy.hang()
    threading.Thread(target=ask, daemon=True).start()
    wait_for(lambda: proxy.held, "a request")
    assert not done.is_set()
    proxy.flow()
    wait_for(done.is_set, "an answer")
    assert (s3 / "a").read() == b"1"


def test_a_trap_holds_the_next_upload_into_its_folder_and_nothing_else(s3: Location, proxy: S3Proxy) -> None:
    folder = f"{s3.url.removeprefix('s3:/')}/data/"
    proxy.trap(folder)
    client = threading.Thread(target=lambda: (s3 / "data" / "part").create(b"1"), daemon=True)
    client.start()
    wait_for(lambda: proxy.caught, "the upload")
    assert proxy.caught.partition("?")[0] == f"{folder}part"
    assert (s3 / "a").create(b"2")
    assert (s3 / "data" / "b").create(b"3")
    assert not (s3 / "data" / "part").exists()
    proxy.flow()
    client.join(60)
    assert (s3 / "data" / "part").read() == b"1"  # the client asked again


@pytest.mark.skipif(bool(faults.no_mount(Location("/"))), reason="mounting a file system needs root on Linux")
def test_a_small_disk_gets_full_and_keeps_what_it_held(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "large"
    with SmallDisk(folder, 2**21) as disk:
        (folder / "before").write_bytes(b"kept")
        disk.fill()
        with pytest.raises(OSError) as full:
            (folder / "more").write_bytes(bytes(2**16))
        assert full.value.errno == errno.ENOSPC
        disk.free()
        (folder / "after").write_bytes(bytes(2**16))
    assert not folder.is_mount()
    assert {path.name: path.stat().st_size for path in folder.iterdir() if path.name != "more"} == {
        "before": 4,
        "after": 2**16,
    }


def test_what_kinds_need_stands_round_a_run_and_is_gone_after_it(
    tmp_path: Path, s3: Location, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the logs of a study on S3 go
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    recipe, local = sealed(tmp_path / "recipe"), Location.parse(tmp_path / "study")
    here = {kind for kind in ("disk-full", "clock-jump") if not missing(kind, local)}
    folder = tmp_path / "study" / "runs" / recipe.run.name
    with stage(recipe, local, here, nodes=2, trust=False) as scene:
        assert (scene.disk is not None) == folder.is_mount() == ("disk-full" in here)
        assert ("LD_PRELOAD" in scene.environment) == ("clock-jump" in here)
        assert (clock.VARIABLE in scene.order["node_environment"]) == ("clock-jump" in here)
        assert scene.proxy is None
    assert not folder.is_mount()
    with stage(recipe, local, {"worker-kill"}, nodes=2, trust=False) as scene:
        assert (scene.disk, scene.proxy, scene.environment, scene.order["node_environment"]) == (
            None,
            None,
            {},
            {},
        )
    with stage(
        recipe, s3, {"worker-kill"}, nodes=2, trust=False
    ) as scene:  # it sees uploads, whatever the kinds
        assert scene.proxy is not None
        assert scene.environment["AWS_ENDPOINT_URL"] == scene.proxy.url != s3_server
