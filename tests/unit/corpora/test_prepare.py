"""Shards made of texts: the same bytes whoever works and however often it was interrupted, and nothing half-written."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ship_texts import TEXTS

from froude.config import ConfigError
from froude.corpora import corpus, record
from froude.corpora.megatron_writer import dtype_for, index
from froude.corpora.prepare import pieces, whole
from froude.corpora.prepare.pieces import text_hash
from froude.corpora.prepare.shards import held_out, repeated
from froude.corpora.prepare.whole import Options, prepare
from froude.corpora.record import Record
from froude.corpora.stream import Stream, each_document
from froude.corpora.tokenizer import load
from froude.store import Location

Lines = Callable[..., Path]
#: What megatron-core 0.16.1's IndexedDatasetBuilder writes of documents [5, 6, 7], [1] and [2, 3].
MEGATRON = {
    "<u2": "4d4d4944494458000001000000000000000803000000000000000400000000000000030000000100000002000000000000000000"
    "0000060000000000000008000000000000000000000000000000010000000000000002000000000000000300000000000000",
    "<i4": "4d4d49444944580000010000000000000004030000000000000004000000000000000300000001000000020000000000000000000"
    "0000c0000000000000010000000000000000000000000000000010000000000000002000000000000000300000000000000",
}


def files(made: Record) -> dict[str, bytes]:
    return {name: (made.folder / name).read() for name in made.folder.children()}


def documents(made: Record, split: str) -> list[list[int]]:
    opened = corpus.open_corpus(made.folder.url, corpus.Options())
    shards = opened.held if split == "validation" else opened.training
    stream = Stream(shards)
    return [stream.read(first, stop - first).tolist() for first, stop in each_document(shards)]


@pytest.mark.parametrize("dtype", ["<u2", "<i4"])
def test_an_index_is_megatrons_own(dtype: str) -> None:
    assert index(np.array([3, 1, 2]), np.dtype(dtype)).hex() == MEGATRON[dtype]


@pytest.mark.parametrize("vocab, dtype", [(65_536, "<u2"), (65_537, "<i4")])
def test_ids_take_two_bytes_where_they_fit(vocab: int, dtype: str) -> None:
    assert dtype_for(vocab) == np.dtype(dtype)


def test_each_document_is_its_tokens_and_an_end_in_order(
    lines: Lines, tokenizer: Path, tmp_path: Path
) -> None:
    texts = [*TEXTS, "", TEXTS[3], " "]
    made = prepare([str(lines(texts))], tmp_path / "out", Options(str(tokenizer), held_out=0.3))
    kept = [text for text in texts if text]
    low = [text_hash(text.encode()) < 0.3 * 2**64 for text in kept]
    ids = [[*each.tolist(), 0] for each in load(str(tokenizer)).ids(kept, np.uint16)]
    assert documents(made, "train") == [each for each, side in zip(ids, low, strict=True) if not side]
    assert documents(made, "validation") == [each for each, side in zip(ids, low, strict=True) if side]
    assert 0 < sum(low) < len(kept)
    for split, chosen in (("train", False), ("validation", True)):
        mine = [text for text, side in zip(kept, low, strict=True) if side == chosen]
        assert made.splits[split] == {
            "documents": len(mine),
            "tokens": sum(len(each) for each in documents(made, split)),
            "bytes": sum(len(text.encode()) for text in mine),
            "duplicates": len(mine) - len(set(mine)),
        }
    assert made.content["empty"] == 1
    assert sum(counts["duplicates"] for counts in made.splits.values()) == 1
    assert made.tokenizer == {
        "name": "tokenizer.json",
        "sha256": load(str(tokenizer)).sha256,
        "vocab": 300,
        "eod": {"token": "<|endoftext|>", "id": 0},
    }
    assert (made.folder / record.TOKENIZER).read() == tokenizer.read_bytes()
    dropped = prepare(
        [str(lines(texts))], tmp_path / "dropped", Options(str(tokenizer), held_out=0.3, drop_duplicates=True)
    )
    both = [*documents(dropped, "train"), *documents(dropped, "validation")]
    assert sorted(both) == sorted(
        {tuple(each) for each in ids} and [list(each) for each in {tuple(e) for e in ids}]
    )
    assert dropped.content["dropped"] == 1


@settings(max_examples=10)  # files are synced to the disk
@given(
    piece=st.integers(20, 4000),
    most=st.integers(1, 900),
    seed=st.integers(0, 99),
    texts=st.lists(st.text(st.characters(codec="utf-8"), max_size=30), min_size=1, max_size=30),
)
def test_bytes_depend_neither_on_pieces_nor_on_workers(
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer: Path,
    piece: int,
    most: int,
    seed: int,
    texts: list[str],
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    for name, some in (("a", texts), ("b", [*texts[:3], "always one"])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in some))
    places = [str(folder / "b.jsonl"), str(folder / "a.jsonl")]
    options = Options(str(tokenizer), held_out=0.2, shard_tokens=most)
    one = prepare(places, folder / "one", options)

    def shuffled(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        return map(function, random.Random(seed).sample(todo := list(tasks), len(todo)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE", piece)
        many = prepare(places, folder / "many", options, workers=shuffled)
    assert files(one) == files(many)
    whole_shards = prepare(places, folder / "whole", Options(str(tokenizer), held_out=0.2))
    for split in ("train", "validation"):
        found = documents(one, split)
        assert found == documents(whole_shards, split)
        sizes = [row["tokens"] for row in one.shards if row["split"] == split and "tokens" in row]
        assert all(size <= most or size in map(len, found) for size in sizes)


@pytest.mark.parametrize("after", [0, 7, 16])
def test_what_was_done_is_not_done_again(
    lines: Lines, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(pieces, "PIECE", 1000)
    options = Options(str(tokenizer), shard_tokens=500)
    source = str(lines(TEXTS))
    expected = files(prepare([source], tmp_path / "whole", options))
    done: list[Any] = []

    def until(last: int) -> whole.Workers:
        def work(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
            for task in tasks:
                if len(done) == last:
                    raise KeyboardInterrupt
                done.append(task)
                yield function(task)

        return work

    with pytest.raises(KeyboardInterrupt):
        prepare([source], tmp_path / "out", options, workers=until(after))
    assert not (tmp_path / "out" / record.FILE).exists()
    tokenised = [task for task in done if isinstance(task, pieces.Piece)]
    done.clear()
    made = prepare([source], tmp_path / "out", options, workers=until(-1))
    assert not {task.key for task in done if isinstance(task, pieces.Piece)} & {
        task.key for task in tokenised
    }
    assert files(made) == expected
    done.clear()
    again = prepare([source], tmp_path / "out", options, workers=until(-1))
    assert again.content == made.content
    assert not any(isinstance(task, pieces.Piece) for task in done)


def test_what_a_call_with_other_options_left_is_in_no_corpus(
    lines: Lines, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun with small shards, then others, then small ones again: every token is in it once."""
    source, out = str(lines(TEXTS)), tmp_path / "out"
    options = [Options(str(tokenizer), shard_tokens=most, held_out=0.3) for most in (300, 200, 300, 10**6)]
    expected = files(prepare([source], tmp_path / "whole", options[-1]))
    kept = record.write

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    for each in options[:-1]:
        monkeypatch.setattr(record, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare([source], out, each)
    (out / record.PIECES / ".left.tmp").write_text("by a writer that was killed")
    monkeypatch.setattr(record, "write", kept)
    assert files(prepare([source], out, options[-1])) == expected
    assert sorted(os.listdir(out)) == sorted(os.listdir(tmp_path / "whole"))


@pytest.mark.parametrize("most", [300, 200, 10**6])
def test_shards_of_other_options_in_between_are_written_again(
    lines: Lines, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    source, kept = str(lines(TEXTS)), record.write
    one, other = (Options(str(tokenizer), shard_tokens=each) for each in (300, most))
    expected = files(prepare([source], tmp_path / "whole", one))

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(record, "write", killed)
    for each in (one, other):
        with pytest.raises(KeyboardInterrupt):
            prepare([source], tmp_path / "out", each)
    monkeypatch.setattr(record, "write", kept)
    assert files(prepare([source], tmp_path / "out", one)) == expected


def test_a_mended_text_leaves_the_pieces_of_others(
    lines: Lines, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE", 1000)
    good, bad = lines(TEXTS, "a.jsonl"), lines(TEXTS[:3], "b.jsonl")
    bad.write_text(bad.read_text() + "no json\n")
    places, out = [str(good), str(bad)], tmp_path / "out"
    with pytest.raises(ConfigError, match=r"line 4 of .*b.jsonl is no JSON"):
        prepare(places, out, Options(str(tokenizer)))
    kept = {name for name in os.listdir(out / "pieces") if name.endswith(".npz")}
    assert len(kept) > 3
    lines(TEXTS[:3], "b.jsonl")
    tokenised: list[str] = []
    tokenise = pieces.tokenise
    monkeypatch.setattr(pieces, "tokenise", lambda piece: (tokenised.append(piece.key), tokenise(piece))[1])
    prepare(places, out, Options(str(tokenizer)))
    assert 0 < len(tokenised) <= 2
    assert sorted(os.listdir(out)) == [
        *("data.json", "tokenizer.json", "train-00000.bin", "train-00000.idx"),
        *("validation-00000.bin", "validation-00000.idx"),
    ]


def test_another_corpus_is_never_written_over(lines: Lines, tokenizer: Path, tmp_path: Path) -> None:
    source, out = str(lines(TEXTS)), tmp_path / "out"
    prepare([source], out, Options(str(tokenizer)))
    before = {name: (out / name).stat().st_mtime_ns for name in os.listdir(out)}
    moved = lines(TEXTS, "moved.jsonl")
    assert prepare([str(moved)], out, Options(str(tokenizer))).content["inputs"][0]["name"] == "texts.jsonl"
    for options, texts, match in (
        (Options(str(tokenizer), held_out=0.5), TEXTS, r"holds one of held_out 0.01; name another folder"),
        (Options(str(tokenizer), end=""), TEXTS, r"holds one of another tokenizer"),
        (Options(str(tokenizer)), TEXTS[1:], r"holds one of other texts"),
    ):
        with pytest.raises(ConfigError, match=match):
            prepare([str(lines(texts))], out, options)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match=r"new folder, .* but .*mine holds thesis.tex; name another"):
        prepare([str(moved)], tmp_path / "mine", Options(str(tokenizer)))
    assert {name: (out / name).stat().st_mtime_ns for name in os.listdir(out)} == before


def test_a_full_disk_leaves_nothing_half_written(
    lines: Lines, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out, sync = str(lines(TEXTS)), tmp_path / "out", os.fsync
    left = 0

    def full(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0 and os.path.isfile(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    expected = files(prepare([source], tmp_path / "whole", Options(str(tokenizer))))
    monkeypatch.setattr(os, "fsync", full)
    told: list[str] = []
    for budget in range(0, 60, 3):
        left = budget
        try:
            made = prepare([source], out, Options(str(tokenizer)))
            break
        except ConfigError as error:
            told.append(str(error))
        assert not (out / record.FILE).exists()
        shards = [name for name in os.listdir(out) if name.endswith((".bin", ".idx"))] if out.exists() else []
        assert all((out / name).read_bytes() == expected[name] for name in shards)
    assert len(told) > 3
    assert all("No space left on device; choose another place or free it" in each for each in told)
    assert files(made) == expected


@pytest.mark.parametrize(
    "texts, options, match",
    [
        ([], {}, r"must hold text, but .* have 0 bytes"),
        (["", ""], {}, r"must hold text, but all 2 documents are empty"),
        (["x"], {"held_out": 1.0}, r"--held-out must be a share from 0 to below 1, but got 1.0"),
        (["x"], {"held_out": float("nan")}, r"--held-out must be a share"),
        (["x"], {"shard_tokens": 0}, r"--shard-tokens must be at least 1"),
        (["x"], {"end": "<no>"}, r"eod must be a token of the tokenizer"),
    ],
)
def test_nothing_to_make_is_refused(
    lines: Lines, tokenizer: Path, tmp_path: Path, texts: list[str], options: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        prepare([str(lines(texts))], tmp_path / "out", Options(str(tokenizer), **options))


def test_a_text_that_changes_meanwhile_is_refused(lines: Lines, tokenizer: Path, tmp_path: Path) -> None:
    path = lines(TEXTS)

    def disturbed(stage: str, share: float, what: str) -> None:
        if stage == "tokenise":
            lines(TEXTS[:-1])

    with pytest.raises(ConfigError, match=r"must stay as they are .*texts.jsonl changed; start again"):
        prepare([str(path)], tmp_path / "out", Options(str(tokenizer)), progress=disturbed)


@pytest.mark.slow
def test_it_works_on_s3(lines: Lines, tokenizer: Path, tmp_path: Path, s3: Location) -> None:
    (s3 / "texts" / "a.jsonl").replace(lines(TEXTS).read_bytes())
    (s3 / "t" / "tokenizer.json").replace(tokenizer.read_bytes())
    options = Options(f"{s3}/t/tokenizer.json", shard_tokens=1000)
    made = prepare([f"{s3}/texts"], f"{s3}/out", options)
    local = prepare(
        [str(lines(TEXTS, "a.jsonl"))], tmp_path / "out", Options(str(tokenizer), shard_tokens=1000)
    )
    assert made.content["shards"] == local.content["shards"]
    assert documents(made, "train") == documents(local, "train")
    assert (s3 / "out").children() == local.folder.children()


def test_of_few_documents_the_lowest_is_held_out() -> None:
    hashes = np.array([2**63, 2**62, 2**62, 2**61 + 1], dtype=np.uint64)
    assert held_out(hashes, 0.001).tolist() == [False, False, False, True]
    assert held_out(hashes, 0.3).tolist() == [False, True, True, True]
    assert not held_out(hashes, 0.0).any()
    assert not held_out(hashes[:1], 0.01).any()
    assert not held_out(hashes[1:3], 0.01).any()  # all are one document
    assert repeated(hashes, np.array([5, 6, 6, 7])).tolist() == [False, False, True, False]
    assert not repeated(hashes, np.array([5, 6, 7, 7])).any()
