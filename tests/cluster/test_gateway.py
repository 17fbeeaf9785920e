"""Commit log and checkpoints on a real S3 server: races, refused rights, and writers that come back from the dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import botocore.auth
import gateway
import honest_run
import pytest
import torch

from froude import Study
from froude.checkpoint import tools
from froude.checkpoint.commit import Fenced
from froude.checkpoint.retention import Keep
from froude.checkpoint.run_store import RunStore
from froude.checkpoint.tensors import digest
from froude.config import ConfigError
from froude.runlog import LogReader
from froude.s3 import Refused
from froude.schemas import LEDGER, table
from froude.store import Location, probe_writable
from froude.train.api import Unsupervised
from froude.train.worker import run_worker

pytestmark = pytest.mark.long

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def server() -> Iterator[gateway.Gateway]:
    if not gateway.installed():
        pytest.skip(gateway.MISSING)
    with gateway.serve() as running, gateway.reached(running):
        yield running


@pytest.fixture
def s3(server: gateway.Gateway) -> Location:
    """A folder in an empty bucket of one's own."""
    return Location.parse(f"s3://{gateway.new_bucket()}/a folder")


@pytest.fixture(params=["disk", "gateway"])
def place(request: pytest.FixtureRequest) -> Location:
    if request.param == "gateway":
        found: Location = request.getfixturevalue("s3")
        return found
    return Location.parse(request.getfixturevalue("tmp_path") / "a folder")


def state(value: int = 0) -> dict[str, torch.Tensor]:
    """16 MiB, so that its file is uploaded in several pieces."""
    return {"w": torch.full((4, 1 << 20), float(value)), "n": torch.tensor(value)}


def save(store: RunStore, step: int, **options: Any) -> None:
    rows = [{"run": "large", "attempt": 1, "step": step, "slot": 0, "tokens": 10}]
    store.save(state(step), step=step, tokens=10 * step, tables={"ledger": table(LEDGER, rows)}, **options)


def opened(place: Location, keep: Keep | None = None) -> RunStore:
    store = RunStore(place, "large", keep)
    store.open_attempt("recipe")
    return store


# One winner of each number


@pytest.fixture(scope="module")
def writers() -> Iterator[list[subprocess.Popen[str]]]:
    """Eight processes, each with clients of its own; started for the first place, kept for the next."""
    with ExitStack() as stack:
        started = []
        for _ in range(8):
            writer = subprocess.Popen(
                [sys.executable, str(HERE / "commit_writer.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(writer.wait)
            stack.callback(writer.kill)
            started.append(writer)
        yield started


def ask(writers: list[subprocess.Popen[str]], line: str) -> list[str]:
    """One line to each, before any answer is waited for."""
    for writer in writers:
        assert writer.stdin
        writer.stdin.write(f"{line}\n")
        writer.stdin.flush()
    return [writer.stdout.readline().strip() for writer in writers if writer.stdout]


def test_one_of_eight_processes_wins_each_number(
    server: gateway.Gateway, place: Location, writers: list[subprocess.Popen[str]]
) -> None:
    for number in range(20):
        assert ask(writers, place.url) == ["ready"] * 8
        won = [answer for answer in ask(writers, "go") if answer]
        assert won == [LogReader(place).records()[number].digest]
    assert len(LogReader(place).records()) == 20


# A run's store


def test_a_run_saves_loads_and_gives_up_old_checkpoints(s3: Location) -> None:
    store = opened(s3, Keep(last=2))
    for step in range(1, 6):
        save(store, step, background=step % 2 == 0)
    store.wait()
    assert [record.step for record in LogReader(s3).lineage()] == [1, 2, 3, 4, 5]
    assert [item.step for item in tools.checkpoints(s3) if not item.expired] == [4, 5]
    assert {int(name) for name in (s3 / "data").children() if (s3 / "data" / name).walk()} == {4, 5}
    assert [damage for _, damage in tools.verify(s3, LogReader(s3).records())] == [""] * 5
    loaded = state()
    assert RunStore(s3, "large").load(loaded) == {"step": 5, "tokens": 50, "scalars": {}}
    assert loaded["w"].unique().tolist() == [5.0]


@pytest.mark.filterwarnings("ignore:checkpoint of step")
def test_a_damaged_object_falls_back_to_the_checkpoint_before(s3: Location) -> None:
    store = opened(s3)
    save(store, 1)
    save(store, 2)
    (part,) = (part for part in LogReader(s3).records()[-1].parts if part.kind == "data")
    content = bytearray((s3 / part.path).read())
    content[len(content) // 2] ^= 1
    (s3 / part.path).replace(bytes(content))
    loaded = state()
    assert RunStore(s3, "large").load(loaded)["step"] == 1
    assert loaded["w"].unique().tolist() == [1.0]


def test_uploads_that_a_killed_writer_began_are_ended_by_an_attempt_a_day_later(
    s3: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    filesystem, _ = s3.fsspec()
    bucket, run, neighbour = s3.url.split("/")[2], s3 / "large", s3 / "large-2"
    for place in (run, neighbour):
        key = (place / "data/000000000001/part").url.split("/", 3)[3]
        filesystem.call_s3("create_multipart_upload", Bucket=bucket, Key=key)

    def uploads() -> list[str]:
        found = filesystem.call_s3("list_multipart_uploads", Bucket=bucket)
        return [upload["Key"] for upload in found.get("Uploads", ())]

    opened(run)
    assert len(uploads()) == 2  # a slow writer may still be at it
    run.discard_unfinished(datetime.now(UTC) + timedelta(hours=1))
    assert uploads() == ["a folder/large-2/data/000000000001/part"]


class Stoppable(Unsupervised):
    """A host whose run may be asked to stop."""

    def __init__(self, attempt: int) -> None:
        super().__init__(attempt=attempt)
        self.stop = threading.Event()

    def poll(self, step: int) -> Any:
        return "stop" if self.stop.is_set() else "none"


def test_a_run_that_goes_on_is_verified_while_it_gives_up_checkpoints(s3: Location) -> None:
    run = honest_run.RUN.replace(tokens=768 * 100_000, checkpoint_every=3, workers=1)
    recipe = honest_run.sealed(s3, run=run)
    log = LogReader(s3 / "runs" / run.name)
    store = RunStore(log.location, run.name, Keep(last=2))
    host = Stoppable(store.open_attempt(recipe.sha256))
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(run_worker, run, store, host, device="cpu")
        try:
            seen: list[int] = []  # checkpoints that were committed meanwhile, as many given up
            while len(seen) < 8 or sum(seen) < 8:
                before = len(log.records())
                assert not training.done(), training.exception()
                if before > 3:
                    assert honest_run.failed(s3) == ["the run is finished"]
                    seen.append(len(log.records()) - before)
        finally:
            host.stop.set()
        training.result(timeout=120)


# Rights and endpoints


@pytest.mark.parametrize(
    "variable, value, message",
    [
        (
            "AWS_SECRET_ACCESS_KEY",
            "wrong",
            r"must be writable, but s3://.* the keys of host .*; check AWS_ACCESS_KEY_ID and AWS_SEC",
        ),
        ("AWS_ACCESS_KEY_ID", "nobody", r"s3://.* the keys of host .*; check AWS_ACCESS_KEY_ID and AWS_SEC"),
        ("AWS_ACCESS_KEY_ID", "reader", r"must be writable, but s3://.* and the bucket's policy"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", r"check AWS_ENDPOINT_URL \(now http://127.0.0.1:9\)"),
    ],
)
def test_what_keeps_a_run_from_its_store_is_named_and_its_checkpoint_stays(
    s3: Location, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    store = opened(s3)
    save(store, 1)
    with monkeypatch.context() as wrong:
        wrong.setenv(variable, value)
        with pytest.raises(ConfigError, match=message) as refusal:
            probe_writable(s3)
        assert len(str(refusal.value)) < 400
        with pytest.raises(OSError):
            save(store, 2)  # a running one that loses its rights ends; it is not fenced, and commits nothing
    probe_writable(s3)
    assert [record.step for record in LogReader(s3).lineage()] == [1]
    loaded = state()
    assert RunStore(s3, "large").load(loaded)["step"] == 1
    assert loaded["w"].unique().tolist() == [1.0]


def test_a_wrong_clock_is_named(s3: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(s3)
    save(store, 1)
    real = botocore.auth.get_current_datetime
    with monkeypatch.context() as wrong:
        wrong.setattr(botocore.auth, "get_current_datetime", lambda *a: real(*a) + timedelta(hours=3))
        with pytest.raises(
            Refused, match=r"signed at a time that is not its own.* the clock of .*; set it \(NTP\)"
        ):
            save(store, 2)
        with pytest.raises(ConfigError, match="set it"):
            probe_writable(s3)
    assert LogReader(s3).lineage()[-1].step == 1
    save(opened(s3), 2)


def test_who_may_only_read_still_loads(s3: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    save(opened(s3), 3)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "reader")
    loaded = state()
    assert RunStore(s3, "large").load(loaded)["step"] == 3
    assert [damage for _, damage in tools.verify(s3, LogReader(s3).records())] == [""]


# The dead return


def seen(study: Location) -> dict[str, Any]:
    """All that a reader sees of the run."""
    run = study / "runs/large"
    chain, loaded = LogReader(run).records(), state()
    found = RunStore(run, "large").load(loaded)
    return {
        "records": [record.digest for record in chain],
        "lineage": [(record.seq, record.step) for record in LogReader(run).lineage()],
        "ledger": Study(study).ledger().collect().to_dicts(),
        "digest": digest(run, LogReader(run).lineage()[-1]),
        "loaded": (found, loaded["w"].unique().tolist()),
    }


@pytest.mark.parametrize("where", ["data", "record"])
def test_a_zombie_ends_fenced_and_a_reader_sees_nothing_of_it(place: Location, where: str) -> None:
    run = place / "runs/large"
    zombie = subprocess.Popen(
        [sys.executable, str(HERE / "zombie.py"), run.url, where], stdout=subprocess.PIPE, text=True
    )
    try:
        _, status = os.waitpid(zombie.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), status
        successor = opened(run)
        resumed = successor.load(state())
        assert resumed["step"] == 1
        save(successor, 5)
        before = seen(place)
        zombie.send_signal(signal.SIGCONT)
        said, _ = zombie.communicate(timeout=120)
    finally:
        zombie.kill()
        zombie.wait()
    assert (zombie.returncode, "committed by another attempt; attempt 1 of 'large'" in said) == (3, True)
    assert seen(place) == before
    assert before["lineage"] == [(1, 1), (3, 5)]
    assert before["loaded"] == ({"step": 5, "tokens": 50, "scalars": {}}, [5.0])
    assert [row["step"] for row in before["ledger"]] == [1, 5]
    opened(run)  # the next attempt sweeps what the zombie left
    assert [item.step for item in tools.checkpoints(run)] == [1, 5]
    with pytest.raises(Fenced):
        save(successor, 6)
