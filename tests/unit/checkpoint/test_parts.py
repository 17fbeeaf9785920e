from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from s3_server import empty_bucket, slow_server

from froude.checkpoint import parts
from froude.checkpoint.parts import HashingSink, digest

__all__ = ["slow_server"]


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_a_sink_writes_all_in_order(pieces: list[bytes]) -> None:
    written = io.BytesIO()
    with mock.patch.object(parts, "AHEAD_BYTES", 64), HashingSink(written) as sink:
        for piece in pieces:
            reused = bytearray(piece)
            assert sink.write(memoryview(reused)) == len(piece)
            reused[:] = bytes(len(piece))  # as the owner of a buffer may do once `write` has returned
    assert written.getvalue() == b"".join(pieces)
    assert (sink.size, sink.hexdigest()) == (len(written.getvalue()), digest(written.getvalue()))


class Full(io.BytesIO):
    """A disk with room for one piece."""

    def writelines(self, pieces: Iterable[bytes]) -> None:  # type: ignore[override]
        if self.tell():
            raise OSError(28, "No space left on device")
        super().writelines(pieces)


@pytest.mark.parametrize("count", [2, 3, 20])
def test_what_the_writing_thread_met_is_raised(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(parts, "AHEAD_BYTES", 1)

    def fill() -> None:
        with HashingSink(Full()) as sink:
            for _ in range(count):
                sink.write(b"piece")

    with pytest.raises(OSError, match="No space left"):
        fill()


def test_an_error_of_the_caller_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "AHEAD_BYTES", 1)

    def stumble() -> None:
        with HashingSink(Full()) as sink:
            sink.write(b"one")
            sink.write(b"two")
            raise KeyError

    with pytest.raises(KeyError):
        stumble()


@pytest.mark.slow
def test_no_more_is_on_its_way_to_a_slow_server_than_is_meant(
    slow_server: tuple[str, list[Callable[[int], None]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream of pyarrow takes all that it is given, and keeps it until the server has answered."""
    endpoint, told = slow_server
    monkeypatch.setattr(parts, "FLUSH_BYTES", 20 << 20)
    place = empty_bucket(endpoint, monkeypatch) / "part.parquet"
    ahead, arrived = list[int](), 0

    def answered(nbytes: int) -> None:
        nonlocal arrived
        ahead.append(sink.size - arrived)
        arrived += nbytes

    told.append(answered)
    with place.output() as raw, HashingSink(raw) as sink:
        for _ in range(25):
            sink.write(bytes(4 << 20))
    assert place.size() == 100 << 20
    assert len(ahead) == 10
    assert max(ahead) <= parts.FLUSH_BYTES + 4 * parts.AHEAD_BYTES
