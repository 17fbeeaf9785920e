"""Shards that can't be read as they are: one error each, with the file, what is wrong, and what to do."""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shard_writers import arrow, dolma, headerless, llmc, megatron, parquet, stream, table

from froude.config import ConfigError, Run
from froude.train.data.shards import Shards

SHARDS = "froude.train.data.shards:Shards"
DOCUMENTS = [[i % 90 for i in range(n)] for n in (40, 0, 70, 130, 5)]


@pytest.fixture
def open_shards(make_run: Callable[..., Run], tmp_path: Path) -> Callable[..., Shards]:
    """Opens the shards of the test's folder, or of a path in it."""

    def make(path: str = "", **options: Any) -> Shards:
        changes = {
            "data.source": SHARDS,
            "data.path": str(tmp_path / path) if "://" not in path else path,
            "data.options": options,
            "model.context": 8,
            "model.vocab": 90,
        }
        return Shards(make_run(changes), "train")

    return make


def cut(path: Path, count: int) -> None:
    os.truncate(path, path.stat().st_size - count)


def poke(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def compressed(folder: Path) -> None:
    made, options = table(DOCUMENTS), pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(folder / "a.arrow", made.schema, options=options) as writer:
        writer.write_table(made)


def nulls(folder: Path, where: str) -> None:
    ids = pa.array([[1, None], [2]] if where == "tokens" else [[1], None], pa.list_(pa.int32()))
    with pa.ipc.new_file(folder / "a.arrow", pa.schema({"ids": ids.type})) as writer:
        writer.write_table(pa.table({"ids": ids}))


IDX = 34
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no file": (lambda d: None, r"`data.path` must name at least one file, but '.*' has no file; correct"),
    "other files": (lambda d: (d / "a.txt").write_text("x"), r"must have token shards .* has only .*a.txt"),
    "too short": (
        lambda d: headerless(d / "a", [[1] * 8]),
        r"the train split .* context \+ 1 = 9 tokens, but holds 8",
    ),
    "mixed": (
        lambda d: (headerless(d / "a", DOCUMENTS), parquet(d / "b", DOCUMENTS)),
        r"must have one format, but '.*' has uint \(.*a.bin\), parquet \(.*b.parquet\)",
    ),
    "bin of a pair alone": (
        lambda d: (megatron(d / "a_text_document", DOCUMENTS), (d / "a_text_document.idx").unlink()),
        r"a .bin with a name of Megatron's must have its .idx beside it, but .*a_text_document.bin has none; restore",
    ),
    "ids of four bytes": (
        lambda d: np.arange(100, dtype=np.int32).tofile(d / "a.bin"),
        r"a shard of uint16 must have ids of 2 bytes, but .*a.bin has next to nothing in every second of its first 200",
    ),
    "ids of eight bytes": (
        lambda d: np.arange(100, dtype=np.int64).tofile(d / "a.bin"),
        r"a.bin has next to nothing in every second of its first 400, as ids of 8 bytes do; .*write them as uint32",
    ),
    "ids of four bytes in an .npy": (
        lambda d: np.arange(100, dtype=np.uint32).tofile(d / "a.npy"),
        r"a shard of uint16 must have ids of 2 bytes, but .*a.npy .* as ids of 4 bytes do; set .* to uint32",
    ),
    "odd bytes": (
        lambda d: (headerless(d / "a", DOCUMENTS), cut(d / "a.bin", 1)),
        r"a shard of uint16 must have a multiple of 2 bytes, but .*a.bin has 489: it was truncated",
    ),
    "idx without bin": (
        lambda d: (megatron(d / "a", DOCUMENTS), (d / "a.bin").unlink()),
        r"an .idx must have its .bin beside it, but .*a.idx has none",
    ),
    "bin without idx among pairs": (
        lambda d: (megatron(d / "a", DOCUMENTS), headerless(d / "b", DOCUMENTS)),
        r"must have one format, but .* megatron .* uint",
    ),
    "idx magic": (
        lambda d: (megatron(d / "a", DOCUMENTS), poke(d / "a.idx", 0, b"X")),
        r"an .idx must begin with MMIDIDX",
    ),
    "idx empty": (
        lambda d: (megatron(d / "a", DOCUMENTS), os.truncate(d / "a.idx", 0)),
        r"an .idx must begin with MMIDIDX",
    ),
    "idx version": (
        lambda d: (megatron(d / "a", DOCUMENTS), poke(d / "a.idx", 9, b"\x02")),
        r"an .idx must have version 1, but .*a.idx has 2",
    ),
    "idx floats": (
        lambda d: (megatron(d / "a", DOCUMENTS), poke(d / "a.idx", 17, b"\x07")),
        r"must have ids of whole numbers .* has 7",
    ),
    "idx cut": (
        lambda d: (megatron(d / "a", DOCUMENTS), cut(d / "a.idx", 8)),
        r"an .idx of 5 sequences and 6 document marks must have 142 bytes, but .* has 134",
    ),
    "idx of another dtype": (
        lambda d: (megatron(d / "a", DOCUMENTS), poke(d / "a.idx", 17, b"\x01")),
        r"an .idx must fit its .bin.*sequence 0 at byte 0 with 40 tokens, and the next at 80",
    ),
    "idx of a wider dtype": (
        lambda d: (megatron(d / "a", DOCUMENTS), poke(d / "a.idx", 17, b"\x04")),
        r"must fit its .bin: a multiple of 4 bytes \(int32\), but .* beside one of 490",
    ),
    "idx length": (
        lambda d: (megatron(d / "a", DOCUMENTS), poke(d / "a.idx", IDX + 8, struct.pack("<i", 71))),
        r"must fit its .bin.*sequence 2 at byte 80 with 71 tokens, and the next at 220",
    ),
    "idx pointer": (
        lambda d: (megatron(d / "a", DOCUMENTS), poke(d / "a.idx", IDX + 20, struct.pack("<q", 2))),
        r"must fit its .bin.*sequence 0 at byte 2",
    ),
    "idx documents": (
        lambda d: (megatron(d / "a", DOCUMENTS), poke(d / "a.idx", IDX + 60 + 40, struct.pack("<q", 9))),
        r"must have documents from sequence 0 to 5 in order, but .* has 6 marks from 0 to 9",
    ),
    "bin cut": (
        lambda d: (megatron(d / "a", DOCUMENTS), cut(d / "a.bin", 2)),
        r"an .idx must fit its .bin: .* up to its 488 bytes",
    ),
    "llm.c cut": (
        lambda d: (llmc(d / "a", DOCUMENTS), cut(d / "a.bin", 2)),
        r"of 245 tokens must have 1514 bytes, but .*a.bin has 1512",
    ),
    "llm.c version": (
        lambda d: (llmc(d / "a", DOCUMENTS), poke(d / "a.bin", 4, b"\x09")),
        r"magic number and version 20240520 and 1 or 20240801 and 7, but .* has 20240520 and 9",
    ),
    "llm.c header": (
        lambda d: (llmc(d / "a", DOCUMENTS), os.truncate(d / "a.bin", 100)),
        r"must begin with 1024 bytes of header, but .* has 100",
    ),
    "numpy's header": (
        lambda d: np.save(d / "a.npy", np.arange(90, dtype=np.uint16)),
        r"must have no header, but .*a.npy has numpy's",
    ),
    "dolma of another dtype": (
        lambda d: dolma(d / "a", DOCUMENTS, "uint32"),
        r"of uint16 must have ids of 2 bytes, but .*a.npy .* as ids of 4 bytes do; set `data.options.dtype` to uint32",
    ),
    "dolma rows end early": (
        lambda d: (dolma(d / "a", DOCUMENTS), (d / "a.csv.gz").write_bytes(gzip.compress(b"0,40\n40,200\n"))),
        r"must end where the shard does, at token 245 of uint16, but .*csv.gz end at 200; set `data.options.dtype`",
    ),
    "dolma rows": (
        lambda d: (dolma(d / "a", DOCUMENTS), (d / "a.csv.gz").write_bytes(gzip.compress(b"0,40\n41,245\n"))),
        r"documents must follow one another, but .* has 41 to 245 in row 2, after 40",
    ),
    "dolma csv": (
        lambda d: (dolma(d / "a", DOCUMENTS), (d / "a.csv.gz").write_bytes(b"\x1f\x8bno")),
        r"a .csv.gz of documents must have rows of start and end, but .* can't be read",
    ),
    "parquet cut": (
        lambda d: (parquet(d / "a", DOCUMENTS), cut(d / "a.parquet", 9)),
        r"a shard must be whole Parquet, but .*a.parquet can't be read",
    ),
    "parquet without ids": (
        lambda d: pq.write_table(pa.table({"text": ["a"]}), d / "a.parquet"),
        r"must have a column of lists of token ids, but .* has text \(string\); tokenise it",
    ),
    "two columns": (
        lambda d: pq.write_table(pa.table({"a": [[1]], "b": [[2]]}), d / "a.parquet"),
        r"but .*a.parquet has a, b; name one as `data.options.column`",
    ),
    "arrow cut": (
        lambda d: (arrow(d / "a", DOCUMENTS), os.truncate(d / "a.arrow", 1200)),
        r"must be a whole Arrow file or stream, but .*a.arrow ends",
    ),
    "stream cut": (
        lambda d: (stream(d / "a", DOCUMENTS), os.truncate(d / "a.arrow", 700)),
        r"must be a whole Arrow file or stream, but .*a.arrow ends",
    ),
    "no arrow": (
        lambda d: (d / "a.arrow").write_bytes(b"x" * 100),
        r"must be a whole Arrow file or stream, but .*a.arrow has no message at byte 0",
    ),
    "compressed arrow": (compressed, r"an Arrow shard must not be compressed, but .* is; write it without"),
    "null tokens": (lambda d: nulls(d, "tokens"), r"must have no null tokens, but .* has 1; drop them"),
    "null rows": (lambda d: nulls(d, "rows"), r"must have no null rows, but .* has 1; drop them"),
    "data.json": (
        lambda d: (headerless(d / "a", DOCUMENTS), (d / "data.json").write_text("{")),
        r"data.json must list shards by name, size and sha256",
    ),
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_what_can_not_be_read_is_one_clear_error(
    open_shards: Callable[..., Shards], tmp_path: Path, damage: str
) -> None:
    spoil, match = DAMAGE[damage]
    spoil(tmp_path)
    with pytest.raises(ConfigError, match=match) as caught:
        open_shards()
    assert str(caught.value).count("\n") <= 1
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "path, options, match",
    [
        ("*.arrow", {}, r"must name at least one file, but '.*\*.arrow' matches no file"),
        ("nowhere", {}, r"`data.path` must name at least one file, but '.*nowhere' has no file"),
        ("gs://bucket/x", {}, r"must be a local path or s3://"),
        (
            "a.bin",
            {"format": "megatron"},
            r"shards of format megatron must end in .bin, but .*a.bin has no .*a.idx",
        ),
        ("a.bin", {"format": "arow"}, r"`data.options.format` must be auto or megatron"),
        (
            "a.bin",
            {"dtype": "int16"},
            r"`data.options.dtype` must be uint16, uint32 or int32, but got 'int16'",
        ),
        ("a.bin", {"held_out": 0.0}, r"`data.options.held_out` must be a share between 0 and 1, but got 0.0"),
        (
            "a.bin",
            {"validation": "b.bin"},
            r"`data.options.validation` must name at least one file, but .*b.bin",
        ),
        ("a.bin", {"validation": "a.bin"}, r"`data.options.validation` must leave shards to train on"),
        (
            "wide.bin",
            {"dtype": "uint32"},
            r"a shard of uint32 must have ids of 4 bytes, .* as ids of 8 bytes do",
        ),
        ("a.bin", {"colum": "x"}, r"unknown key `data.options.colum` of Shards; did you mean `column`"),
        ("p.parquet", {"column": "ids"}, r"of lists of token ids called 'ids', but .* has text .*input_ids"),
    ],
)
def test_options_that_do_not_fit_are_one_clear_error(
    open_shards: Callable[..., Shards], tmp_path: Path, path: str, options: dict[str, Any], match: str
) -> None:
    headerless(tmp_path / "a", DOCUMENTS)
    parquet(tmp_path / "p", DOCUMENTS)
    np.arange(100, dtype=np.int64).tofile(tmp_path / "wide.bin")
    with pytest.raises(ConfigError, match=match):
        open_shards(path, **options)


def test_an_empty_path_is_an_error(make_run: Callable[..., Run]) -> None:
    run = make_run({"data.source": SHARDS})
    with pytest.raises(ConfigError, match=r"`data.path` must name token shards: .* but is empty; set it"):
        Shards(run, "train")


@pytest.mark.parametrize("write", [headerless, parquet, arrow, stream, llmc, megatron])
def test_an_id_beyond_the_vocabulary_is_named_with_its_shard_and_place(
    open_shards: Callable[..., Shards], tmp_path: Path, write: Callable[..., None]
) -> None:
    write(tmp_path / "a", DOCUMENTS)
    write(tmp_path / "b", [[*range(10), 90, 3]])
    write(tmp_path / "held", DOCUMENTS)
    suffix = next(path.suffix for path in tmp_path.glob("held.*") if path.suffix != ".idx")
    source = open_shards(validation=f"held{suffix}")
    number = (245 + 10) // 8
    assert source.read(0, number).max() == 89
    for first, n in ((number, 1), (0, source.length)):
        with pytest.raises(
            ConfigError, match=r"from 0 to 89, below `model.vocab`, but .*/b\.\w+ holds 90 at token 10"
        ):
            source.read(first, n)


def test_negative_ids_are_refused(open_shards: Callable[..., Shards], tmp_path: Path) -> None:
    megatron(tmp_path / "a", [[5, -1, *range(40)]], "int32")
    megatron(tmp_path / "held", DOCUMENTS)
    with pytest.raises(ConfigError, match=r"a.bin holds -1 at token 1"):
        open_shards(validation="held.bin").read(0, 1)


def test_a_shard_written_again_is_noticed_when_it_is_first_read(
    open_shards: Callable[..., Shards], tmp_path: Path
) -> None:
    headerless(tmp_path / "a", DOCUMENTS)
    headerless(tmp_path / "held", DOCUMENTS)
    source = open_shards(validation="held.bin")
    for shard in source._stream.shards:
        shard._file.close()
    before = source.sha256
    headerless(tmp_path / "a", [[3] * 245])
    os.utime(tmp_path / "a.bin", ns=(1, 1))
    with pytest.raises(ConfigError, match=r"must stay as it is while it is read, but .*a.bin"):
        source.read(0, 1)
    assert open_shards(validation="held.bin").sha256 != before


def test_statistics_that_lie_are_noticed(
    open_shards: Callable[..., Shards], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from froude.corpora.formats.parquet import Parquet

    parquet(tmp_path / "a", DOCUMENTS)
    parquet(tmp_path / "held", DOCUMENTS)
    monkeypatch.setattr(Parquet, "_count", lambda *_: 240)
    with pytest.raises(
        ConfigError, match=r"row group 0 must have the 240 tokens that its statistics count, but .* 245"
    ):
        open_shards(validation="held.parquet").read(0, 1)


def test_parquet_without_statistics_is_counted(open_shards: Callable[..., Shards], tmp_path: Path) -> None:
    pq.write_table(table(DOCUMENTS), tmp_path / "a.parquet", write_statistics=False)
    parquet(tmp_path / "held", DOCUMENTS)
    source = open_shards(validation="held.parquet")
    assert source.length == (245 - 1) // 8


def test_too_much_to_hash_asks_for_shards_to_hold_out(
    open_shards: Callable[..., Shards], tmp_path: Path
) -> None:
    with (tmp_path / "a.bin").open("wb") as file:
        file.truncate((1 << 31) + 2)  # a sparse file
    with pytest.raises(
        ConfigError, match=r"at most 1073741824 tokens.* has 1073741825; name .* `data.options.validation`"
    ):
        open_shards()
    headerless(tmp_path / "held", DOCUMENTS)
    assert open_shards(validation="held.bin").length == 1 << 27
