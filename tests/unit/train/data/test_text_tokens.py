"""Text through a tokenizer: windows of the very tokens, a cache that is made once, and a tokenizer that is pinned."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3_server import empty_bucket
from ship_texts import TEXTS

from froude.config import ConfigError, Run
from froude.corpora.prepare import whole
from froude.corpora.prepare.pieces import text_hash
from froude.corpora.tokenizer import load, trained
from froude.space import Grid, Space, Trial
from froude.store import Location
from froude.sweep import trial_store
from froude.sweep.changed_material import Materials, compare
from froude.train.api import build_source, bytes_per_token, material_of
from froude.train.data import text_tokens
from froude.train.data.text_tokens import TextTokens
from froude.train.trial import run_trial

TokensRun = Callable[..., Run]


@pytest.fixture
def tokens_run(make_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TokensRun:
    """A Run on some documents through a tokenizer of 300 tokens."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "tokenizer.json").write_bytes(trained(TEXTS, 300))
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))

    def make(changes: dict[str, Any] | None = None) -> Run:
        return make_run(
            {
                "data.source": "froude.train.data.text_tokens:TextTokens",
                "data.path": str(tmp_path / "texts.jsonl"),
                "data.options.tokenizer": str(tmp_path / "tokenizer.json"),
                "data.options.held_out": 0.2,
                "model.context": 16,
                "model.vocab": 300,
                **(changes or {}),
            }
        )

    return make


def test_windows_are_of_the_documents_tokens(tokens_run: TokensRun, tmp_path: Path) -> None:
    run = tokens_run()
    ids = load(str(tmp_path / "tokenizer.json")).ids(TEXTS, np.int64)
    low = [text_hash(text.encode()) < 0.2 * 2**64 for text in TEXTS]
    for split in ("train", "validation"):
        mine = [i for i, side in enumerate(low) if side == (split == "validation")]
        stream = np.concatenate([np.append(ids[i], 0) for i in mine])
        source = build_source(run, split)
        assert source.length == (len(stream) - 1) // 16
        rows = source.read(0, source.length)
        assert rows.dtype == np.uint16
        assert np.array_equal(rows[:, :-1].reshape(-1), stream[: source.length * 16])
        assert np.array_equal(rows[:, 1:].reshape(-1), stream[1 : source.length * 16 + 1])
        assert np.array_equal(source.read(3, 1)[0], stream[48:65])
    held = [TEXTS[i] for i, side in enumerate(low) if side]
    expected = sum(len(text) for text in held) / sum(len(ids[i]) + 1 for i, side in enumerate(low) if side)
    assert bytes_per_token(run, build_source(run, "validation")) == expected


def test_shards_of_the_same_texts_have_the_same_windows(tokens_run: TokensRun, tmp_path: Path) -> None:
    run = tokens_run()
    for shard_tokens in (1 << 28, 500):
        options = whole.Options(str(tmp_path / "tokenizer.json"), held_out=0.2, shard_tokens=shard_tokens)
        made = whole.prepare([run.data.path], tmp_path / f"out-{shard_tokens}", options)
        changes = {
            "data.source": "froude.train.data.shards:Shards",
            "data.path": made.folder.url,
            "data.options": {},
        }
        for split in ("train", "validation"):
            ours, theirs = build_source(run, split), build_source(run.replace(changes), split)
            assert ours.length == theirs.length
            assert np.array_equal(ours.read(0, ours.length), theirs.read(0, theirs.length))
            assert np.array_equal(ours.documents(0, ours.length), theirs.documents(0, theirs.length))
            assert (
                bytes_per_token(run, ours)
                == bytes_per_token(run, theirs)
                == made.bytes_per_token("validation")
            )
        assert len(made.shards) > 4 or shard_tokens == 1 << 28


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_texts_on_s3_have_the_same_windows(
    tokens_run: TokensRun, tmp_path: Path, s3_server: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    bucket, local = empty_bucket(s3_server, monkeypatch), tmp_path / "texts"
    local.mkdir()
    for name, texts in (("a", TEXTS[:25]), ("b", TEXTS[25:])):
        file = local / f"{name}.{kind}"
        if kind == "parquet":
            rows = pa.table({"number": range(len(texts)), "text": texts})
            pq.write_table(rows, file, row_group_size=10)
        else:
            file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        (bucket / "texts" / file.name).replace(file.read_bytes())
    (bucket / "tokenizer.json").replace((tmp_path / "tokenizer.json").read_bytes())
    here = tokens_run({"data.path": str(local)})
    there = tokens_run(
        {
            "data.path": (bucket / "texts").url,
            "data.options.tokenizer": (bucket / "tokenizer.json").url,
            "data.options.cache": str(tmp_path / "another"),  # so that it is made of what lies on S3
        }
    )
    for split in ("train", "validation"):
        ours, theirs = build_source(here, split), build_source(there, split)
        assert theirs.sha256 == ours.sha256
        assert theirs.length == ours.length
        assert np.array_equal(theirs.read(0, theirs.length), ours.read(0, ours.length))
        assert np.array_equal(theirs.documents(0, theirs.length), ours.documents(0, ours.length))


def test_it_is_tokenised_once_wherever_it_lies(
    tokens_run: TokensRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tokens_run()
    first = build_source(run, "train")
    (moved := tmp_path / "elsewhere").mkdir()
    for name in ("texts.jsonl", "tokenizer.json"):
        shutil.copy(tmp_path / name, moved / name)
    there = {"data.path": str(moved / "texts.jsonl"), "data.options.tokenizer": str(moved / "tokenizer.json")}
    monkeypatch.setattr(text_tokens, "prepare", None)
    for split in ("train", "validation"):
        assert build_source(tokens_run(there), split).sha256 == first.sha256
    assert tokens_run(there).fingerprint == run.fingerprint
    assert tokens_run(there).data.settings == run.data.settings
    assert run.differences(tokens_run(there)) == []
    assert Run.from_toml(run.to_toml()).fingerprint == run.fingerprint
    with pytest.raises(ConfigError, match="'NoneType' object is not callable"):
        build_source(tokens_run({"data.options.held_out": 0.3}), "train")
    with pytest.raises(ConfigError, match="'NoneType' object is not callable"):
        build_source(tokens_run({"data.options.cache": str(tmp_path / "other")}), "train")


def test_json_lines_under_the_name_of_a_plain_text_are_other_tokens(
    tokens_run: TokensRun, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        for number in range(20):
            path = tmp_path / name / f"{number}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps({"text": f"{number} is what text {number} says"}) + "\n")
    first = TextTokens(tokens_run({"data.path": str(tmp_path / "a")}), "train")
    for path in (tmp_path / "b").iterdir():
        path.rename(path.with_suffix(".jsonl"))
    second = TextTokens(tokens_run({"data.path": str(tmp_path / "b")}), "train")
    assert second.sha256 != first.sha256
    assert second.length < first.length  # no braces and no names of columns


@pytest.mark.parametrize("damaged", ["train-*.bin", "validation-*.idx", "data.json"])
def test_a_cache_that_was_changed_is_made_anew(tokens_run: TokensRun, tmp_path: Path, damaged: str) -> None:
    run = tokens_run()
    known = {split: build_source(run, split) for split in ("train", "validation")}
    before = {split: source.read(0, source.length) for split, source in known.items()}
    (file,) = (tmp_path / "cache").rglob(damaged)
    made = {each.name: each.read_bytes() for each in file.parent.iterdir()}
    content = bytearray(made[file.name])
    content[-3] ^= 1  # of the same size
    file.unlink()
    file.write_bytes(content)
    with pytest.warns(UserWarning, match=f"the tokens in {file.parent} are made anew: .*{file.name}"):
        build_source(run, "train")
    for split, source in known.items():
        again = build_source(run, split)
        assert again.sha256 == source.sha256
        assert np.array_equal(again.read(0, again.length), before[split])
    assert {each.name: each.read_bytes() for each in file.parent.iterdir()} == made


def test_a_cache_that_can_only_be_read_serves(tokens_run: TokensRun, tmp_path: Path) -> None:
    run = tokens_run()
    source = build_source(run, "train")
    (lock,) = (tmp_path / "cache").rglob("*.lock")
    lock.unlink()
    lock.mkdir()  # whoever would take it gets an error, root too
    assert build_source(run, "train").length == source.length


def test_another_tokenizer_under_the_same_name_is_another_run(tokens_run: TokensRun, tmp_path: Path) -> None:
    planned = tokens_run()
    before = material_of(planned)
    digest = load(str(tmp_path / "tokenizer.json")).sha256
    assert planned.data.options["tokenizer_sha256"] == digest
    trial = Trial("t", (planned.replace(name="t", stage="g", **{"model.width": 16}),))
    outcome = run_trial(trial.runs, trial="t")
    place = Location(str(tmp_path / "study"))
    trial_store.write(
        place, trial, trials=outcome.trials, steps=outcome.steps, evals=outcome.evals, material=before
    )
    (tmp_path / "tokenizer.json").write_bytes(trained(TEXTS, 290))
    # The run as it was planned is refused, in words, before anything starts.
    with pytest.raises(
        ConfigError, match=rf"the run was planned with, SHA-256 {digest[:12]}….*tokenizer.json has"
    ):
        build_source(planned, "train")
    # The same file planned anew is another run of other material, which a sweep does not mix with the old.
    now = tokens_run()
    assert now.fingerprint != planned.fingerprint
    assert planned.differences(now) == [
        f"data.options.tokenizer_sha256 {now.data.options['tokenizer_sha256'][:12]}… instead of {digest[:12]}…"
    ]
    assert before.changes(material_of(now)) == [
        f"the corpus is {build_source(now, 'train').sha256[:12]}… instead of {before.corpus['corpus'][:12]}…"
    ]
    space = Space("x", 0, (Grid("g", lambda _: [], "loss_law"),), now)
    found = compare(trial_store.read_all(place).values(), [space.target], Materials())
    assert list(found.changed) == ["t"]
    assert found.changed["t"][0].startswith("the corpus is")


def test_a_tokenizer_that_is_named_for_shards_is_part_of_the_run(
    tokens_run: TokensRun, tmp_path: Path
) -> None:
    named, shards = str(tmp_path / "tokenizer.json"), "froude.train.data.shards:Shards"
    made = whole.prepare([tokens_run().data.path], tmp_path / "out", whole.Options(named, held_out=0.2))
    plain = tokens_run({"data.source": shards, "data.path": made.folder.url, "data.options": {}})
    run = plain.replace({"data.options.tokenizer": named})
    assert run.data.options["tokenizer_sha256"] == load(named).sha256
    assert run.fingerprint != plain.fingerprint
    assert material_of(run).digest != material_of(plain).digest
    before = material_of(run)
    copy = tmp_path / "copy.json"
    shutil.copy(named, copy)
    moved = plain.replace({"data.options.tokenizer": str(copy)})
    assert (moved.fingerprint, material_of(moved)) == (run.fingerprint, before)
    with pytest.raises(ConfigError, match="which is empty; name the tokenizer"):
        build_source(plain.replace({"data.options.tokenizer_sha256": "a" * 64}), "train")
    copy.write_bytes(trained(TEXTS, 290))
    with pytest.raises(ConfigError, match="must be the one that the run was planned with"):
        build_source(moved, "train")
    with pytest.raises(
        ConfigError, match=r"must be read with the tokenizer that made them, tokenizer.json \(SHA-256"
    ):
        build_source(plain.replace({"data.options.tokenizer": str(copy)}), "train")
    # Where nothing says what made the shards, another tokenizer is another corpus.
    (made.folder / "data.json").path.unlink()
    other, same = (
        material_of(plain.replace({"data.options.tokenizer": str(each)})) for each in (copy, named)
    )
    assert other.digest != same.digest


def test_losses_are_told_in_bits_per_byte(tokens_run: TokensRun) -> None:
    run = tokens_run({"model.width": 16})
    known = bytes_per_token(run, build_source(run, "validation"))
    assert known
    assert known > 1.5
    outcome = run_trial([run], trial="t")
    for row in (*outcome.trials, *outcome.evals):
        assert row["bits_per_byte"] == pytest.approx(row["loss"] / math.log(2) / known)
    bytewise = run_trial([Run(tokens=768, batch=768, model={"width": 16})], trial="k").trials[0]
    assert bytewise["bits_per_byte"] == bytewise["loss"] / math.log(2)


def test_a_mixtures_bytes_per_token_are_those_of_its_validation_windows(
    tokens_run: TokensRun, tmp_path: Path
) -> None:
    (tmp_path / "bytes.txt").write_text("\n".join(TEXTS) * 20)
    tokens = tokens_run().data.model_dump(include={"source", "path", "options"})
    plain = {"source": "froude.train.data.text:TextFile", "path": str(tmp_path / "bytes.txt")}
    markov = {"source": "froude.train.data.markov:Markov"}
    parts = [
        {"name": "tokens", "weight": 0.25, **tokens},
        {"name": "plain", "weight": 0.75, **plain},
        {"name": "markov", "weight": 1, **markov},  # which knows none, and has no window in the last phase
    ]
    phases = [{"from_share": 0.5, "weights": {"tokens": 1, "plain": 3}}]
    base = tokens_run({"eval_windows": 40}).to_dict() | {"data": {"parts": parts, "phases": phases}}
    held = build_source(run := Run.from_dict(base), "validation")
    assert held.parts_of(held._held) == {"tokens": 10, "plain": 30}
    known = build_source(tokens_run(), "validation").bytes_per_token
    assert bytes_per_token(run, held) == pytest.approx((10 * known + 30 * 1.0) / 40)
    mixed = run.replace({"data.phases": []})
    assert bytes_per_token(mixed, build_source(mixed, "validation")) is None


@pytest.mark.parametrize("given", [0, -1.0, math.nan, math.inf, "3", True])
def test_bytes_per_token_must_be_a_positive_number(given: object) -> None:
    class Odd:
        bytes_per_token = given

    with pytest.raises(ConfigError, match="`bytes_per_token` must be a positive number, but that of"):
        bytes_per_token(Run(tokens=768), Odd())  # type: ignore[arg-type]


def test_unusable_texts_are_refused(
    tokens_run: TokensRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.txt").write_text(TEXTS[0] * 90)
    (tmp_path / "bad.jsonl").write_bytes(b'{"text": "caf\xe9"}\n')
    (tmp_path / "no.json").write_text("{}")
    for changes, match in (
        ({"data.path": ""}, r"`data.path` must name a text"),
        ({"data.path": str(tmp_path / "gone.txt")}, r"gone.txt is empty or not there"),
        ({"data.path": str(tmp_path / "bad.jsonl")}, r"bad.jsonl has byte 0xe9 at offset 13"),
        ({"data.path": str(tmp_path / "one.txt")}, r"the texts have 1 in all, .* one document: divide it"),
        ({"data.options.tokenizer": ""}, r"`data.options.tokenizer` must name a tokenizer.json"),
        ({"data.options.tokenizer": str(tmp_path / "no.json")}, r"no.json has no `model`"),
        ({"data.options.tokenizer": str(tmp_path / "gone.json")}, r"there is no file .*gone.json"),
        ({"data.options.colum": "text"}, r"did you mean `column`"),
        ({"data.options.column": "body"}, r"line 1 of .* has no 'body'"),
        ({"data.options.eod": "<end>"}, r"eod must be a token"),
        (
            {"model.vocab": 299},
            r"`model.vocab` must be at least 300 for the tokenizer tokenizer.json, but got 299",
        ),
        (
            {"data.sha256": "0" * 64},
            r"`data.sha256` must be the SHA-256 of .*texts.jsonl' with tokenizer.json",
        ),
        ({"data.options.cache": "s3://bucket/x"}, r"cache` must be a local folder"),
        ({"model.context": 4096}, r"at least one window of context \+ 1 = 4097 tokens, but holds"),
    ):
        with pytest.raises(ConfigError, match=match):
            TextTokens(tokens_run(changes), "validation")
    monkeypatch.setattr(text_tokens, "MOST_BYTES", 1000)
    with pytest.raises(ConfigError, match=r"make shards of it once, with `froude data prepare`"):
        TextTokens(tokens_run(), "train")
