from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from froude.checkpoint import retention, tools
from froude.checkpoint.commit import Fenced, Finished
from froude.checkpoint.parts import Corrupt
from froude.checkpoint.retention import Keep
from froude.checkpoint.run_store import RunStore, save_state
from froude.config import ConfigError
from froude.runlog import LogReader, record_name
from froude.schemas import LEDGER, STEPS, table
from froude.store import Location

Train = Callable[..., None]


def state() -> dict[str, torch.Tensor]:
    return {"w": torch.zeros(3, 4), "n": torch.tensor(0)}


def newest(place: Location, kind: str) -> Path:
    """The file of a part of the newest record."""
    head = LogReader(place).head()
    assert head
    (part,) = (part for part in head.parts if part.kind == kind)
    return place.path / part.path


def flip(path: Path, marker: bytes = b"") -> None:
    content = bytearray(path.read_bytes())
    content[content.index(marker) if marker else len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.slow
def test_a_run_goes_on_where_it_stopped(place: Location, train: Train) -> None:
    store = RunStore(place, "large")
    assert store.load(state()) == {"step": 0, "tokens": 0, "scalars": {}}
    assert store.finished is None
    assert not store.has_checkpoint
    train(place, 5, commit_last=False)  # step 5 is lost
    assert store.has_checkpoint
    assert RunStore(place, "large").load(loaded := state()) == {"step": 4, "tokens": 40, "scalars": {"at": 4}}
    assert torch.equal(loaded["w"], torch.full((3, 4), 4.0))
    train(place, 8, finish=True)
    done = RunStore(place, "large").finished
    assert done
    assert (done.step, done.attempt, done.kind, done.recipe) == (8, 2, "finished", "recipe")
    with pytest.raises(Finished):
        RunStore(place, "large").open_attempt("recipe")


def test_records_name_all_they_commit(place: Location, train: Train) -> None:
    train(place, 4)
    train(place, 6)
    chain = LogReader(place).records()
    assert [record.kind for record in chain] == [
        "attempt",
        "checkpoint",
        "checkpoint",
        "attempt",
        "checkpoint",
    ]
    assert [record.base for record in chain] == [-1, -1, 1, 2, 2]
    for record in chain:
        kinds = sorted(part.kind for part in record.parts)
        assert kinds == ([] if record.kind == "attempt" else ["data", "ledger", "manifest", "steps"])
        for part in record.parts:
            assert (place / part.path).size() == part.size
    data = {part.path.rpartition("/")[0] for record in chain for part in record.parts if part.kind == "data"}
    assert len(data) == 3


def test_a_step_saved_twice_keeps_both(tmp_path: Path) -> None:
    store = RunStore(Location.parse(tmp_path), "large")
    store.open_attempt("recipe")
    for value in (1.0, 2.0):
        store.save({"w": torch.tensor(value)}, step=3, tokens=30, tables={})
    first, second = LogReader(store.location).records()[1:]
    assert not {part.path for part in first.parts} & {part.path for part in second.parts}
    store.load(loaded := {"w": torch.tensor(0.0)})
    assert loaded["w"].item() == 2.0


@pytest.mark.filterwarnings("ignore:checkpoint of step")
@pytest.mark.parametrize("damage", ["byte", "manifest", "missing", "missing manifest", "cut"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path, train: Train, damage: str) -> None:
    place = Location.parse(tmp_path)
    train(place, 6)
    path = newest(place, "manifest" if "manifest" in damage else "data")
    if damage == "byte":
        flip(path, torch.full((3, 4), 6.0).numpy().tobytes())
    elif "missing" in damage:
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        flip(path)
    store = RunStore(place, "large")
    assert store.load(loaded := state()) == {"step": 4, "tokens": 40, "scalars": {"at": 4}}
    assert (loaded["n"].item(), loaded["w"].unique().tolist()) == (4, [4.0])
    train(place, 8)
    chain = LogReader(place).records()
    assert [(r.step, r.base) for r in LogReader(place).lineage()] == [(2, -1), (4, 1), (6, 2), (8, 5)]
    assert chain[3].step == 6
    assert chain[3] not in LogReader(place).lineage()


@pytest.mark.filterwarnings("ignore:checkpoint of step")
def test_when_all_are_damaged_it_says_so(tmp_path: Path, train: Train) -> None:
    train(Location.parse(tmp_path), 4)
    for file in tmp_path.glob("data/*/*/manifest.parquet"):
        flip(file)
    with pytest.raises(Corrupt, match=r"'large' has no checkpoint that is whole; the newest: .*000000000004"):
        RunStore(Location.parse(tmp_path), "large").load(state())


def test_a_zombie_is_fenced_and_changes_nothing(place: Location, train: Train) -> None:
    zombie = RunStore(place, "large")
    zombie.open_attempt("recipe")
    zombie.save(state(), step=1, tokens=10, tables={})
    before = LogReader(place).records()
    assert RunStore(place, "large").open_attempt("recipe") == 2
    rows = table(LEDGER, [{"run": "large", "attempt": 1, "step": 2}])
    for _ in range(2):
        with pytest.raises(Fenced, match="committed by another attempt"):
            zombie.save(state(), step=2, tokens=20, tables={"ledger": rows})
    after = LogReader(place).records()
    assert [record.digest for record in after[:2]] == [record.digest for record in before]
    assert [record.kind for record in after] == ["attempt", "checkpoint", "attempt"]


def test_what_save_refuses(tmp_path: Path) -> None:
    store = RunStore(Location.parse(tmp_path), "large")
    with pytest.raises(ValueError, match="open_attempt first"):
        store.save(state(), step=1, tokens=1, tables={})
    store.open_attempt("recipe")
    with pytest.raises(ValueError, match="`kind`"):
        store.save(state(), step=1, tokens=1, tables={}, kind="attempt")
    with pytest.raises(ValueError, match="'steps'"):
        store.save(state(), step=1, tokens=1, tables={"steps": pa.table({"step": [1]})})
    with pytest.raises(ValueError, match="'loss'"):
        store.save(state(), step=1, tokens=1, tables={"loss": table(STEPS, [])})
    with pytest.raises(TypeError, match="pass it in `scalars`"):
        store.save({"n": 1}, step=1, tokens=1, tables={})
    with pytest.raises(ConfigError, match="recipe that it began with"):
        RunStore(store.location, "large").open_attempt("another")
    assert len(LogReader(store.location).records()) == 1


@pytest.mark.slow
def test_the_newest_and_every_nth_checkpoint_are_kept(place):
    """What is given up is named in the log, then deleted; its ledger stays, and an older one is fallen back on."""
    keep = Keep(last=2, every=3)
    store = RunStore(place, "large", keep)
    store.open_attempt("recipe")
    state = {"w": torch.zeros(4)}
    for step in range(1, 9):
        state["w"] += 1
        store.save(
            state, step=step, tokens=step, tables={"ledger": table(LEDGER, [{"step": step, "slot": 0}])}
        )
    living = {item.step for item in tools.checkpoints(place) if not item.expired}
    assert living == {3, 6, 7, 8}
    assert {int(name) for name in (place / "data").children() if (place / "data" / name).walk()} == living
    assert [damage for _, damage in tools.verify(place, LogReader(place).records())] == [""] * 8
    assert [record.step for record in LogReader(place).lineage()] == list(range(1, 9))
    for part in LogReader(place).head().parts:
        (place / part.path).delete()
    again = {"w": torch.zeros(4)}
    with pytest.warns(UserWarning, match="step 8 is damaged"):
        assert RunStore(place, "large", keep).load(again)["step"] == 7
    assert again["w"].tolist() == [7] * 4


def test_what_an_attempt_wrote_and_did_not_commit_is_swept_by_the_next(place, train):
    train(place, 2)
    save_state(place, "data/000000000004/dead.00000003", {"w": torch.ones(3)})
    assert [item.step for item in tools.checkpoints(place)] == [2, 4]
    store = RunStore(place, "large")
    store.open_attempt("recipe")
    assert [item.step for item in tools.checkpoints(place)] == [2]
    assert store.load({"w": torch.zeros(3, 4), "n": torch.tensor(0)})["step"] == 2


@pytest.mark.parametrize("full", ["part", "manifest", "ledger"])
def test_a_save_that_finds_the_disk_full_leaves_nothing_there(tmp_path, train, monkeypatch, full):
    place = Location.parse(tmp_path)
    train(place, 2)
    before, create, store = place.walk(), Location.create, RunStore(place, "large")
    store.open_attempt("recipe")
    rows = [{"run": "large", "step": 3}]
    tables = {"steps": table(STEPS, rows), "ledger": table(LEDGER, rows)}

    def fails(file: Location, *arguments: bytes) -> Any:
        if full in file.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return create(file, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Location, "output" if full == "part" else "create", fails)
        with pytest.raises(OSError, match="No space left"):
            store.save(state(), step=3, tokens=30, tables=tables)
    assert place.walk() == sorted([*before, place / "commits" / record_name(2)], key=lambda file: file.url)
    store.save(state(), step=3, tokens=30, tables=tables)
    assert [damage for _, damage in tools.verify(place, LogReader(place).records())] == ["", ""]


@pytest.mark.parametrize("number", [errno.EIO, errno.EISDIR])
def test_a_disk_that_fails_is_damage_and_other_errors_are_not(train, tmp_path, monkeypatch, number):
    """The older checkpoint is whole, and `verify` goes on past the newer one."""
    place = Location.parse(tmp_path / "run")
    train(place, 4)
    read, newest = os.preadv, LogReader(place).lineage()[-1]
    bad = next(part.path for part in newest.parts if part.kind == "data")

    def failing(descriptor: int, *arguments: Any) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(bad):
            raise OSError(number, os.strerror(number))
        return read(descriptor, *arguments)

    monkeypatch.setattr(os, "preadv", failing)
    store = RunStore(place, "large")
    store.open_attempt("recipe")
    state = {"w": torch.zeros(3, 4), "n": torch.tensor(0)}
    with pytest.warns(UserWarning, match="step 4 is damaged"):
        assert store.load(state)["step"] == 2
    damages = [damage for _, damage in tools.verify(place, LogReader(place).records())]
    assert damages[0] == ""
    assert "can't be read" in damages[1]
    number = errno.EACCES
    with pytest.raises(PermissionError):
        store.load(state)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_none_of_those_that_are_kept(place):
    """The one that was gone on from stays, until as many whole ones are there."""
    state = {"w": torch.zeros(1)}

    def attempt(*steps: int) -> None:
        store = RunStore(place, "large", Keep(last=2))
        store.open_attempt("recipe")
        store.load(state)
        for step in steps:
            store.save(state, step=step, tokens=step, tables={})

    attempt(1, 2, 3)
    newest = LogReader(place).head()
    for part in newest.parts:
        (place / part.path).replace(b"nothing")
    with pytest.warns(UserWarning, match="step 3 is damaged"):
        attempt(4)
    assert [c.step for c in tools.checkpoints(place) if not c.expired] == [2, 3, 4]
    attempt(5)
    assert [c.step for c in tools.checkpoints(place) if not c.expired] == [4, 5]


def test_links_lead_the_sweep_to_nothing(train, tmp_path):
    """Neither to a committed checkpoint under another name, nor out of the run."""
    place = Location.parse(tmp_path / "run")
    train(place, 2)
    foreign = tmp_path / "foreign" / "000000000009" / "their.00000009"
    foreign.mkdir(parents=True)
    (foreign / "thesis.txt").write_text("years")
    data = place.path / "data"
    (data / "best").symlink_to("000000000002")
    (data / "000000000007").symlink_to("000000000002")
    (data / "000000000009").symlink_to(foreign.parent)
    store = RunStore(place, "large")
    store.open_attempt("recipe")
    assert (foreign / "thesis.txt").exists()
    assert store.load({"w": torch.zeros(3, 4), "n": torch.tensor(0)})["step"] == 2


def test_a_way_back_goes_along_the_state_s_own_line(place):
    """Not along the newest record's, which an earlier way back may have left behind."""
    store = RunStore(place, "large")
    store.open_attempt("recipe")
    state = {"w": torch.zeros(1)}
    for step in (10, 20, 25):
        state["w"].fill_(step)
        store.save(state, step=step, tokens=step, tables={})
    assert store.load(state, 20)["step"] == 20
    assert store.load(state, 30)["step"] == 20
    assert state["w"].item() == 20


def test_a_way_back_past_all_that_is_kept_is_an_error_and_no_new_start(tmp_path: Path) -> None:
    store = RunStore(Location.parse(tmp_path), "large", Keep(last=2))
    store.open_attempt("recipe")
    state = {"w": torch.zeros(1)}
    for step in (10, 20, 30, 40):
        state["w"].fill_(step)
        store.save(state, step=step, tokens=step, tables={})
    assert store.load(state, 9)["step"] == 0  # the run is young: there never was one
    again = RunStore(store.location, "large")
    again.load(state)
    with pytest.raises(
        Corrupt, match=r"'large' keeps none of at most step 25 any more; the newest .* step 20;"
    ):
        again.load(state, 25)
    assert state["w"].item() == 40
    assert again.load(state, 35)["step"] == 30


def test_what_a_later_attempt_writes_is_not_swept_by_one_that_was_stopped_before(place: Location) -> None:
    store = RunStore(place, "large")
    store.open_attempt("recipe")
    found = list((place / "data").walk())
    later = place / "data" / "000000000001" / "other.00000002" / "0.distcp"
    assert later.create(b"in flight")
    retention.sweep(place, found, LogReader(place).records())
    assert later.read() == b"in flight"
    retention.sweep(place, list((place / "data").walk()), LogReader(place).records())
    assert later.size() is None


def test_a_save_beside_the_training_has_the_state_of_its_step(place):
    store = RunStore(place, "large")
    store.open_attempt("recipe")
    state = {"w": torch.zeros(1000)}
    for step in range(1, 4):
        state["w"] += 1
        store.save(state, step=step, tokens=step, tables={}, background=True)
        state["w"] += 0.5  # as training goes on
    store.wait()
    assert [record.step for record in LogReader(place).lineage()] == [1, 2, 3]
    loaded = {"w": torch.zeros(1000)}
    assert RunStore(place, "large").load(loaded)["step"] == 3
    assert loaded["w"].unique().tolist() == [4.0]


def test_what_a_save_beside_the_training_met_is_raised_by_the_next(place):
    store = RunStore(place, "large")
    store.open_attempt("recipe")
    RunStore(place, "large").open_attempt("recipe")
    store.save({"w": torch.ones(2)}, step=1, tokens=1, tables={}, background=True)
    with pytest.raises(Fenced):
        store.save({"w": torch.ones(2)}, step=2, tokens=2, tables={}, background=True)
    assert LogReader(place).lineage() == []
