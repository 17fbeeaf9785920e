"""List, verify, compare and export checkpoints, on a disk and on S3."""

import json

import pytest
import torch
from safetensors.torch import load

from froude.checkpoint import tools
from froude.checkpoint.parts import Corrupt
from froude.checkpoint.retention import Keep
from froude.checkpoint.run_store import RunStore, save_state
from froude.checkpoint.tensors import Tensors, digest, raw
from froude.config import ConfigError
from froude.runlog import LogReader
from froude.s3 import Reader
from froude.store import Location


def saved(place, **state):
    """A run with one checkpoint of this state, and its record."""
    store = RunStore(place, "large")
    store.open_attempt("recipe")
    store.save(state, step=1, tokens=10, tables={})
    return LogReader(place).lineage()[-1]


def test_each_checkpoint_is_listed_and_so_is_one_that_was_not_committed(place, train):
    train(place, 4)
    save_state(place, "data/000000000006/0123.00000009", {"w": torch.ones(4)})
    found = tools.checkpoints(place)
    assert [(item.step, item.tokens, item.committed) for item in found] == [
        (2, 20, True),
        (4, 40, True),
        (6, None, False),
    ]
    assert all(item.nbytes > 0 for item in found)
    assert found[2].why_not == "no record names it: its attempt ended before it was committed"


def test_verify_names_the_file_that_was_damaged(place, train):
    train(place, 4)
    records = LogReader(place).records()
    assert [damage for _, damage in tools.verify(place, records)] == ["", ""]
    part = next(part for part in records[-1].parts if part.kind == "data")
    content = bytearray((place / part.path).read())
    content[len(content) // 2] ^= 1
    (place / part.path).replace(bytes(content))
    ledger = next(part for part in records[1].parts if part.kind == "ledger")
    (place / ledger.path).delete()
    damages = [damage for _, damage in tools.verify(place, records)]
    assert part.path in damages[1]
    assert ledger.path in damages[0]
    assert "missing" in damages[0]


def going_on(place, step):
    """A run that keeps two checkpoints, at this step; and a function that makes another one."""
    store = RunStore(place, "large", Keep(last=2))
    store.open_attempt("recipe")

    def save():
        nonlocal step
        step += 1
        store.save({"w": torch.full((64,), float(step))}, step=step, tokens=step, tables={})

    return save


def test_what_a_run_gives_up_while_it_is_verified_is_no_damage(place):
    save = going_on(place, 0)
    for _ in range(3):
        save()
    records = LogReader(place).records()
    for _ in range(3):
        save()
    found = tools.verify(place, records)
    assert [(record.step, damage) for record, damage in found] == [(1, ""), (2, ""), (3, "")]


def test_an_object_that_a_run_gives_up_while_it_is_open_is_no_damage(s3, monkeypatch):
    save = going_on(s3, 0)
    for _ in range(3):
        save()
    read, opened = Reader.read_at, []

    def deleted(self, length, offset):
        if "/data/" in self.name:
            opened.append(self.name)
            save()
            save()
        return read(self, length, offset)

    records = LogReader(s3).records()
    monkeypatch.setattr(Reader, "read_at", deleted)
    found = [(record.step, damage) for record, damage in tools.verify(s3, records)]
    assert found == [(1, ""), (2, ""), (3, "")]
    assert len(opened) == 1


def test_a_digest_is_of_the_tensors_and_not_of_their_files(place, tmp_path):
    state = {"model.b": torch.arange(6.0).reshape(2, 3), "model.a": torch.tensor(7), "z": torch.zeros(0, 4)}
    one = saved(place / "one", **state)
    other = saved(place / "other", **dict(reversed(state.items())))
    assert digest(place / "one", one) == digest(place / "other", other)
    changed = saved(place / "changed", **state | {"model.a": torch.tensor(8)})
    assert digest(place / "changed", changed) != digest(place / "one", one)
    with Tensors(place / "one", one) as tensors:
        assert list(tensors) == ["model.a", "model.b", "z"]
        assert all(torch.equal(raw(tensors[name]), raw(state[name])) for name in state)


def test_a_diff_shows_what_differs_and_by_how_much(place):
    one = {"a": torch.zeros(4), "b": torch.ones(2), "c": torch.ones(3), "same": torch.ones(5)}
    other = {
        "a": torch.tensor([0.0, -0.0, 0.5, 0.0]),
        "b": torch.ones(2, 1),
        "d": torch.ones(1),
        "same": torch.ones(5),
    }
    first, second = saved(place / "one", **one), saved(place / "other", **other)
    found = {item.name: item for item in tools.diff((place / "one", first), (place / "other", second))}
    assert list(found) == ["a", "b", "c", "d"]
    assert (found["a"].elements, found["a"].largest) == (2, 0.5)
    assert found["b"].what == "torch.float32 [2] against torch.float32 [2, 1]"
    assert (found["c"].what, found["d"].what) == ("only in the first", "only in the second")
    assert tools.diff((place / "one", first), (place / "one", first)) == []


def test_an_export_is_read_by_safetensors(place):
    state = {
        "model.w": torch.randn(3, 4),
        "model.n": torch.ones(2).bfloat16(),
        "optimizer.w.step": torch.tensor(1.0),
    }
    record = saved(place / "run", **state)
    target = place / "out.safetensors"
    size = tools.export(place / "run", record, target)
    content = target.read()
    assert len(content) == size
    found = load(content)
    assert set(found) == {"w", "n"}
    assert all(torch.equal(found[name], state[f"model.{name}"]) for name in found)
    about = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    assert json.loads(about["froude"])["step"] == 1


def test_a_run_is_found_by_its_folder_its_study_or_its_recipe(place, train):
    train(place / "runs" / "large", 2)
    run = place / "runs" / "large"
    for name in (place, run, place / "recipe.toml"):
        assert tools.find_run(name) == run
    train(place / "runs" / "other", 2)
    with pytest.raises(ConfigError, match="it has large, other; name one with --run"):
        tools.find_run(place)
    assert tools.find_run(place, "other") == place / "runs" / "other"
    with pytest.raises(ConfigError, match="it has none"):
        tools.find_run(place / "nowhere")


def test_a_step_that_was_not_kept_is_named_with_those_that_were(place, train):
    train(place, 4)
    assert tools.chosen(place).step == 4
    assert tools.chosen(place, 2).step == 2
    with pytest.raises(ConfigError, match="of step 3; it has 2, 4"):
        tools.chosen(place, 3)
    records = LogReader(place).records()
    assert [(record.step, damage) for record, damage in tools.verify(place, records, 2)] == [(2, "")]
    with pytest.raises(ConfigError, match="of step 3; it has 2, 4"):
        list(tools.verify(place, records, 3))
    with pytest.raises(ConfigError, match="train first"):
        tools.chosen(Location.parse(place.url) / "empty")


def test_a_missing_part_is_corrupt(place):
    record = saved(place, w=torch.ones(3))
    part = next(part for part in record.parts if part.kind == "data")
    (place / part.path).delete()
    with Tensors(place, record) as tensors, pytest.raises(Corrupt, match="missing"):
        tensors["w"]
