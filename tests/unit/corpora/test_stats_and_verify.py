"""What is told of shards, and which are no longer what they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ship_texts import TEXTS

from froude.cli import main
from froude.config import ConfigError, Run
from froude.corpora import record
from froude.corpora.corpus import Options as Reading
from froude.corpora.corpus import open_corpus
from froude.corpora.formats import FORMATS
from froude.corpora.prepare.whole import Options, prepare
from froude.corpora.stats import QUANTILES, stats
from froude.corpora.tokenizer import load, trained
from froude.corpora.verify import verify, write
from froude.store import Location
from froude.train.api import build_source

Lines = Callable[..., Path]


@pytest.fixture
def corpus(lines: Lines, tokenizer: Path, tmp_path: Path) -> Path:
    prepare(
        [str(lines([*TEXTS, TEXTS[5]]))],
        tmp_path / "out",
        Options(str(tokenizer), shard_tokens=1500, held_out=0.2),
    )
    return tmp_path / "out"


def wrong(place: Path | Location | str) -> dict[str, str]:
    return {each.name: each.wrong for each in verify(str(place)) if each.wrong}


def test_stats_are_those_of_the_documents(corpus: Path, tokenizer: Path) -> None:
    found = stats(str(corpus))
    told = json.loads((corpus / record.FILE).read_text())["splits"]
    assert set(found) == {"train", "validation"}
    assert sum(each.duplicates for each in found.values()) == 1
    for name, each in found.items():
        opened = open_corpus(str(corpus), Reading())
        shards = opened.held if name == "validation" else opened.training
        lengths = np.sort(np.concatenate([np.diff(one.starts()) for one in shards]))
        ids = np.concatenate([one.read(0, one.tokens) for one in shards])
        assert (each.documents, each.tokens, each.nbytes) == tuple(
            told[name][k] for k in ("documents", "tokens", "bytes")
        )
        assert each.bytes_per_token == told[name]["bytes"] / told[name]["tokens"]
        assert each.lengths[0] == lengths[0]
        assert each.lengths[-1] == lengths[-1]
        assert each.lengths[QUANTILES.index(0.5)] == lengths[(len(lengths) - 1) // 2]
        assert each.used == len(set(ids.tolist()))
        assert each.vocab == 300
    # Of shards that say nothing, the tokenizer tells the text.
    (corpus / record.FILE).unlink()
    bare = stats(str(corpus))
    assert list(bare) == ["all"]
    assert bare["all"].nbytes is None
    assert bare["all"].to_dict()["bytes_per_token"] is None
    assert "name the tokenizer with --tokenizer" in "\n".join(bare["all"].lines())
    for name, each in found.items():
        assert stats(f"{corpus}/{name}-*.bin", str(tokenizer))["all"] == each


def test_stats_of_one_shard_are_its_own(corpus: Path, tokenizer: Path) -> None:
    one = stats(str(corpus / "train-00001.bin"), str(tokenizer))["train"]
    assert one.tokens * 2 == (corpus / "train-00001.bin").stat().st_size
    assert one.nbytes
    assert stats(str(corpus / "train-00001.bin"))["train"].nbytes is None


#: Folder of tests/data/shards, and whether its format knows where documents begin.
@pytest.mark.parametrize(
    "name, documented",
    [
        *(("megatron", True), ("dolma", True), ("arrow", True), ("parquet", True)),
        *(("llm.c", False), ("nanogpt", False)),
    ],
)
def test_every_format_is_counted(
    root: Path, name: str, documented: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = json.loads((root / "tests/data/shards/documents.json").read_text())
    lengths = sorted(map(len, documents))
    for block in (1 << 22, 100):
        monkeypatch.setattr("froude.corpora.stats.BLOCK", block)
        found = stats(str(root / "tests/data/shards" / name))["all"]
        assert found.tokens == sum(lengths)
        ids = {token for document in documents for token in document}
        assert (found.used, found.vocab) == (len(ids), max(ids) + 1)
        if documented:
            assert found.documents == len(documents)
            assert found.duplicates == len(documents) - len({tuple(each) for each in documents})
            assert (found.lengths[0], found.lengths[-1]) == (lengths[0], lengths[-1])
            assert found.lengths[QUANTILES.index(0.5)] == lengths[(len(lengths) - 1) // 2]
        else:
            assert found.documents is found.duplicates is None
            assert found.lengths == ()
            assert "no boundaries" in "\n".join(found.lines())
    assert {"uint" if name == "nanogpt" else name} <= set(FORMATS)


def test_a_type_and_a_column_are_named_as_for_training(tmp_path: Path, tokenizer: Path, root: Path) -> None:
    ids = load(str(tokenizer)).ids(TEXTS, np.uint32)
    np.concatenate(ids).tofile(tmp_path / "a.bin")
    found = stats(str(tmp_path), str(tokenizer), Reading(dtype="uint32"))["all"]
    assert found.tokens == sum(map(len, ids))
    assert found.nbytes == sum(len(text.encode()) for text in TEXTS)
    with pytest.raises(ConfigError, match=r"must have a column of lists of token ids called 'x'"):
        stats(str(root / "tests/data/shards/parquet"), options=Reading(column="x"))


def test_another_tokenizer_than_the_shards_is_refused(corpus: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_bytes(trained(TEXTS, 270))
    with pytest.raises(
        ConfigError, match=r"the tokenizer that made them, tokenizer.json \(SHA-256 .*other.json has"
    ):
        stats(str(corpus), str(other))
    (corpus / record.FILE).unlink()
    with pytest.raises(
        ConfigError, match=r"from 0 to 269, but .*train-00000.bin holds 29\d; name the tokenizer"
    ):
        stats(str(corpus), str(other))


def test_one_bit_is_noticed(corpus: Path) -> None:
    assert list(wrong(corpus)) == []
    path = corpus / "train-00001.bin"
    before = path.read_bytes()
    path.write_bytes(before[:100] + bytes([before[100] ^ 1]) + before[101:])
    assert list(wrong(corpus)) == ["train-00001.bin"]
    assert "instead of" in wrong(corpus)["train-00001.bin"]
    assert list(wrong(corpus / "train-00001.bin")) == ["train-00001.bin"]
    assert wrong(corpus / "train-00000.bin") == {}
    path.write_bytes(before[:-2])
    assert wrong(corpus) == {"train-00001.bin": f"has {len(before) - 2:,} bytes instead of {len(before):,}"}
    path.write_bytes(before)
    (corpus / "validation-00000.idx").unlink()
    (corpus / "train-00099.bin").write_bytes(before)
    (corpus / record.TOKENIZER).write_text("{}")
    found = wrong(corpus)
    assert found["validation-00000.idx"] == "is not there"
    assert found["train-00099.bin"] == "is not in data.json"
    assert set(found) == {"validation-00000.idx", "train-00099.bin", record.TOKENIZER}


def test_somebody_elses_shards_get_a_record_only_when_asked(place: Location) -> None:
    (place / "part-0.npy").replace(b"\1\0" * 50)
    (place / "deep" / "part-1.npy").replace(b"\2\0" * 50)
    (place / "README").replace(b"hello")
    with pytest.raises(ConfigError, match=r"has none; `froude data verify .* --write` makes one"):
        list(verify(str(place)))
    assert not (place / record.FILE).exists()
    made = write(str(place))
    assert [row["name"] for row in made.shards] == ["deep/part-1.npy", "part-0.npy"]
    assert made.splits == made.tokenizer == {}
    assert made.bytes_per_token("train") is None
    assert wrong(place) == {}
    (place / "deep" / "part-1.npy").replace(b"\2\0" * 49 + b"\3\0")
    assert list(wrong(place)) == ["deep/part-1.npy"]
    with pytest.raises(ConfigError, match=r"--write is for shards without data.json"):
        write(str(place))


def test_there_must_be_shards_and_a_record_of_ours(tmp_path: Path, corpus: Path) -> None:
    with pytest.raises(ConfigError, match=r"must have shards .* has none"):
        write(str(tmp_path / "nothing"))
    with pytest.raises(
        ConfigError, match=r"`DIR.SHARD` must name at least one file, but .*nothing' has no file"
    ):
        stats(str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match=r"data.json must list the shard, but has no x.bin"):
        list(verify(str(corpus / "x.bin")))
    for content in (
        "[]",
        "{",
        '{"version": 2, "shards": []}',
        '{"version": 1, "shards": [{"name": 3}]}',
        '{"version": 1, "shards": [], "splits": {"train": {"tokens": "3"}}}',
        '{"version": 1, "shards": [], "splits": 3}',
        '{"version": 1, "shards": [], "tokenizer": {"sha256": "3"}}',
    ):
        (corpus / record.FILE).write_text(content)
        with pytest.raises(ConfigError, match=r"data.json must list shards by name, size and sha256"):
            stats(str(corpus))
        with pytest.raises(ConfigError, match=r"data.json must list shards by name, size and sha256"):
            list(verify(str(corpus)))


@pytest.mark.parametrize("name", ["train-00000.idx", "validation-00000.bin"])
def test_a_file_that_data_json_lists_is_missed_and_so_is_a_changed_bit(tmp_path: Path, name: str) -> None:
    """Without its .idx a .bin would be read as another format's; without its validation others would be held out."""
    texts, shards = tmp_path / "texts.jsonl", tmp_path / "shards"
    texts.write_text("".join(json.dumps({"text": f"{i} " * 50}) + "\n" for i in range(200)))
    (tmp_path / "tokenizer.json").write_bytes(trained(iter(["0 1 2 3"]), 300))
    made = ["data", "prepare", str(texts), "--out", str(shards), "--eod", "", "--held-out", "0.2"]
    assert main([*made, "--tokenizer", str(tmp_path / "tokenizer.json")]) == 0
    data = {"source": "froude.train.data.shards:Shards", "path": str(shards)}
    run = Run(tokens=768, data=data, model={"vocab": 512, "context": 32})
    build_source(run, "train")
    content = (shards / name).read_bytes()
    (shards / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ConfigError, match=rf"(that data.json lists, SHA-256 .*|in order), but .*{name} has"):
        build_source(run, "train")
    (shards / name).unlink()
    with pytest.raises(ConfigError, match=f"has no {name}"):
        build_source(run, "train")
