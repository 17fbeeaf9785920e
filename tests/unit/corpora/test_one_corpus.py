"""A corpus is finished, has each shard once and those that data.json lists, and stays as it is while it is read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3_server import empty_bucket
from shard_writers import headerless
from ship_texts import TEXTS

from froude.config import ConfigError
from froude.corpora import listing, verify
from froude.corpora.corpus import Options, open_corpus
from froude.corpora.formats import parquet
from froude.corpora.prepare import shards, whole
from froude.corpora.prepare.whole import prepare
from froude.store import Location

Lines = Callable[..., Path]
UNFINISHED = (
    r"a corpus must be finished, but `froude data prepare` has not ended in .*out; give that command again"
)


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["when all is tokenised", "when a shard is written", "before data.json"])
def test_an_unfinished_corpus_is_not_trained_on(
    lines: Lines, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    out, source = tmp_path / "out", str(lines(TEXTS))
    options = whole.Options(str(tokenizer), shard_tokens=300)
    write = shards.write

    def first_only(shard: shards.Shard) -> Any:
        return write(shard) if shard.name == "train-00000" else interrupted()

    stop = {
        "when all is tokenised": (whole.shards, "write", interrupted),
        "when a shard is written": (whole.shards, "write", first_only),
        "before data.json": (whole.record, "write", interrupted),
    }[where]
    with monkeypatch.context() as patch:
        patch.setattr(*stop)
        with pytest.raises(KeyboardInterrupt):
            prepare([source], out, options)
    begun = any(out.glob("train-*.bin"))
    for path in (
        out,
        tmp_path,
        f"{out}/pieces",
        *([f"{out}/*.bin", out / "train-00000.bin"] if begun else []),
    ):
        with pytest.raises(ConfigError, match=UNFINISHED):
            open_corpus(str(path), Options())
    with pytest.raises(ConfigError, match=UNFINISHED):
        verify.write(str(out))
    prepare([source], out, options)
    assert open_corpus(str(out), Options()).training


def test_a_shard_by_two_names_is_there_once(tmp_path: Path) -> None:
    for name in ("a/x/one.bin", "a/two.bin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        headerless((tmp_path / name).with_suffix(""), [list(range(200))])
    found = listing.find(f"{tmp_path}/**/**/*.bin", "data.path").files
    assert [Path(file.url).name for file in found] == ["two.bin", "one.bin"]
    (tmp_path / "a/three.bin").symlink_to("two.bin")
    with pytest.raises(
        ConfigError, match=r"a shard must be there once, but .*three.bin and .*two.bin are one file"
    ):
        open_corpus(str(tmp_path / "a"), Options())
    (tmp_path / "a/three.bin").unlink()
    (tmp_path / "a/latest").symlink_to("x")
    with pytest.raises(
        ConfigError, match=r"a shard must be there once, but .*latest/one.bin and .*x/one.bin"
    ):
        open_corpus(str(tmp_path / "a"), Options())
    assert len(open_corpus(f"{tmp_path}/a/latest/*.bin", Options()).training) == 1


def test_a_folder_has_the_shards_that_its_data_json_lists(tmp_path: Path) -> None:
    for name in ("a", "b", "below/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        headerless(tmp_path / name, [list(range(200))])
    verify.write(str(tmp_path / "below"))
    shutil.move(tmp_path / "b.bin", tmp_path / "b")
    verify.write(str(tmp_path))
    shutil.move(tmp_path / "b", tmp_path / "b.bin")
    with pytest.raises(
        ConfigError, match=r"only the shards that its data.json lists, but .*/b.bin is not among them"
    ):
        open_corpus(str(tmp_path), Options())
    assert len(open_corpus(f"{tmp_path}/*.bin", Options()).training) == 2
    (tmp_path / "b.bin").unlink()
    assert len(open_corpus(str(tmp_path), Options()).training) == 2


def ids(path: Path, value: int) -> None:
    """Four row groups of as many ids each, whatever they are: their statistics do not tell them apart."""
    pq.write_table(pa.table({"ids": [[value] * 50 for _ in range(8)]}), path, row_group_size=2)


@pytest.mark.parametrize("where", ["local", pytest.param("s3", marks=pytest.mark.slow)])
def test_parquet_that_is_written_again_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, where: str
) -> None:
    monkeypatch.setattr(parquet, "CAPACITY", 1)
    for value in (7, 8):
        ids(tmp_path / f"{value}.parquet", value)
    folder = Location.parse(tmp_path / "local")
    if where == "s3":
        folder = empty_bucket(request.getfixturevalue("s3_server"), monkeypatch)
    else:
        folder.path.mkdir()
    (folder / "x.parquet").replace((tmp_path / "7.parquet").read_bytes())
    [shard] = open_corpus((folder / "x.parquet").url, Options(column="ids")).training
    assert set(shard.values(0, 0, 100)) == {7}
    (folder / "x.parquet").replace((tmp_path / "8.parquet").read_bytes())
    if folder.is_local:
        os.utime(folder.path / "x.parquet", ns=(1, 1))  # two writes may fall into one tick of the file system
    with pytest.raises(
        ConfigError, match=r"must stay as it is while it is read, but .*x.parquet was written again"
    ):
        shard.values(1, 0, 100)


@pytest.mark.parametrize("how", ["in place", "replaced"])
def test_a_mapped_shard_that_is_written_again_is_an_error(tmp_path: Path, how: str) -> None:
    path = tmp_path / "a.bin"
    np.full(1000, 7, "<u2").tofile(path)
    file = listing.find(str(path), "data.path").files[0].open()
    assert file.read(0, 2).tolist() == [7, 0]
    if how == "in place":
        with path.open("r+b") as shard:
            shard.write(b"\x08")
    else:
        np.full(1000, 8, "<u2").tofile(tmp_path / "b.bin")
        os.replace(tmp_path / "b.bin", path)
    os.utime(path, ns=(1, 1))  # two writes may fall into one tick of the file system
    with pytest.raises(
        ConfigError, match=r"must stay as it is while it is read, but .*a.bin was written again"
    ):
        file.read(0, 2)
    path.unlink()
    assert len(file.read(0, 2)) == 2  # what is mapped stays
