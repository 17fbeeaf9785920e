"""Plain functions on a cluster's cores: the shards are those of one process, and errors are the user's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from ship_texts import TEXTS

from froude.config import ConfigError
from froude.corpora.prepare import pieces
from froude.corpora.prepare.whole import Options, prepare
from froude.corpora.tokenizer import trained
from froude.launch.cluster import simulated
from froude.launch.tasks import over_cluster

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with simulated(2, log_dir=tmp_path_factory.mktemp("cluster")):
        yield


def test_shards_from_a_cluster_are_those_from_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    source, tokenizer = tmp_path / "texts.jsonl", tmp_path / "t.json"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    tokenizer.write_bytes(trained(TEXTS, 300))
    options = Options(str(tokenizer), shard_tokens=700, held_out=0.2)
    here = prepare([str(source)], tmp_path / "here", options)
    monkeypatch.setattr(pieces, "PIECE", 1000)
    there = prepare([str(source)], tmp_path / "there", options, workers=over_cluster)
    assert len(there.shards) > 6
    assert there.content == here.content
    for name in here.folder.children():
        assert (here.folder / name).read() == (there.folder / name).read()
    with pytest.raises(ConfigError, match=r"line \d+ of .*texts.jsonl has no 'body' \(it has text\)"):
        prepare([str(source)], tmp_path / "bad", Options(str(tokenizer), column="body"), workers=over_cluster)
    assert "Traceback" not in "".join(capfd.readouterr())
    assert list(over_cluster(str, iter([]))) == []


def failing_at_three(number: int) -> int:
    if number == 3:
        raise ConfigError("must not be three")
    return number


def test_an_error_among_tasks_that_are_ending_leaves_the_driver_alive() -> None:
    for _ in range(60):  # the cancelling of tasks that end meanwhile aborted it in two of three such series
        with pytest.raises(ConfigError, match="must not be three"):
            list(over_cluster(failing_at_three, range(12)))
