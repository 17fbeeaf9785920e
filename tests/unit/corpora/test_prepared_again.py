"""The same command over a finished folder, and over one whose making was stopped at its very end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ship_texts import TEXTS

from froude.config import ConfigError
from froude.corpora import record
from froude.corpora.prepare import whole
from froude.corpora.prepare.whole import Options, prepare
from froude.corpora.record import Record

Lines = Callable[..., Path]


def files(made: Record) -> dict[str, bytes]:
    return {name: (made.folder / name).read() for name in made.folder.children()}


def test_a_call_stopped_at_the_very_end_is_ended_by_the_next(
    lines: Lines, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, options = str(lines(TEXTS)), Options(str(tokenizer))
    expected = files(prepare([source], tmp_path / "whole", options))

    def stopped(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(whole.shutil, "rmtree", stopped)
        with pytest.raises(KeyboardInterrupt):
            prepare([source], tmp_path / "out", options)
    assert (tmp_path / "out" / record.PIECES).exists()
    assert files(prepare([source], tmp_path / "out", options)) == expected


def test_a_text_under_another_kind_of_name_is_another_corpus(
    lines: Lines, tokenizer: Path, tmp_path: Path
) -> None:
    source = lines(TEXTS)
    plain = source.rename(source.with_suffix(".txt"))
    options = Options(str(tokenizer))
    prepare([str(plain)], tmp_path / "out", options)
    with pytest.raises(ConfigError, match="holds one of other texts"):
        prepare([str(plain.rename(source))], tmp_path / "out", options)
