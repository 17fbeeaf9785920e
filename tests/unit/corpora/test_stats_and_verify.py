"""What is told of shards, and which are no longer what they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ship_texts import TEXTS

from froude.config import ConfigError
from froude.corpora import pair, record
from froude.corpora.prepare.whole import Options, prepare
from froude.corpora.stats import QUANTILES, stats
from froude.corpora.tokenizer import load, trained
from froude.corpora.verify import verify, write
from froude.store import Location

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
        pairs = [one for one in pair.of_folder(Location(str(corpus))) if one.location.name.startswith(name)]
        lengths = np.sort(np.concatenate([one.lengths for one in pairs]))
        ids = np.concatenate([one.tokens() for one in pairs])
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
    assert bare["train"].nbytes is None
    assert bare["train"].to_dict()["bytes_per_token"] is None
    assert "name the tokenizer with --tokenizer" in "\n".join(bare["train"].lines())
    assert {name: each.to_dict() for name, each in stats(str(corpus), str(tokenizer)).items()} == {
        name: each.to_dict() for name, each in found.items()
    }


def test_stats_of_one_shard_are_its_own(corpus: Path, tokenizer: Path) -> None:
    one = stats(str(corpus / "train-00001.bin"), str(tokenizer))["train"]
    assert one.tokens == pair.read(Location(str(corpus / "train-00001.bin"))).lengths.sum()
    assert one.nbytes
    assert one.to_dict() == stats(str(corpus / "train-00001.idx"), str(tokenizer))["train"].to_dict()


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
    with pytest.raises(ConfigError, match=r"must have Megatron pairs .* has none; .*froude data prepare"):
        stats(str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match=r"data.json must list the shard, but has no x.bin"):
        list(verify(str(corpus / "x.bin")))
    for content in ("[]", "{", '{"version": 2, "shards": []}', '{"version": 1, "shards": [{"name": 3}]}'):
        (corpus / record.FILE).write_text(content)
        with pytest.raises(ConfigError, match=r"data.json must list shards by name, size and sha256"):
            list(verify(str(corpus)))


def test_an_index_that_does_not_fit_is_refused(corpus: Path, tokenizer: Path) -> None:
    place = Location(str(corpus / "train-00000.bin"))
    data, path = place.read(), corpus / "train-00000.idx"
    index = path.read_bytes()
    for content, match in (
        (b"X" + index[1:], r"must begin with MMIDIDX and version 1"),
        (index[:9] + b"\2" + index[10:], r"must begin with MMIDIDX and version 1"),
        (index[:17] + b"\7" + index[18:], r"has code|MMIDIDX"),
        (index[:-8], r"was cut; write it anew"),
        (index[:10], r"must begin with|was cut"),
        (index[:-8] + (999).to_bytes(8, "little"), r"must list documents in order"),
    ):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=match):
            pair.read(place)
    path.write_bytes(index)
    place.replace(data[:-2])
    with pytest.raises(
        ConfigError, match=rf"must fit its .bin, but .* has {len(data)} bytes .* {len(data) - 2}"
    ):
        pair.read(place)
    place.delete()
    with pytest.raises(ConfigError, match=r"must have a .bin beside it, but there is no file"):
        pair.read(place)
    path.unlink()
    with pytest.raises(ConfigError, match=r"must have an .idx beside it, but there is no file"):
        pair.read(place)
    assert load(str(tokenizer)).size == 300
