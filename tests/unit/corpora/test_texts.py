"""Documents of texts: the same wherever a file is cut, and errors that say where."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from froude.config import ConfigError
from froude.corpora.prepare import texts
from froude.corpora.prepare.inputs import inputs
from froude.corpora.prepare.texts import all_documents, documents, parts

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)


def read(*places: Path, size: int = 1 << 20, column: str = "text") -> list[str]:
    found = inputs([str(place) for place in places])
    return [text for each in found for part in parts(each, size) for text in documents(part, column)]


@pytest.mark.slow
@given(
    written=st.lists(TEXT, max_size=12),
    size=st.integers(1, 90),
    ending=st.sampled_from(["\n", "\r\n", "\n\n", "\n  \n"]),
    last=st.booleans(),
)
def test_lines_are_the_same_wherever_they_are_cut(
    tmp_path_factory: pytest.TempPathFactory, written: list[str], size: int, ending: str, last: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.jsonl"
    content = ending.join(json.dumps({"text": text}, ensure_ascii=len(text) % 2 == 0) for text in written)
    path.write_text(content + ending * last, encoding="utf-8", newline="")
    assert read(path, size=size) == written
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "BLOCK", 7)
        assert read(path, size=size) == written


def test_each_format_gives_the_same_documents(tmp_path: Path) -> None:
    written = ["one", "", "zwei äöü €😀", "line\nline"]
    content = "".join(json.dumps({"id": 1, "body": text}) + "\n" for text in written).encode()
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(content))
    with pa.output_stream(str(tmp_path / "c.jsonl.zst"), compression="zstd") as sink:
        sink.write(content)
    column = pa.array(written)
    pq.write_table(pa.table({"body": column}), tmp_path / "d.parquet", row_group_size=2)
    pq.write_table(pa.table({"body": column.dictionary_encode()}), tmp_path / "e.parquet")
    pq.write_table(pa.table({"body": column.cast(pa.large_string())}), tmp_path / "f.parquet")
    for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst", "d.parquet", "e.parquet", "f.parquet"):
        assert read(tmp_path / name, size=3, column="body") == written, name
    for i, text in enumerate(written):
        (tmp_path / f"{i}.txt").write_bytes(text.encode())
    assert read(*(tmp_path / f"{i}.txt" for i in range(4))) == written
    # A folder is its texts, sorted; what is no text is passed over.
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.csv").write_text("a,b")
    (tmp_path / "folder" / "z.txt").write_text("z")
    (tmp_path / "folder" / "deep").mkdir()
    (tmp_path / "folder" / "deep" / "y.md").write_text("y")
    (tmp_path / "folder" / "tokenizer.json").write_text("{}")
    assert [each.name for each in inputs([str(tmp_path / "folder")])] == ["folder/deep/y.md", "folder/z.txt"]
    # Beside data, plain text is about them.
    (tmp_path / "folder" / "deep" / "x.json.gz").write_bytes(gzip.compress(b'{"text": ""}'))
    assert [each.name for each in inputs([str(tmp_path / "folder")])] == ["folder/deep/x.json.gz"]
    assert len(inputs([str(tmp_path / "folder"), str(tmp_path / "folder" / "z.txt")])) == 2


def test_nulls_are_empty_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": null}\n{"text": "x"}')
    pq.write_table(pa.table({"text": pa.array([None, "x"], pa.string())}), tmp_path / "b.parquet")
    assert read(tmp_path / "a.jsonl", tmp_path / "b.parquet") == ["", "x", "", "x"]


GOOD = b'{"text": "good"}\n'
BAD = [
    ("a.txt", b"caf\xe9 x", r"UTF-8, but .*a.txt has byte 0xe9 at offset 3 .*iconv"),
    ("a.txt.gz", gzip.compress(b"caf\xe9 x"), r"byte 0xe9 at offset 3 of its content"),
    ("a.jsonl", GOOD * 9 + b'{"text": "caf\xe9"}', r"a.jsonl has byte 0xe9 at offset 166"),
    ("a.jsonl", GOOD * 9 + b'{"text": ', r"but line 10 of .*a.jsonl is no JSON \(Expecting value.*--column"),
    (
        "a.jsonl",
        GOOD + b"\n" + GOOD * 8 + b'{"tekst": ""}\n' + GOOD,
        r"line 11 of .* has no 'text' \(it has tekst\)",
    ),
    ("a.jsonl", GOOD + b"[1]\n", r"line 2 of .*is a JSON list"),
    ("a.jsonl", b"[" * 100_000, r"line 1 of .*is no JSON"),
    ("a.jsonl", b'{"text": 5}', r"'text' must be a text, but in the line at offset 0 of .* it is int"),
    ("a.jsonl", b'{"text": "\\ud800"}', r"half of a surrogate pair"),
    ("a.jsonl.gz", GOOD, r"must be whole gzip files, but .*a.jsonl.gz: .*restore"),
    ("a.parquet", b"PAR1 no", r"whole Parquet files, but .*a.parquet"),
    ("a.csv", b"a,b", r"texts must be plain text .*, but got .*a.csv; rename or convert"),
]


@pytest.mark.parametrize("name, content, match", BAD, ids=[f"{name}-{i}" for i, (name, *_) in enumerate(BAD)])
@pytest.mark.parametrize("size", [1 << 20, 40])
def test_what_is_no_text_is_said_with_its_place(
    tmp_path: Path, name: str, content: bytes, match: str, size: int
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=match):
        read(tmp_path / name, size=size)


def test_a_parquet_file_must_have_the_column(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1], "body": ["x"]}), path)
    with pytest.raises(
        ConfigError,
        match=r"column of texts 'text', but .* has id, body; name one with --column .`data.options.column`",
    ):
        read(path)
    with pytest.raises(ConfigError, match=r"must hold strings, but 'id' of .* holds int64"):
        read(path, column="id")
    pq.write_table(pa.table({"text": pa.array([b"ok", b"caf\xe9"]).view(pa.string())}), path)
    with pytest.raises(ConfigError, match=r"UTF-8, but row 1 of row group 0 of"):
        read(path)


def test_what_is_not_there_or_named_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"missing.txt is empty or not there; check"):
        inputs([str(tmp_path / "missing.txt")])
    with pytest.raises(ConfigError, match=r"empty is empty or not there"):
        inputs([str(tmp_path / "empty")])
    (tmp_path / "empty" / "a.csv").write_text("a")
    with pytest.raises(ConfigError, match=r"texts must be plain text .* but .*empty holds none"):
        inputs([str(tmp_path / "empty")])
    with pytest.raises(ConfigError, match=r"a.txt is named twice"):
        inputs([str(tmp_path), str(tmp_path / "a.txt")])


def test_a_document_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "DOCUMENT", 100)
    monkeypatch.setattr(texts, "BLOCK", 64)
    (tmp_path / "a.txt").write_text("x" * 300)
    (tmp_path / "b.jsonl").write_text("x" * 300)
    for name in ("a.txt", "b.jsonl"):
        with pytest.raises(ConfigError, match=rf"a document must have at most .*{name} has more"):
            read(tmp_path / name)


def test_reading_all_tells_how_far_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.jsonl").write_text('{"text": ""}')
    told: list[float] = []
    found = inputs([str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl")])
    assert list(all_documents(found, "text", lambda share, _: told.append(share))) == ["a"]
    assert told == sorted(told)
    assert told[-1] == 1
    with pytest.raises(ConfigError, match="must hold text, but all documents of"):
        list(all_documents(found[1:], "text", lambda *_: None))
