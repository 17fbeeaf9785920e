from __future__ import annotations

import copy
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from s3_server import REFUSAL

from froude.config import ConfigError
from froude.s3 import Reader, Refused
from froude.store import Location, probe_writable


def test_parse_knows_paths_and_s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert Location.parse("a/../b").path == tmp_path / "b"
    assert Location.parse(tmp_path).path == tmp_path
    assert Location.parse(f"file://{tmp_path}/x").path == tmp_path / "x"
    assert Location.parse(f"file://localhost{tmp_path}/a%20b").path == tmp_path / "a b"
    assert Location.parse("s3://bucket//a/b/").url == "s3://bucket/a/b"
    assert Location.parse("s3://bucket").url == "s3://bucket"
    here = Location.parse("b")
    assert Location.parse(here) is here
    assert (here / "c/d").path == tmp_path / "b/c/d"
    assert (here / "c/d").name == "d"
    assert (here / "c").parent == here
    assert [Location.parse(url).parent.url for url in ("/", "/a", "s3://b", "s3://b/a")] == [
        "/",
        "/",
        "s3://b",
        "s3://b",
    ]


@pytest.mark.parametrize(
    "url",
    [
        *("", "gs://bucket/a", "s3://", "s3:///a", "s3://b/a?endpoint_override=x", "a\0b"),
        *("s3:/bucket/x", "file:/tmp/x", "file://host/x", "file://x"),
    ],
)
def test_parse_refuses_the_rest_with_a_remedy(url: str) -> None:
    with pytest.raises(ConfigError, match=r"a store must be .* but got .*; "):
        Location.parse(url)


@pytest.mark.parametrize("child", ["", "..", "a/../b", "/etc", "a//b", "./a", "a/"])
def test_a_child_stays_below(child: str) -> None:
    with pytest.raises(ValueError, match="child"):
        Location.parse("/tmp") / child


def test_files_on_disk_and_s3_alike(place: Location) -> None:
    file = place / "x/y.bin"
    assert (place.children(), place.walk(), file.exists(), file.size()) == ([], [], False, None)
    with pytest.raises(FileNotFoundError):
        file.read()
    assert file.create(b"first")
    assert not file.create(b"second")
    assert file.read() == b"first"
    file.replace(b"third one")
    assert (file.read(), file.size(), file.exists()) == (b"third one", 9, True)
    assert file.read_range(6, 100) == b"one"
    assert (place / "x").exists()
    assert (place / "x").size() is None
    with (place / "big").output() as sink:
        sink.write(b"abc")
        sink.write(memoryview(b"def"))
    assert (place / "big").read() == b"abcdef"
    assert place.children() == ["big", "x"]
    assert place.walk() == [place / "big", file]
    assert place.walk(".bin") == [file]
    assert file.children() == []
    file.delete()
    file.delete()
    assert not file.exists()


def test_polars_and_arrow_read_the_same(place: Location) -> None:
    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = place / "t.parquet"
    with file.output() as sink:
        pq.write_table(pa.table({"a": [1, 2]}), sink)
    url, options = file.polars()
    filesystem, path = file.arrow()
    assert pl.read_parquet(url, storage_options=options)["a"].to_list() == [1, 2]
    assert pq.read_table(path, filesystem=filesystem)["a"].to_pylist() == [1, 2]


def test_exactly_one_of_eight_writers_creates(tmp_path: Path) -> None:
    place = Location.parse(tmp_path)  # moto's server has a gap between its check and its write
    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            file, gate = place / str(number), threading.Barrier(8)

            def compete(writer: int, file: Location = file, gate: threading.Barrier = gate) -> bool:
                gate.wait()
                return file.create(b"writer %d" % writer)

            won = list(pool.map(compete, range(8)))
            assert won.count(True) == 1
            assert file.read() == b"writer %d" % won.index(True)


def test_a_refused_put_of_ones_own_bytes_counts_as_won(s3: Location) -> None:
    file = s3 / "record"
    assert file.create(b"mine")  # the answer to this one gets lost, so it is sent again
    assert file.create(b"mine")
    assert not file.create(b"theirs")


@pytest.mark.slow
@given(st.lists(st.binary(max_size=100), max_size=5))
def test_replace_keeps_the_last(tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]) -> None:
    file = Location.parse(tmp_path_factory.mktemp("replace")) / "f"
    for content in contents:
        file.replace(content)
        assert file.read() == content
    assert file.parent.children() == (["f"] if contents else [])


def test_an_error_in_a_stream_leaves_nothing(tmp_path: Path) -> None:
    file = Location.parse(tmp_path) / "f"

    def stumble() -> None:
        with file.output() as sink:
            sink.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        stumble()
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_killed_writer_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / ".f.0123.tmp").write_bytes(b"half")
    assert Location.parse(tmp_path).children() == []
    assert Location.parse(tmp_path).walk() == []


ASKED: dict[str, Callable[[Location], object]] = {
    "read": Location.read,
    "read_range": lambda file: file.read_range(0, 1),
    "exists": Location.exists,
    "size": Location.size,
    "children": Location.children,
    "create": lambda file: file.create(b"a"),
    "replace": lambda file: file.replace(b"a"),
    "delete": Location.delete,
    "knock": Location.knock,
}


@pytest.mark.parametrize("asked", ASKED)
def test_refused_keys_are_those_of_a_host(
    refusing_server: str, s3: Location, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", refusing_server)
    words = (
        rf"the keys of host {socket.gethostname()} \(.*\); check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )
    with pytest.raises(Refused, match=words):
        ASKED[asked](s3 / "file")


@pytest.mark.parametrize("asked", ["create", "replace", "delete", "knock"])
def test_a_wrong_clock_is_that_of_a_host(
    refusing_server: str, s3: Location, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    skewed = REFUSAL.replace(b"SignatureDoesNotMatch", b"RequestTimeTooSkewed")
    monkeypatch.setattr("s3_server.REFUSAL", skewed)
    monkeypatch.setenv("AWS_ENDPOINT_URL", refusing_server)
    said = rf"but the clock of {socket.gethostname()} says .*; set it \(NTP\)"
    with pytest.raises(Refused, match=said) as refusal:
        ASKED[asked](s3 / "file")
    assert str(copy.copy(refusal.value)) == str(refusal.value)  # as one from another process is made again
    with pytest.raises(ConfigError, match=said):
        probe_writable(s3)


def test_absent_keys_are_named(s3: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(Refused, match="it has none"):
        s3.knock()


def test_what_killed_writers_left_goes_once_it_is_old(place: Location) -> None:
    kept, neighbour = place / "a/kept", place.parent / "neighbour"
    assert kept.create(b"kept")
    names = ("a/b/part", "part") if place.is_local else ("a/b/part",)
    for folder in (place, neighbour):
        for name in names:
            _begin(folder / name)
    if place.is_local:  # to moto's server every upload began in 2010
        place.discard_unfinished(datetime.now(UTC) - timedelta(hours=1))
    assert (len(_unfinished(place)), len(_unfinished(neighbour))) == (len(names), len(names))
    place.discard_unfinished(datetime.now(UTC) + timedelta(hours=1))
    assert (_unfinished(place), len(_unfinished(neighbour))) == ([], len(names))
    assert kept.read() == b"kept"


def _begin(file: Location) -> None:
    """What a writer leaves that is killed before it ends."""
    if file.is_local:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        file.path.with_name(f".{file.name}.0123.tmp").write_bytes(b"half")
    else:
        filesystem, path = file.fsspec()
        bucket, _, key = path.partition("/")
        filesystem.call_s3("create_multipart_upload", Bucket=bucket, Key=key)


def _unfinished(place: Location) -> list[str]:
    if place.is_local:
        return [str(path) for path in place.path.rglob("*.tmp")]
    filesystem, path = place.fsspec()
    bucket, _, key = path.partition("/")
    found = filesystem.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{key}/")
    return [upload["Key"] for upload in found.get("Uploads", ())]


def test_secrets_are_not_printed(s3: Location) -> None:
    from froude.s3 import Settings

    assert "testing" not in repr(Settings.from_environment())


def test_a_file_has_the_time_at_which_its_store_got_it(place: Location) -> None:
    before = datetime.now(UTC)
    assert (place / "a").modified() is None
    assert (place / "a").create(b"1")
    written = (place / "a").modified()
    assert written is not None
    assert before - timedelta(seconds=1) <= written <= datetime.now(UTC)
    assert place.modified() is None


@pytest.mark.parametrize("how", ["read", "read_range"])
def test_an_object_that_is_deleted_while_it_is_read_is_not_found(
    s3: Location, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Between the look at its size and the reading of its bytes."""
    file = s3 / "a"
    assert file.create(b"1" * 100)
    size = Reader.read_at

    def deleted(self: Reader, length: int, offset: int) -> bytes:
        file.delete()
        return size(self, length, offset)

    monkeypatch.setattr(Reader, "read_at", deleted)
    with pytest.raises(FileNotFoundError, match="deleted while it was read"):
        file.read() if how == "read" else file.read_range(3, 50)


class Broken:
    """A file whose stream breaks off so many times."""

    def __init__(self, file: Any, times: int) -> None:
        self.file, self.times = file, times

    def read_at(self, length: int, offset: int) -> Any:
        self.times -= 1
        if self.times >= 0:
            raise OSError("Failed to flush response stream, eof: 1, bad: 0")
        return self.file.read_at(length, offset)


def test_a_stream_that_breaks_off_is_read_again_once(s3: Location) -> None:
    assert (s3 / "a").create(b"0123456789")
    for times in (1, 2):
        with (s3 / "a").reader() as reader:
            whole = reader._file
            reader._file = Broken(whole, times)
            if times == 1:
                assert reader.read_at(4, 3) == b"3456"
            else:
                with pytest.raises(OSError, match="Failed to flush"):
                    reader.read_at(4, 3)
            reader._file = whole
