"""A project that a job unpacks into another folder each time is the same project, and its recipe finds its files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tiny_hf import CONFIGS

from froude.config import ConfigError, Run
from froude.corpora import tokenizer
from froude.material.moved import lies_at
from froude.train.hf.config import file_of


def unpacked(folder: Path) -> Run:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS["llama"]))
    (folder / "tokenizer.json").write_text("{}")
    sha256 = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    return Run(
        tokens=768,
        model={
            "factory": "froude.train.hf:Model",
            "options": {"config": str(folder / "config.json"), "config_sha256": sha256},
        },
        data={
            "source": "froude.train.data.text_tokens:TextTokens",
            "path": "s3://bucket/texts",
            "options": {"tokenizer": str(folder / "tokenizer.json")},
        },
    )


def test_it_is_the_same_run_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (unpacked(tmp_path / name) for name in ("_ray_pkg_a", "_ray_pkg_b"))
    assert one.fingerprint == other.fingerprint
    for file in ("config.json", "tokenizer.json"):
        (tmp_path / "_ray_pkg_a" / file).unlink()
    options = one.data.options
    named = str(options["tokenizer"]), str(options["tokenizer_sha256"])
    with pytest.raises(ConfigError, match=r"a tokenizer must be a file that can be read"):
        tokenizer.sha256(*named)
    monkeypatch.chdir(tmp_path / "_ray_pkg_b")
    assert file_of(one) == tmp_path / "_ray_pkg_b" / "config.json"
    assert tokenizer.sha256(*named) == named[1]
    # A file of that name with another content is another file.
    assert lies_at(named[0], "0" * 64) == named[0]
    assert lies_at(named[0], "") == named[0]
