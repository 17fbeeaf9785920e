from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from s3_server import s3_server

from froude.config import Run

__all__ = ["make_run", "s3_server", "text_run"]


@pytest.fixture
def make_run() -> Callable[..., Run]:
    """A Run of one step from dotted keys, e.g. make_run({"model.context": 16})."""

    def make(changes: dict[str, Any] | None = None) -> Run:
        base = Run(batch=768, tokens=768)
        context = (changes or {}).get("model.context", 64)
        return base.replace({"batch": context, "tokens": context, **(changes or {})})

    return make


@pytest.fixture
def text_run(make_run: Callable[..., Run], tmp_path: Path) -> Callable[..., Run]:
    """A Run on a text file with the given bytes."""

    def make(data: bytes, changes: dict[str, Any] | None = None) -> Run:
        path = tmp_path / "text.txt"
        path.write_bytes(data)
        return make_run(
            {
                "data.source": "froude.train.data.text:TextFile",
                "data.path": str(path),
                "model.context": 16,
                **(changes or {}),
            }
        )

    return make
