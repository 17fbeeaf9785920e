from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from s3_server import place, s3, s3_server
from ship_texts import TEXTS

from froude.corpora.tokenizer import trained

__all__ = ["place", "s3", "s3_server"]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer of 300 tokens."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_bytes(trained(TEXTS, 300))
    return path


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., Path]:
    """Writes documents as JSON lines."""

    def write(texts: Sequence[str], name: str = "texts.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        return path

    return write
