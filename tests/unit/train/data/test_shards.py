"""Shards of other tools: the windows that they hold, in place, and the documents of these."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import honest_run
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_writers import WRITERS, megatron

from froude.checkpoint.run_store import RunStore
from froude.config import ConfigError, Run
from froude.corpora.formats import FORMATS
from froude.material import Material
from froude.promote.verify import locate, verify_run
from froude.store import Location
from froude.train.api import Request, Unsupervised, build_source, material_of
from froude.train.data.order import Batches, validation_windows
from froude.train.data.shards import Shards
from froude.train.data.soundness import check_corpus
from froude.train.exact import environment
from froude.train.worker import run_worker

SHARDS = "froude.train.data.shards:Shards"
#: Folder of tests/data/shards, format, whether it has documents.
FIXTURES = [
    ("megatron", "megatron", True),
    ("datatrove", "megatron", True),
    ("dolma", "dolma", True),
    ("datasets", "arrow", True),
    ("arrow", "arrow", True),
    ("parquet", "parquet", True),
    ("llm.c", "llm.c", False),
    ("nanogpt", "uint", False),
]
CONTEXT = 16


@pytest.fixture
def shards_run(make_run: Callable[..., Run]) -> Callable[..., Run]:
    def make(path: object, changes: dict[str, Any] | None = None) -> Run:
        base = {"data.source": SHARDS, "data.path": str(path), "model.context": CONTEXT, "model.vocab": 1000}
        return make_run(base | (changes or {}))

    return make


@pytest.fixture(scope="module")
def folder(root: Path) -> Path:
    return root / "tests/data/shards"


@pytest.fixture(scope="module")
def documents(folder: Path) -> list[list[int]]:
    loaded: list[list[int]] = json.loads((folder / "documents.json").read_text())
    return loaded


def joined(documents: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(documents))


def windows_of(tokens: list[int], context: int = CONTEXT) -> Any:
    """All windows of a stream, as the source's contract has them."""
    count = (len(tokens) - 1) // context
    return np.array([tokens[i * context : i * context + context + 1] for i in range(count)])


def test_fixtures_hold_what_other_readers_find_in_them(folder: Path, documents: list[list[int]]) -> None:
    """pyarrow; numpy as nanoGPT's `train.py` uses it, and after llm.c's header."""
    assert pa.ipc.open_file(folder / "arrow/a.arrow").read_all()["tokens"].to_pylist() == documents
    parquet = [pq.read_table(folder / f"parquet/{x}.parquet")["input_ids"].to_pylist() for x in "ab"]
    assert parquet[0] + parquet[1] == documents
    for name, header in (("nanogpt", 0), ("llm.c", 1024)):
        parts = [np.memmap(folder / name / f"{x}.bin", np.uint16, "r", offset=header) for x in "ab"]
        assert np.concatenate(parts).tolist() == joined(documents)


@pytest.mark.parametrize("name, kind, documented", FIXTURES, ids=[f[0] for f in FIXTURES])
def test_windows_are_those_of_the_formats_own_reader(
    folder: Path,
    documents: list[list[int]],
    shards_run: Callable[..., Run],
    name: str,
    kind: str,
    documented: bool,
) -> None:
    run = shards_run(folder / name)
    assert check_corpus(run)
    train, held = (build_source(run, split) for split in ("train", "validation"))
    assert train.sha256 == held.sha256
    assert run.data.sha256 == ""  # the source says it, no whole file is hashed for it
    tokens = joined(documents)
    if documented:
        # Whole documents are held out: those whose numbers `documents()` of the validation split has.
        numbers = set(np.unique(held.documents(0, held.length)))
        last = held._stream.document_of(held._stream.tokens - 1, 1)
        numbers |= set(last)
        assert 0 < len(numbers) < 5
        rest = [t for i, d in enumerate(documents) if i not in numbers for t in d]
        kept = [t for i, d in enumerate(documents) if i in numbers for t in d]
        owner = [i for i, d in enumerate(documents) if i not in numbers for _ in d]
        assert (train.documents(0, train.length) == windows_of(owner)).all()
    else:
        assert train.documents is None
        block = 64 * CONTEXT
        assert held.length == 63  # one block of 64 windows' tokens, less the token after the last
        assert len(tokens) // block == 1
        kept, rest = tokens[:block], tokens[block:]
    expected = windows_of(rest)
    assert train.length == len(expected)
    assert (held.read(0, held.length) == windows_of(kept)).all()
    assert (train.read(0, train.length) == expected).all()
    draw = random.Random(1)
    for _ in range(100):
        first = draw.randrange(train.length)
        n = draw.randrange(1, min(4, train.length - first) + 1)
        assert (train.read(first, n) == expected[first : first + n]).all()
    explicit = shards_run(folder / name, {"data.options": {"format": kind}})
    assert build_source(explicit, "train").sha256 == train.sha256
    with pytest.raises(ValueError, match=r"windows must lie in"):
        train.read(train.length, 1)


@pytest.mark.parametrize(
    "path, first",
    [("megatron/b.bin", 20), ("megatron/*.bin", 0), ("dolma/part-b*", 20), ("parquet/[ab].parquet", 0)],
)
def test_a_file_or_a_pattern_finds_what_stands_beside_it(
    folder: Path, documents: list[list[int]], shards_run: Callable[..., Run], path: str, first: int
) -> None:
    source = build_source(shards_run(folder / path), "train")
    assert source.documents is not None
    held = build_source(shards_run(folder / path), "validation")
    assert source._stream.tokens + held._stream.tokens == len(joined(documents[first:]))


def test_shards_held_out_by_name(
    folder: Path, documents: list[list[int]], shards_run: Callable[..., Run]
) -> None:
    for name in ("b.bin", str(folder / "megatron/b.bin"), "b.*"):
        run = shards_run(folder / "megatron", {"data.options": {"validation": name}})
        train, held = (build_source(run, split) for split in ("train", "validation"))
        assert (train.read(0, train.length) == windows_of(joined(documents[:20]))).all()
        assert (held.read(0, held.length) == windows_of(joined(documents[20:]))).all()
        assert held.read(0, 1).dtype == np.dtype("int32")
    other = shards_run(folder / "megatron", {"data.options": {"validation": "a.bin"}})
    assert build_source(other, "train").sha256 != train.sha256


def test_equal_documents_are_on_one_side(tmp_path: Path, shards_run: Callable[..., Run]) -> None:
    draw = random.Random(2)
    documents = [[draw.randrange(1000) for _ in range(draw.randrange(40))] for _ in range(300)]
    documents += documents[::-1]
    megatron(tmp_path / "a", documents)
    run = shards_run(tmp_path, {"data.options": {"held_out": 0.2}})
    train, held = (build_source(run, split) for split in ("train", "validation"))
    sides = [{tuple(documents[i]) for i in np.unique(s.documents(0, s.length))} for s in (train, held)]
    assert not sides[0] & sides[1]
    assert 0.15 < held._stream.tokens / (train._stream.tokens + held._stream.tokens) < 0.25


@pytest.mark.parametrize("name", list(WRITERS))
@given(data=st.data())
@settings(max_examples=25)
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    """Any documents, over any number of shards, read in any place."""
    writer, documented = WRITERS[name]
    dtype = data.draw(st.sampled_from(["uint16", "int32"] if name != "llm.c" else ["uint16", "uint32"]))
    ids = st.integers(0, 60_000)
    shards = data.draw(
        st.lists(st.lists(st.lists(ids, max_size=12), min_size=1, max_size=20), min_size=1, max_size=3)
    )
    context = data.draw(st.integers(1, 5))
    tokens = [token for shard in shards for document in shard for token in document]
    owner = [i for i, d in enumerate(d for shard in shards for d in shard) for _ in d]
    if len(tokens) <= context:
        return
    place = tmp_path_factory.mktemp("written")
    for i, shard in enumerate(shards):
        writer(place / f"{i}", shard, dtype)
    writer(place / "held", [list(range(context + 1))], dtype)
    held = next(path.name for path in place.glob("held.*") if path.suffix not in (".idx", ".gz"))
    options = {"validation": held} | ({"dtype": dtype} if name in ("dolma", "headerless") else {})
    run = Run(
        tokens=context,
        batch=context,
        model={"context": context, "vocab": 60_001},
        data={"source": SHARDS, "path": str(place), "options": options},
    )
    source = Shards(run, "train")
    expected = windows_of(tokens, context)
    assert source.length == len(expected)
    first = data.draw(st.integers(0, source.length - 1))
    n = data.draw(st.integers(1, source.length - first))
    assert (source.read(first, n) == expected[first : first + n]).all()
    assert (source.documents is not None) == documented
    if source.documents:
        assert (source.documents(first, n) == windows_of(owner, context)[first : first + n]).all()


def test_the_hash_follows_the_content_and_what_is_made_of_it(
    tmp_path: Path, shards_run: Callable[..., Run]
) -> None:
    documents = [[i % 7] * 40 for i in range(100)]
    place = tmp_path / "a"
    place.mkdir()
    megatron(place / "x", documents)
    run = shards_run(place)
    before = material_of(run)
    assert before == material_of(run)
    assert set(before.corpus) == {"corpus"}
    moved = tmp_path / "b"
    place.rename(moved)
    assert material_of(run.replace({"data.path": str(moved)})) == before
    assert run.fingerprint == run.replace({"data.path": str(moved)}).fingerprint
    shared = build_source(shards_run(moved, {"data.options": {"held_out": 0.3}}), "train").sha256
    assert shared != before.corpus["corpus"]
    index = (moved / "x.idx").read_bytes()
    megatron(
        moved / "x", [documents[0][:20], documents[0][20:], *documents[1:]]
    )  # the same tokens, other documents
    assert material_of(shards_run(moved)).digest != before.digest
    documents[50][3] = 9
    megatron(moved / "x", documents)
    assert (moved / "x.idx").read_bytes() == index
    after = material_of(shards_run(moved))
    assert isinstance(after, Material)
    assert after.digest != before.digest
    pinned = shards_run(moved, {"data.sha256": before.corpus["corpus"]})
    with pytest.raises(ConfigError, match=r"`data.sha256` must be the SHA-256 of"):
        build_source(pinned, "train")


def test_a_path_is_made_absolute_unless_it_is_a_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    def path(given: str) -> str:
        return Run(tokens=768, data={"source": SHARDS, "path": given}).data.path

    assert path("shards/*.bin") == str(tmp_path / "shards/*.bin")
    assert path("s3://bucket/shards/") == "s3://bucket/shards/"
    assert path("") == ""


def test_data_json_says_what_is_held_out_and_how_much_text_it_is(
    tmp_path: Path, shards_run: Callable[..., Run], documents: list[list[int]]
) -> None:
    megatron(tmp_path / "x", documents)
    assert build_source(shards_run(tmp_path), "train").bytes_per_token is None
    megatron(tmp_path / "y", documents[:9])
    files = {name: (tmp_path / name).read_bytes() for name in ("x.bin", "y.bin", "y.idx")}
    listed = [
        {"name": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "split": "train"}
        for name, content in files.items()
    ]
    count = len(joined(documents[:9]))
    said = {"version": 1, "splits": {"validation": {"tokens": count, "bytes": count * 4}}, "shards": listed}
    (tmp_path / "data.json").write_text(json.dumps(said))
    # What a hash holds out are not the tokens that it counts.
    assert build_source(shards_run(tmp_path), "validation").bytes_per_token is None
    listed[1]["split"] = "validation"
    (tmp_path / "data.json").write_text(json.dumps(said))
    assert build_source(shards_run(tmp_path), "validation").bytes_per_token == 4
    with pytest.raises(ConfigError, match=r"data\.json lists all of .* as validation"):
        build_source(shards_run(tmp_path, {"data.options": {"validation": "x.bin"}}), "train")
    train, held = (build_source(shards_run(tmp_path), split) for split in ("train", "validation"))
    assert (train.read(0, train.length) == windows_of(joined(documents))).all()
    assert (held.read(0, held.length) == windows_of(joined(documents[:9]))).all()
    listed[0]["size"] += 2
    (tmp_path / "data.json").write_text(json.dumps(said))
    with pytest.raises(ConfigError, match=r"must have the size that .*data.json lists"):
        build_source(shards_run(tmp_path), "train")


def test_batches_and_evaluations_read_any_window(folder: Path, shards_run: Callable[..., Run]) -> None:
    source = build_source(shards_run(folder / "datasets"), "train")
    batches = Batches(source, 0, 2, 3)
    slot = batches.slot(5, 1)
    assert slot.tokens.dtype == np.int64
    assert (slot.tokens == np.concatenate([source.read(i, 1) for i in batches.windows(5, 1)])).all()
    assert validation_windows(source, 8).shape == (8, CONTEXT + 1)


def test_local_shards_are_parts_of_a_mixture(folder: Path, shards_run: Callable[..., Run]) -> None:
    """Their `expect` is None, since there is nothing to fetch."""
    parts = [
        {"name": name, "source": SHARDS, "path": str(folder / name), "weight": 1}
        for name in ("megatron", "dolma")
    ]
    source = build_source(shards_run("").replace(data={"parts": parts}), "train")
    batches = Batches(source, 0, 2, 3)
    slot = batches.slot(0, 0)
    assert (slot.tokens == np.concatenate([source.read(i, 1) for i in batches.windows(0, 0)])).all()


class Interrupting(Unsupervised):
    """Stops the run twice, after its second and its fourth step."""

    def poll(self, step: int) -> Request:
        return "stop" if step == 2 * self.attempt else "none"


@pytest.mark.slow
@pytest.mark.parametrize("name", [f[0] for f in FIXTURES])
def test_a_run_on_them_goes_on_where_it_was_and_is_verified(folder: Path, tmp_path: Path, name: str) -> None:
    """Twice, and both times beyond an epoch's end, where loaders with a state begin anew or skip samples."""
    changes = {
        "model.width": 16,
        "model.context": CONTEXT,
        "model.vocab": 1000,
        "workers": 1,
        "eval_windows": 2,
    }
    sizes = {"slots": 4, "batch": 88 * CONTEXT, "tokens": 6 * 88 * CONTEXT}
    data = {"source": SHARDS, "path": str(folder / name)}
    run = honest_run.RUN.replace({**changes, **sizes}, data=data, name="large")
    assert build_source(run, "train").length < 2 * 88
    recipe = honest_run.sealed(tmp_path, run=run)
    environment.make_deterministic(torch.device("cpu"))
    meta = {"build": environment.describe(torch.device("cpu")), "material": material_of(run).to_dict()}
    try:
        for supervisor in (Interrupting, Interrupting, Unsupervised):
            store = RunStore(Location.parse(tmp_path) / "runs/large", "large")
            run_worker(run, store, supervisor(attempt=store.open_attempt(recipe.sha256, meta)), device="cpu")
    finally:
        torch.use_deterministic_algorithms(False)
    study, _ = locate(str(tmp_path))
    checks = {check.name: (check.passed, check.seen) for check in verify_run(study, recipe)}
    assert all(passed for passed, _ in checks.values()), checks
    assert checks["the log is one chain"][1].endswith("3 attempts")
    assert "every digest is that of the corpus's tokens" in checks


def test_every_format_is_met_here() -> None:
    assert {kind for _, kind, _ in FIXTURES} == set(FORMATS)
