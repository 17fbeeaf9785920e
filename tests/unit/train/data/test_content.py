"""The hash of many files: their content and order count, their names and places do not; large ones are sampled."""

import pytest

from froude.train.data import content
from froude.train.data.content import BLOCK, BLOCKS, content_sha256


@pytest.fixture
def shards(tmp_path):
    def write(folder, *contents):
        files = []
        for i, text in enumerate(contents):
            files.append(tmp_path / folder / f"{folder}-{i}.bin")
            files[-1].parent.mkdir(exist_ok=True)
            files[-1].write_bytes(text)
        return files

    return write


@pytest.mark.parametrize("whole", [content.WHOLE, 0])
def test_content_and_order_count_and_places_do_not(shards, whole):
    one = content_sha256(shards("a", b"first", b"second"), whole=whole)
    assert one == content_sha256(shards("b", b"first", b"second"), whole=whole)
    others = [(b"second", b"first"), (b"first", b"secund"), (b"firs", b"tsecond"), (b"first",), ()]
    found = {content_sha256(shards(f"c{i}", *other), whole=whole) for i, other in enumerate(others)}
    assert len({one, *found}) == 1 + len(others)


def test_a_large_file_is_sampled_from_its_first_byte_to_its_last(shards, monkeypatch):
    monkeypatch.setattr(content, "BLOCK", 64)
    data = bytearray(64 * BLOCKS * 10)
    name = content_sha256(shards("a", bytes(data)), whole=0)
    for place in (0, len(data) - 1):
        other = data.copy()
        other[place] = 1
        assert content_sha256(shards(f"b{place}", bytes(other)), whole=0) != name
    unseen = data.copy()
    unseen[100] = 1
    assert content_sha256(shards("c", bytes(unseen)), whole=0) == name  # as the docstring says
    assert content_sha256(shards("d", bytes(unseen))) != content_sha256(shards("e", bytes(data)))
    assert content_sha256(shards("f", bytes(data) + b"\0"), whole=0) != name
    assert BLOCK == 1 << 20
