"""Before a sweep starts: foreign code needs trust, and every corpus must be readable."""

import pytest

from froude.config import ConfigError, Run
from froude.train.probe.contract import check_code_and_corpus

RUN = Run(tokens=768, batch=768, data={"source": "froude.train.data.text:TextFile", "path": "none"})


def test_an_unreadable_or_empty_corpus_stops_the_sweep_before_it_starts(tmp_path):
    with pytest.raises(ConfigError, match="must be a readable file"):
        check_code_and_corpus([RUN], trust=False)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ConfigError, match="must not be empty"):
        check_code_and_corpus(
            [RUN.replace({"data.path": str(tmp_path / "empty.txt"), "data.sha256": ""})], trust=False
        )


def test_foreign_code_is_not_imported_without_trust():
    foreign = Run(tokens=768, batch=768, model={"factory": "foreign_model:factory"})
    with pytest.raises(ConfigError, match="--trust"):
        check_code_and_corpus([foreign], trust=False)
    check_code_and_corpus([foreign], trust=True)
