"""Tokenizers: what a file's settings for models must not do to a corpus."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ship_texts import TEXTS

from froude.config import ConfigError
from froude.corpora.tokenizer import Tokenizer, load, trained


def changed(path: Path, tmp_path: Path, **changes: Any) -> Path:
    table = json.loads(path.read_text())
    for key, value in changes.items():
        place = table
        *sections, last = key.split("__")
        for section in sections:
            place = place[section]
        place[last] = value
    target = tmp_path / "changed.json"
    target.write_text(json.dumps(table))
    return target


def test_documents_are_neither_cut_nor_filled_up(tokenizer: Path, tmp_path: Path) -> None:
    import tokenizers

    theirs = tokenizers.Tokenizer.from_file(str(tokenizer))
    plain = load(str(tokenizer)).ids(TEXTS, np.uint16)
    assert [each.tolist() for each in plain] == [theirs.encode(text).ids for text in TEXTS]
    theirs.enable_truncation(4)
    theirs.enable_padding(length=64, pad_id=0)
    theirs.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    theirs.save(str(tmp_path / "set.json"))
    assert len(theirs.encode(TEXTS[0]).ids) == 64
    found = load(str(tmp_path / "set.json")).ids(TEXTS, np.uint16)
    assert all(np.array_equal(a, b) for a, b in zip(found, plain, strict=True))


@given(st.lists(st.text(st.characters(codec="utf-8")), max_size=5))
def test_a_byte_level_tokenizer_loses_nothing_and_no_text_spells_its_end(texts: list[str]) -> None:
    made = Tokenizer(trained(TEXTS, 300), "t.json")
    written = [*texts, f"a<|endoftext|>b{''.join(texts)}"]
    for text, ids in zip(written, made.ids(written, np.uint16), strict=True):
        assert 0 not in ids
        assert made.text(ids) == text


def test_the_same_texts_give_the_same_file_in_any_process(tokenizer: Path, root: Path) -> None:
    code = "from ship_texts import TEXTS; from froude.corpora.tokenizer import trained; import hashlib; " + (
        "print(hashlib.sha256(trained(TEXTS, 300)).hexdigest())"
    )
    path = f"{root / 'platform'}:{root / 'tests/data'}"
    environment = {"PYTHONPATH": path, "PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "3"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert (
        done.stdout.strip()
        == hashlib.sha256(tokenizer.read_bytes()).hexdigest()
        == load(str(tokenizer)).sha256
    )


def test_the_end_of_documents_is_found_or_named(tokenizer: Path, tmp_path: Path) -> None:
    made = load(str(tokenizer))
    assert made.size == 300
    assert made.end(None) == ("<|endoftext|>", 0)
    assert made.end("") is None
    assert made.end("<|endoftext|>") == made.end(None)
    with pytest.raises(ConfigError, match=r"eod must be a token .* has no '<end>'"):
        made.end("<end>")
    nameless = json.loads(tokenizer.read_text())
    nameless["added_tokens"] = []
    del nameless["model"]["vocab"]["<|endoftext|>"]
    (tmp_path / "n.json").write_text(json.dumps(nameless))
    with pytest.raises(ConfigError, match=r"must end with a token, but n.json has none of .*as eod"):
        load(str(tmp_path / "n.json")).end(None)


@pytest.mark.parametrize(
    "content, match",
    [
        (b"", r"t.json is no JSON \(Expecting value.*froude data train-tokenizer"),
        (b"\xff\xfe", r"t.json is no JSON"),
        (b"[]", r"t.json has no `model`"),
        (b'{"hidden_size": 64}', r"t.json has no `model`"),
        (b'{"model": {"type": "Nonsense"}}', r"must be a tokenizer.json .*, but t.json: "),
        (
            b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}',
            r"vocabulary, but that of t.json is empty",
        ),
    ],
)
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, content: bytes, match: str) -> None:
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(ConfigError, match=match) as error:
        load(str(tmp_path / "t.json"))
    assert "\n" not in str(error.value)


def test_random_merges_a_missing_file_and_a_missing_library_are_refused(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"drops merges at random \(model.dropout = 0.1\)"):
        load(str(changed(tokenizer, tmp_path, model__dropout=0.1)))
    with pytest.raises(ConfigError, match=r"there is no file .*missing.json"):
        load(str(tmp_path / "missing.json"))
    with pytest.raises(ConfigError, match=r"--vocab must be at least 257"):
        trained(TEXTS, 256)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[data\]'"):
        Tokenizer(tokenizer.read_bytes() + b" ", "t.json")
