"""A format of token shards from outside the package: a function that opens a file, and a line in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from froude.config import ConfigError, Run
from froude.corpora import corpus
from froude.corpora.files import File
from froude.corpora.formats import FORMATS, Format
from froude.corpora.formats.flat import Flat
from froude.corpora.formats.shard import Shard
from froude.train.data.shards import Shards
from froude.train.data.soundness import check_corpus

HEADER = b"OWN1"


def own(file: File, setting: str, names: Mapping[str, File]) -> Shard:
    return Flat(file, "uint8", header=len(HEADER))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "a.own").write_bytes(HEADER + bytes(range(250)) * 20)
    (tmp_path / "b.own").write_bytes(HEADER + bytes(range(250))[::-1] * 20)
    return Run(
        tokens=64,
        batch=64,
        model={"context": 16},
        data={"source": "froude.train.data.shards:Shards", "path": str(tmp_path)},
    )


def test_it_is_found_by_its_name_and_magic_number_and_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"must have token shards \(.arrow, .bin, .npy, .parquet\)"):
        Shards(run, "train")
    monkeypatch.setitem(FORMATS, "own", Format(own, ".own", magic=(HEADER,)))
    check_corpus(run)
    train, held = Shards(run, "train"), Shards(run, "validation")
    tokens = np.concatenate(
        [train.read(0, train.length)[:, :-1].ravel(), held.read(0, held.length)[:, :-1].ravel()]
    )
    assert len(tokens) > 9900
    assert train.documents is None
    named = run.replace({"data.options": {"format": "own"}})
    assert Shards(named, "train").sha256 == train.sha256
    corpus._opened.cache_clear()
