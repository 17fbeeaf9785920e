"""Whatever happens to a stored file, a reader says so in one of our errors, and runs nothing that it reads."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from froude.checkpoint.manifest import Manifest, manifest_of
from froude.checkpoint.parts import Corrupt
from froude.checkpoint.run_store import RunStore
from froude.checkpoint.tensors import Tensors, digest
from froude.config import ConfigError, Run
from froude.promote import recipe as recipes
from froude.promote.forecast import Forecast
from froude.runlog import RECORD, SCHEMA_VERSION, LogReader, Record, _row_hash, expired
from froude.schemas import LEDGER, MOST_VALUES, table, table_of
from froude.store import Location

MANY = settings(max_examples=700, suppress_health_check=[HealthCheck.function_scoped_fixture])
FORECAST = Forecast(1.3, 1.2, 1.4, 0.9, False, "prior_driven", (), 1.5)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Location:
    """A run with one checkpoint of a few tensors, and a recipe beside it."""
    place = Location.parse(tmp_path_factory.mktemp("fuzz") / "runs" / "large")
    store = RunStore(place, "large")
    store.open_attempt("recipe")
    state = {
        "model.w": torch.arange(12.0).reshape(3, 4),
        "n": torch.tensor(3),
        "half": torch.ones(5).bfloat16(),
    }
    rows = table(LEDGER, [{"run": "large", "step": 1, "slot": 0}])
    store.save(state, step=1, tokens=10, tables={"ledger": rows}, scalars={"a": [1, 2]})
    return place


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """The bytes with some changed, inserted, removed or repeated."""
    found = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(found) - 1)))
        kind = draw(st.sampled_from(["flip", "cut", "insert", "repeat", "end"]))
        if kind == "flip" and found:
            found[at] ^= draw(st.integers(1, 255))
        elif kind == "cut":
            del found[at : at + draw(st.integers(1, 40))]
        elif kind == "insert":
            found[at:at] = draw(st.binary(min_size=1, max_size=20))
        elif kind == "repeat":
            found[at:at] = found[at : at + draw(st.integers(1, 40))]
        else:
            del found[at:]
    return bytes(found)


def first_row(run: Location) -> dict[str, Any]:
    """What the record of the checkpoint says."""
    (row,) = pq.read_table(io.BytesIO((run / "commits" / "00000001.parquet").read())).to_pylist()
    return row


def forged(row: dict[str, Any], **options: Any) -> bytes:
    """A record's file with this row, and the hash of it."""
    about = json.dumps({"schema": SCHEMA_VERSION, "sha256": _row_hash(row)})
    made = io.BytesIO()
    schema = RECORD.with_metadata({"froude": about})
    pq.write_table(pa.Table.from_pylist([row], schema=schema), made, **options)
    return made.getvalue()


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@MANY
@given(st.data())
def test_a_mutated_record_is_refused_or_the_record(saved: Location, data: st.DataObject) -> None:
    content = (saved / "commits" / "00000001.parquet").read()
    with contextlib.suppress(ValueError):
        assert Record.from_bytes(data.draw(damaged(content))) == Record.from_bytes(content)


def test_a_record_with_any_bit_flipped_is_refused_or_the_record(saved: Location) -> None:
    """A bit of each byte: some damage is an error to Arrow's reader, but ended the process that asked for metadata."""
    content = (saved / "commits" / "00000001.parquet").read()
    record, refused = Record.from_bytes(content), 0
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << (at * 7 + at // 8) % 8
        try:
            assert Record.from_bytes(bytes(flipped)) == record
        except ValueError:
            refused += 1
    assert refused > len(content) / 3


@pytest.mark.long
@MANY
@given(st.sampled_from([name for name in RECORD.names if name not in ("parts", "time")]), ANYTHING)
def test_a_record_with_anything_in_a_field_is_refused_or_a_record(
    saved: Location, name: str, value: Any
) -> None:
    """Also a path that leads out of the run, JSON that is none, numbers beyond 64 bits."""
    row = first_row(saved)
    row[name] = json.dumps(value) if name in ("scalars", "meta") else value
    with contextlib.suppress(pa.ArrowException, TypeError, OverflowError, ValueError):
        made = forged(row)
        with contextlib.suppress(ValueError):
            record = Record.from_bytes(made)
            expired([record])  # what readers ask of it
            manifest_of(record.parts)


@pytest.mark.long
@MANY
@given(st.data())
def test_a_mutated_manifest_is_corrupt_or_a_manifest_that_fits(saved: Location, data: st.DataObject) -> None:
    record = LogReader(saved).lineage()[0]
    (part,) = (part for part in record.parts if part.kind == "manifest")
    content = (saved / part.path).read()
    with contextlib.suppress(Corrupt, ConfigError):
        manifest = Manifest.from_bytes(data.draw(damaged(content)))
        manifest.check_within({part.path.rpartition("/")[2]: part.size for part in record.parts})


@pytest.mark.long
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_mutated_part_is_corrupt_and_the_log_goes_on(saved: Location, data: st.DataObject) -> None:
    record = LogReader(saved).lineage()[0]
    part = data.draw(st.sampled_from([part for part in record.parts if part.kind in ("data", "manifest")]))
    file = saved.path / part.path
    content = file.read_bytes()
    changed = data.draw(damaged(content).filter(lambda found: found != content))
    try:
        file.write_bytes(changed)
        try:
            digest(saved, record)
        except Corrupt:
            return
        assert part.kind == "data"  # bytes between the blocks, which `checkpoints verify` reads too
        with Tensors(saved, record) as tensors:
            assert tensors["model.w"].tolist() == torch.arange(12.0).reshape(3, 4).tolist()
    finally:
        file.write_bytes(content)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = recipes.seal(
        run=Run(tokens=7680),
        profile="production",
        fits={"alpha": 0.3},
        fingerprints={},
        extrapolation={},
        checks=(),
        forecast=FORECAST,
    )
    place = tmp_path_factory.mktemp("recipe") / "recipe.toml"
    made.write(Location.parse(place))
    return place


@MANY
@given(st.data())
def test_a_mutated_recipe_is_refused(recipe: Path, data: st.DataObject) -> None:
    content = recipe.read_bytes()
    changed = data.draw(damaged(content))
    other = recipe.with_name("changed.toml")
    other.write_bytes(changed)
    with contextlib.suppress(ConfigError):
        found = recipes.read(Location.parse(other))
        assert found == recipes.read(Location.parse(recipe))  # comments and spaces are not sealed


@pytest.mark.parametrize("field", ["scalars", "meta"])
def test_json_nested_ten_thousand_deep_is_refused(saved: Location, field: str) -> None:
    row = first_row(saved)
    row[field] = "[" * 10_000 + "]" * 10_000
    with pytest.raises(ValueError, match=r"not a commit record.*RecursionError"):
        Record.from_bytes(forged(row))


def test_a_record_that_unpacks_to_a_gigabyte_is_refused_packed(saved: Location) -> None:
    row = first_row(saved)
    row["meta"] = json.dumps({"a": " " * ((1 << 28) + 1)})
    content = forged(row, compression="zstd")
    assert len(content) < 1 << 20
    with pytest.raises(ValueError, match="are too much"):
        Record.from_bytes(content)


def test_a_list_of_more_values_than_bytes_is_refused_before_it_is_held() -> None:
    few = pa.ListArray.from_arrays([0, MOST_VALUES + 1], pa.nulls(MOST_VALUES + 1, pa.int8()))
    made = io.BytesIO()
    pq.write_table(pa.table({"parts": few}), made)
    assert made.tell() < 1000
    with pytest.raises(ValueError, match="values in a column are too much"):
        table_of(made.getvalue())


def test_a_record_of_a_gigabyte_is_refused_unread(tmp_path: Path) -> None:
    folder = tmp_path / "commits"
    folder.mkdir()
    with (folder / "00000000.parquet").open("wb") as file:
        file.truncate(1 << 30)  # sparse
    with pytest.raises(ConfigError, match="more than 67108864 bytes"):
        LogReader(Location.parse(tmp_path)).records()


AUDIT = """
import sys
loaded = []
def hook(event, arguments):
    if event == "pickle.find_class":
        loaded.append(arguments)
sys.addaudithook(hook)
import pickle, torch
seen = []
for module, name in ((pickle, "loads"), (pickle, "load"), (torch, "load")):
    original = getattr(module, name)
    setattr(module, name, lambda *a, _f=original, **k: (seen.append(_f), _f(*a, **k))[1])
from froude.store import Location
from froude.runlog import LogReader
from froude.study import Study
from froude.checkpoint import tools
from froude.checkpoint.run_store import RunStore
from froude.checkpoint.tensors import digest
place = Location.parse(sys.argv[1])
record = LogReader(place).lineage()[-1]
state = {"model.w": torch.zeros(3, 4), "n": torch.tensor(0), "half": torch.zeros(5).bfloat16()}
assert RunStore(place, "large").load(state)["step"] == 1
assert state["n"].item() == 3
assert len(digest(place, record)) == 64
assert [damage for _, damage in tools.verify(place, [record])] == [""]
assert tools.export(place, record, Location.parse(sys.argv[2])) > 0
assert Study(place.parent.parent).ledger().collect().height == 1
assert "ray" not in sys.modules
print(loaded, seen)
"""


def test_nothing_that_was_stored_is_unpickled(saved: Location, tmp_path: Path) -> None:
    """An audit hook and a wrapper around each way to load a pickle see none on any path that loads."""
    out = subprocess.run(
        [sys.executable, "-c", AUDIT, saved.url, str(tmp_path / "out.safetensors")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip().splitlines()[-1] == "[] []", out.stdout
