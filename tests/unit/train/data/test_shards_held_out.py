"""Shards that are held out by data.json, by name, or by both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shard_writers import headerless

from froude.config import Run
from froude.train.api import build_source
from froude.train.data.shards import Shards


def test_what_a_corpus_holds_out_is_not_trained_on_where_something_else_is_held_out(
    tmp_path: Path, make_run: Callable[..., Run]
) -> None:
    (tmp_path / "held").mkdir()
    for name, first, last in (("a", 10, 19), ("b", 20, 29), ("held/c", 30, 47)):
        headerless(tmp_path / name, [range(first, last)])
    listed = []
    for name, split in (("a.bin", "train"), ("b.bin", "validation")):
        content = (tmp_path / name).read_bytes()
        known = {"name": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        listed.append(known | {"split": split})
    said = {"version": 1, "splits": {"validation": {"tokens": 9, "bytes": 36}}, "shards": listed}
    (tmp_path / "data.json").write_text(json.dumps(said))
    where = {"data.source": "froude.train.data.shards:Shards", "data.path": str(tmp_path)}
    run = make_run({**where, "data.options": {"validation": "held"}, "model.context": 8, "model.vocab": 90})
    train, held = (build_source(run, split) for split in ("train", "validation"))
    assert train.read(0, train.length).tolist() == [list(range(10, 19))]
    assert held.read(0, held.length).tolist() == [list(range(30, 39)), list(range(38, 47))]
    assert held.bytes_per_token is None  # the bytes that data.json counts are of others


@pytest.mark.parametrize("name", ["corpus", "corpus [v2]"])
def test_shards_held_out_by_a_pattern_or_a_link_are_not_trained_on(
    tmp_path: Path, make_run: Callable[..., Run], name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    headerless(folder / "train-0", [range(10, 19)])
    headerless(folder / "validation-0", [range(20, 29)])
    where = {"data.source": "froude.train.data.shards:Shards", "data.path": str(folder)}
    for validation in ("validation-*.bin", str(tmp_path / "link" / "validation-0.bin")):
        run = make_run(
            {**where, "data.options": {"validation": validation}, "model.context": 8, "model.vocab": 90}
        )
        train, held = (build_source(run, split) for split in ("train", "validation"))
        assert train.read(0, train.length).tolist() == [list(range(10, 19))]
        assert held.read(0, held.length).tolist() == [list(range(20, 29))]


@pytest.mark.parametrize("column", ["text.ids", "input_ids"])
def test_columns_of_parquet_may_have_dots_in_their_names(
    tmp_path: Path, make_run: Callable[..., Run], column: str
) -> None:
    ids, others = (
        pa.array([[i] * 9 for i in range(first, first + 12)], pa.list_(pa.int32())) for first in (20, 40)
    )
    other = "input_ids.x" if column == "input_ids" else "text"
    nested = pa.array([{"a": 1, "b": {"c": [2]}}] * 12)
    pq.write_table(pa.table({other: others, "meta": nested, column: ids}), tmp_path / "a.parquet")
    where = {"data.source": "froude.train.data.shards:Shards", "data.path": str(tmp_path)}
    run = make_run({**where, "data.options": {"column": column}, "model.context": 8, "model.vocab": 90})
    train = Shards(run, "train")
    assert train.length > 9
    assert set(train.read(0, train.length).flat) < set(range(20, 32))
