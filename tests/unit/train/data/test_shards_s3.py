"""Shards on S3: the same windows, documents and hash as on disk; blocks are few, kept, and asked for ahead."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import honest_run
import numpy as np
import pytest
import torch
from s3_server import empty_bucket
from shard_writers import WRITERS, headerless, megatron

from froude.checkpoint.run_store import RunStore
from froude.config import ConfigError, Run
from froude.corpora import blocks, content, corpus, files, listing
from froude.promote.recipe import Recipe
from froude.store import Location
from froude.train.api import Unsupervised
from froude.train.data.order import Batches
from froude.train.data.shards import Shards
from froude.train.exact import environment
from froude.train.worker import run_worker

pytestmark = pytest.mark.slow

DOCUMENTS = [[(i * n) % 251 for i in range(n)] for n in (40, 0, 300, 130, 5, 90, 61, 77, 300, 12)]


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Location:
    return empty_bucket(s3_server, monkeypatch)


def put(folder: Path, bucket: Location) -> None:
    for path in folder.rglob("*"):
        (bucket / path.name).replace(path.read_bytes())


def source(path: object, context: int = 8, **options: Any) -> Shards:
    return Shards(run_of(path, context, **options), "train")


def run_of(path: object, context: int = 8, **options: Any) -> Run:
    return Run(
        tokens=context,
        batch=context,
        model={"context": context},
        data={"source": "froude.train.data.shards:Shards", "path": str(path), "options": options},
    )


@pytest.mark.parametrize("name", list(WRITERS))
def test_they_are_what_they_are_on_disk(tmp_path: Path, bucket: Location, name: str) -> None:
    WRITERS[name][0](tmp_path / "a", DOCUMENTS)
    WRITERS[name][0](tmp_path / "b", DOCUMENTS[::-1])
    put(tmp_path, bucket)
    local, remote = source(tmp_path, held_out=0.2), source(bucket.url, held_out=0.2)
    assert remote.sha256 == local.sha256
    assert remote.length == local.length
    for first, n in ((0, local.length), (local.length - 1, 1), (7, 3)):
        assert (remote.read(first, n) == local.read(first, n)).all()
        if local.documents and remote.documents:
            assert (remote.documents(first, n) == local.documents(first, n)).all()
    pattern = source(f"{bucket.url}/[ab].*", held_out=0.2)
    assert pattern.sha256 == local.sha256


def test_windows_are_asked_for_ahead_and_blocks_kept(
    tmp_path: Path, bucket: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 1 << 10)
    monkeypatch.setattr(blocks, "CACHE", blocks.Cache(1 << 20))
    monkeypatch.setattr(content, "WHOLE", 1)  # so that the hash does not read it all before
    monkeypatch.setattr(content, "BLOCK", 16)
    tokens = np.random.default_rng(0).integers(0, 250, 200_000)
    headerless(tmp_path / "a", [tokens.tolist()])
    headerless(tmp_path / "held", [range(100)])
    put(tmp_path, bucket)
    asked: list[tuple[str, int]] = []
    lock = threading.Lock()
    fetch = files.Remote.fetch

    def counted(self: files.Remote, number: int) -> bytes:
        with lock:
            asked.append((self.url, number))
        return fetch(self, number)

    monkeypatch.setattr(files.Remote, "fetch", counted)
    remote, local = source(bucket.url, validation="held.bin"), source(tmp_path, validation="held.bin")
    here, there = Batches(local, 0, 16, 4), Batches(remote, 0, 16, 4)
    for step in range(4):
        for slot in range(4):
            assert (here.slot(step, slot).tokens == there.slot(step, slot).tokens).all()
    assert len(asked) == len(set(asked))  # no block is fetched twice
    asked.clear()
    there.slot(4, 0)  # it was asked for with batch 3; what is fetched now is of batch 5
    wanted = {(f"{bucket.url}/a.bin", number * 8 * 2 // 1024) for number in there.windows(4, 0)}
    assert not wanted & set(asked)


def test_opening_asks_for_nothing_twice(
    tmp_path: Path, bucket: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache holds the blocks of one file in five, and a folder that was listed is not asked what is beside."""
    monkeypatch.setattr(blocks, "BLOCK", 1 << 10)
    monkeypatch.setattr(blocks, "CACHE", blocks.Cache(1 << 17))
    monkeypatch.setattr(files, "AHEAD", 1 << 14)
    monkeypatch.setattr(content, "WHOLE", 1)
    monkeypatch.setattr(content, "BLOCK", 1 << 10)
    for name in range(8):
        headerless(tmp_path / str(name), [range(name, name + 40_000)])
    put(tmp_path, bucket)
    asked: list[tuple[str, int]] = []
    fetch = files.Remote.fetch

    def counted(self: files.Remote, number: int) -> bytes:
        asked.append((self.url, number))
        return fetch(self, number)

    monkeypatch.setattr(files.Remote, "fetch", counted)
    monkeypatch.setattr(listing, "_infos", None)
    source(bucket.url, validation=f"{bucket.url}/7.bin")
    assert len(set(asked)) >= 8 * 64
    # Their heads, by which format and width are known, do not stay in so small a cache.
    assert len(asked) <= len(set(asked)) + 8 * 4


def test_the_cache_is_bounded_and_forgets_failures() -> None:
    class Failing:
        url, stamp = "s3://b/x", 0
        calls = 0

        def fetch(self, number: int) -> bytes:
            self.calls += 1
            if self.calls == 1:
                raise OSError("the store does not answer")
            return bytes([number])

    cache, file = blocks.Cache(4 * blocks.BLOCK), Failing()
    with pytest.raises(OSError, match="does not answer"):
        cache.get(file, 1)
    assert cache.get(file, 1) == b"\1"
    for number in range(10):
        assert cache.get(file, number) == bytes([number])
    calls = file.calls
    assert cache.get(file, 9) == b"\x09"
    assert file.calls == calls
    cache.get(file, 0)
    assert file.calls == calls + 1


def test_an_object_that_became_shorter_is_an_error(tmp_path: Path, bucket: Location) -> None:
    headerless(tmp_path / "a", [range(200)])
    headerless(tmp_path / "held", [range(100)])
    put(tmp_path, bucket)
    remote = source(bucket.url, validation="held.bin")
    fresh = files.Remote(f"{bucket.url}/a.bin", 400, 1)
    (bucket / "a.bin").replace(b"x" * 300)
    assert remote.length == 24
    with pytest.raises(ConfigError, match=r"must stay as it is while it is read, but s3://.*a.bin"):
        fresh.read(0, 10)


def test_an_object_that_was_written_again_is_an_error(
    bucket: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as many bytes, and after it was opened: its blocks would be other tokens under the same hash."""
    monkeypatch.setattr(blocks, "BLOCK", 1 << 10)
    monkeypatch.setattr(blocks, "CACHE", blocks.Cache(1 << 12))  # of which none is left when they are read
    for name, value in (("a.bin", 7), ("held.bin", 9)):
        (bucket / name).replace(np.full(20_000, value, "<u2").tobytes())
    remote = source(bucket.url, validation="held.bin")
    assert set(remote.read(10, 1)[0]) == {7}
    (bucket / "a.bin").replace(np.full(20_000, 8, "<u2").tobytes())
    with pytest.raises(ConfigError, match=r"must stay as it is .*a.bin was written again; restore it"):
        remote.read(1000, 1)
    (bucket / "a.bin").replace(np.full(20_000, 7, "<u2").tobytes())
    assert set(remote.read(1000, 1)[0]) == {7}


def test_no_such_bucket_is_an_error(bucket: Location) -> None:
    with pytest.raises(ConfigError, match=r"`data.path` must .*s3://"):
        source("s3://no-such-bucket-of-ours/x")
    with pytest.raises(
        ConfigError, match=r"must name at least one file, but 's3://.*/\*.bin' matches no file"
    ):
        source(f"{bucket.url}/*.bin")


def test_samples_of_large_files_are_the_same_on_s3(
    tmp_path: Path, bucket: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "WHOLE", 1000)
    monkeypatch.setattr(content, "BLOCK", 64)
    megatron(tmp_path / "a", DOCUMENTS)
    put(tmp_path, bucket)
    before = source(tmp_path).sha256
    assert source(bucket.url).sha256 == before
    with (tmp_path / "a.bin").open("r+b") as file:
        file.seek(-2, 2)
        file.write(b"\1\0")
    assert source(tmp_path).sha256 != before


@pytest.fixture
def torch_as_before() -> Any:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("torch_as_before")
def test_a_run_on_them_is_verified_against_them(
    tmp_path: Path, bucket: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained on S3; every digest of the ledger is checked against the shards there, which are changed then."""
    shards = tmp_path / "shards"
    shards.mkdir()
    draw = np.random.default_rng(1)
    documents = [draw.integers(0, 256, 700).tolist() for _ in range(12)]
    megatron(shards / "a", documents)
    put(shards, bucket)
    run = honest_run.RUN.replace(
        {
            "data.source": "froude.train.data.shards:Shards",
            "data.path": bucket.url,
            "data.options": {"held_out": 0.1},
        }
    )
    study = tmp_path / "study"
    recipe = honest_run.sealed(study, run=run)
    train(study, recipe, run)
    assert honest_run.failed(study) == []
    megatron(shards / "a", [[token ^ 1 for token in document] for document in documents])
    put(shards, bucket)
    corpus._opened.cache_clear()  # as another process has it: S3 has times of whole seconds
    monkeypatch.setattr(blocks, "CACHE", blocks.Cache())
    assert "every digest is that of the corpus's tokens" in honest_run.failed(study)


def train(study: Path, recipe: Recipe, run: Run) -> None:
    store = RunStore(Location.parse(study) / "runs" / run.name, run.name)
    environment.make_deterministic(torch.device("cpu"))
    here = {"build": environment.describe(torch.device("cpu"))}
    host = Unsupervised(attempt=store.open_attempt(recipe.sha256, here))
    run_worker(run.replace(workers=1), store, host, device="cpu")
