from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from froude.checkpoint import writer as container
from froude.checkpoint.manifest import _KEY, _ROWS, Block, Manifest
from froude.checkpoint.parts import Corrupt, create_part
from froude.checkpoint.run_store import load_state, save_state
from froude.config import ConfigError
from froude.runlog import Part
from froude.store import Location

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float16, torch.uint8, torch.complex64]
NAMES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(["**kwargs", "a.b", "a/../b", "модель.вес", "", " ", "froude", "0"]),
)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    raw = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*raw)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    numbers = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    data = torch.randint(0, 2 if dtype == torch.bool else 256, shape, generator=numbers).to(dtype)
    if dtype.is_floating_point and data.numel():
        data.view(-1)[0] = draw(st.sampled_from([float("nan"), float("inf"), -0.0, 1.5]))
    return data.t() if data.dim() == 2 and draw(st.booleans()) else data


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    state=st.dictionaries(NAMES, tensors(), min_size=1, max_size=6),
    sizes=st.sampled_from([(32 << 20, 4 << 20), (16, 8), (1, 1), (64, 1 << 20)]),
)
def test_every_tensor_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    state: dict[str, torch.Tensor],
    sizes: tuple[int, int],
) -> None:
    run = Location.parse(tmp_path_factory.mktemp("run"))
    monkeypatch.setattr(container, "BLOCK_BYTES", sizes[0])
    monkeypatch.setattr(container, "ALONE_BYTES", sizes[1])
    parts = save_state(run, "data", dict(state))
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    load_state(run, parts, loaded)
    for name, tensor in state.items():
        assert same_bytes(tensor, loaded[name]), name
    assert [(run / part.path).size() for part in parts] == [part.size for part in parts]


def test_a_part_is_ordinary_parquet_with_payloads_in_place(tmp_path: Path) -> None:
    run = Location.parse(tmp_path)
    state = {"big": torch.randn(3 << 19), "a": torch.arange(5), "b": torch.tensor(2.5)}
    *_, last = parts = save_state(run, "data", dict(state))
    manifest = Manifest.from_bytes((run / last.path).read())
    rows = pq.read_table(io.BytesIO((run / parts[0].path).read())).to_pylist()
    stored = {row["fqn"]: row for row in rows}
    assert set(stored) == set(state)
    for block in manifest.blocks:
        payload = (run / "data" / block.file).read_range(block.payload_off, block.nbytes)
        assert payload == stored[block.fqn]["payload"] == state[block.fqn].numpy().tobytes()
        assert stored[block.fqn]["xxh3"] == block.xxh3
    groups = {block.fqn: block.row_group for block in manifest.blocks}
    assert groups["big"] != groups["a"] == groups["b"]
    assert b"pickle" not in (run / last.path).read()


def test_a_state_beyond_the_bound_of_a_file_is_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Location.parse(tmp_path)
    monkeypatch.setattr(container, "FILE_BYTES", 1 << 20)
    monkeypatch.setattr(container, "BLOCK_BYTES", 1 << 18)
    monkeypatch.setattr(container, "ALONE_BYTES", 1 << 17)
    state = {name: torch.randn(300, 512) for name in "abcde"} | {"step": torch.tensor(3)}
    parts = save_state(run, "data", dict(state))
    assert [part.path for part in parts] == [
        *("data/part-00000-001.parquet", "data/part-00000-002.parquet", "data/part-00000.parquet"),
        "data/manifest.parquet",
    ]
    assert all(part.size < 1.3 * 2**20 for part in parts)
    assert sum(pq.read_metadata(tmp_path / part.path).num_rows for part in parts[:-1]) > 12
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    load_state(run, parts, loaded)
    assert all(same_bytes(loaded[name], tensor) for name, tensor in state.items())


def test_a_leaf_that_is_no_tensor_is_refused_by_name(tmp_path: Path) -> None:
    for leaf in (3, 0.5, "x", [1, 2], None):
        with pytest.raises(TypeError, match=r"tensors only, but `optimizer.lr`"):
            container.check_tensors_only({"optimizer": {"lr": leaf}})
        with pytest.raises(TypeError, match="tensors only"):
            save_state(Location.parse(tmp_path), "data", {"lr": leaf})
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ({"w": torch.zeros(2, 3)}, "only in it"),
        ({"w": torch.zeros(2, 3), "n": torch.tensor(0), "x": torch.zeros(1)}, r"not in it: \['x'\]"),
        (
            {"w": torch.zeros(3, 2), "n": torch.tensor(0)},
            r"`w` is float32 \[2, 3\] there and float32 \[3, 2\] here",
        ),
        (
            {"w": torch.zeros(2, 3).double(), "n": torch.tensor(0)},
            r"`w` is float32 \[2, 3\] there and float64",
        ),
    ],
)
def test_another_state_is_refused(tmp_path: Path, state: dict[str, torch.Tensor], error: str) -> None:
    run = Location.parse(tmp_path)
    parts = save_state(run, "data", {"w": torch.ones(2, 3), "n": torch.tensor(7)})
    before = {name: tensor.clone() for name, tensor in state.items()}
    with pytest.raises(ValueError, match=error):
        load_state(run, parts, state)
    assert all(same_bytes(state[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("index", [0, -1])
def test_a_missing_or_cut_file_is_corrupt(tmp_path: Path, index: int) -> None:
    run = Location.parse(tmp_path)
    state = {"w": torch.ones(2, 3)}
    parts = save_state(run, "data", dict(state))
    path = tmp_path / parts[index].path
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 3])
    with pytest.raises(Corrupt):
        load_state(run, parts, state)
    path.unlink()
    with pytest.raises(Corrupt, match="is missing"):
        load_state(run, parts, state)


@pytest.mark.slow
@settings(max_examples=40)
@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_no_flipped_bit_of_a_manifest_passes(
    tmp_path_factory: pytest.TempPathFactory, position: float, bit: int
) -> None:
    run = Location.parse(tmp_path_factory.mktemp("run"))
    parts = save_state(run, "data", {"w": torch.ones(2, 3)})
    path = run.path / parts[-1].path
    content = bytearray(path.read_bytes())
    content[int(position * len(content))] ^= 1 << bit
    path.write_bytes(content)
    with pytest.raises(Corrupt):
        load_state(run, parts, {"w": torch.zeros(2, 3)})


@given(st.binary(max_size=300))
def test_bytes_that_are_no_manifest_are_corrupt(content: bytes) -> None:
    with pytest.raises(Corrupt):
        Manifest.from_bytes(content)


def test_blocks_must_cover_a_tensor_once() -> None:
    def manifest(*rows: tuple[int, int]) -> bytes:
        blocks = (
            Block("w", "float32", (at, 0), (n, 3), 12 * n, "", "part", 0, i, 0)
            for i, (at, n) in enumerate(rows)
        )
        return Manifest({"w": (torch.float32, torch.Size((6, 3)))}, tuple(blocks)).to_bytes()

    assert len(Manifest.from_bytes(manifest((4, 2), (0, 4))).blocks) == 2
    for rows in ([(0, 4), (2, 2)], [(0, 2), (2, 2), (2, 2)], [(3, 3), (1, 3)]):
        with pytest.raises(Corrupt, match=r"two blocks of `w` hold the elements at \["):
            Manifest.from_bytes(manifest(*rows))
    with pytest.raises(Corrupt, match="hold 12 elements of 18"):
        Manifest.from_bytes(manifest((0, 4)))


@pytest.mark.parametrize(
    "tensors",
    [
        {"w": ["float32", [0, 2**62, 2**62]]},
        {"w": ["float32", [0, 2**61]]},
        *({"w": [dtype, [0]]} for dtype in ("qint8", "quint4x2", "bits8", "uint4", "int1", "__class__")),
        [1, 2],
        {"w": ["float32", [2.5]]},
        {"w": ["float32", [-1, 0]]},
    ],
    ids=str,
)
def test_tensors_that_no_memory_holds_are_corrupt(tensors: object) -> None:
    schema = _ROWS.with_metadata({_KEY: json.dumps({"schema": 1, "tensors": tensors}).encode()})
    sink = io.BytesIO()
    pq.write_table(schema.empty_table(), sink)
    with pytest.raises(Corrupt, match="can't be read"):
        Manifest.from_bytes(sink.getvalue())


def test_a_manifest_that_could_not_be_read_again_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    block = Block("w", "float32", (0, 0), (2, 2), 16, "0" * 16, "data", 0, 0, 0)
    manifest = Manifest({"w": (torch.float32, torch.Size((2, 2)))}, (block,))
    monkeypatch.setattr("froude.checkpoint.manifest.MOST_VALUES", 2)
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    monkeypatch.setattr("froude.checkpoint.manifest.MOST_VALUES", 1)
    with pytest.raises(ConfigError, match="its 1 blocks have 2; let fewer workers share a model"):
        manifest.to_bytes()


def test_a_newer_manifest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer_froude:
        newer_froude.setattr("froude.checkpoint.manifest.SCHEMA_VERSION", 2)
        newer = Manifest({}, ()).to_bytes()
    with pytest.raises(ConfigError, match="schema 1, but got 2"):
        Manifest.from_bytes(newer)


def test_a_part_is_created_once(place: Location) -> None:
    part = create_part(place, "ledger", "parts/a", b"rows")
    assert part == Part("ledger", "parts/a", 4, part.hash)
    assert create_part(place, "ledger", "parts/a", b"rows") == part
    with pytest.raises(FileExistsError):
        create_part(place, "ledger", "parts/a", b"others")
