"""Local files: mapped when they are read, no more of them at a time than a process may have open."""

from __future__ import annotations

from pathlib import Path

import pytest

from froude.config import ConfigError
from froude.corpora import files, listing


def test_files_are_closed_before_a_process_has_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(50):
        (tmp_path / f"{i:02d}.bin").write_bytes(bytes([i]) * 10)
    monkeypatch.setattr(files.resource, "getrlimit", lambda _: (40, 40))
    files._open.clear()
    found = [listed.open() for listed in listing.find(str(tmp_path), "data.path").files]
    for _ in range(2):
        for i, file in enumerate(found):
            view = file.read(3, 4)
            assert view.tolist() == [i] * 4
            assert not view.flags.writeable
    mapped = [file for file in found if isinstance(file, files.Local) and file._mapped is not None]
    assert len(mapped) == len(files._open) == 20


def test_names_are_sorted_and_folders_are_searched(tmp_path: Path) -> None:
    for name in ("b/x.bin", "a/y.bin", "c.bin", "a/é.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"12")
    found = listing.find(str(tmp_path), "data.path")
    assert [Path(file.url).relative_to(tmp_path).as_posix() for file in found.files] == sorted(
        ["b/x.bin", "a/y.bin", "c.bin", "a/é.bin"]
    )
    assert found.folder == str(tmp_path)
    deep = listing.find(f"{tmp_path}/*/[xy].bin", "data.path")
    assert [Path(file.url).name for file in deep.files] == ["y.bin", "x.bin"]
    assert deep.folder == str(tmp_path)


def test_a_folder_whose_name_looks_like_a_pattern_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "[v1]").mkdir()
    (tmp_path / "[v1]" / "a.bin").write_bytes(b"12")
    assert [Path(f.url).name for f in listing.find(str(tmp_path / "[v1]"), "data.path").files] == ["a.bin"]


def test_a_read_beyond_the_end_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"12")
    file = listing.find(str(tmp_path / "a.bin"), "data.path").files[0].open()
    with pytest.raises(ConfigError, match=r"a.bin no longer has 2 bytes, of which those from 1 to 3"):
        file.read(1, 2)


def test_a_file_that_is_truncated_while_it_is_mapped_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"1" * 20_000)
    file = listing.find(str(tmp_path / "a.bin"), "data.path").files[0].open()
    assert file.read(0, 1).tolist() == [ord("1")]
    with (tmp_path / "a.bin").open("r+b") as shard:
        shard.truncate(100)
    with pytest.raises(
        ConfigError, match=r"must stay as it is while it is read, but .*a.bin no longer has 20000 bytes"
    ):
        file.read(15_000, 10)
