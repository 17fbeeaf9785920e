"""froude data: from texts to shards that are looked into and verified; what a user sees, and exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
from ship_texts import TEXTS

from froude.cli import main
from froude.corpora.prepare import whole


def said(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    assert main(["data", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["data", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert 1 <= len(captured.err.splitlines()) <= 2
    return captured.err


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, and the current one, with texts and a tokenizer of 300 tokens."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*TEXTS, TEXTS[7], ""]))
    assert main(["data", "train-tokenizer", "texts.jsonl", "--vocab", "300", "--out", "t.json"]) == 0
    return path


PREPARE = ["prepare", "texts.jsonl", "--tokenizer", "t.json", "--out", "out", "--held-out", "0.2"]


def test_from_texts_to_verified_shards(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "train-tokenizer", "texts.jsonl", "--vocab", "300", "--out", "t.json"]) == 2
    assert "--out must be a new file, but " in capsys.readouterr().err
    out = said(["train-tokenizer", "texts.jsonl", "--vocab", "300", "--out", "t2.json"], capsys)
    assert out.splitlines()[-1] == f"{texts.parent / 't2.json'}: 300 tokens"
    assert Path("t2.json").read_bytes() == Path("t.json").read_bytes()
    lines = said(PREPARE, capsys).splitlines()
    told = {line.split()[0]: line for line in lines if not line.startswith("[")}
    made = json.loads((texts.parent / "out" / "data.json").read_text())
    for split, counts in made["splits"].items():
        assert f"{counts['documents']:,} documents, {counts['tokens']:,} tokens" in told[split]
        assert f"{counts['bytes'] / counts['tokens']:.3f} bytes a token" in told[split]
    assert told["duplicates"].endswith("1, kept; --drop-duplicates leaves them out")
    assert told["empty"].endswith("1 document left out")
    assert told["tokenizer"].endswith("300 tokens, documents end with <|endoftext|>")
    assert told["shards"].endswith(f"2 in {texts.parent / 'out'} (uint16)")
    assert any(line.startswith("[tokenise] 100%") for line in lines)
    again = json.loads(said([*PREPARE, "--json"], capsys))
    assert again == {"folder": str(texts.parent / "out"), **made}

    assert "documents" in said(["stats", "out"], capsys)
    numbers = json.loads(said(["stats", "out", "--json"], capsys))["splits"]
    assert numbers["train"]["tokens"] == made["splits"]["train"]["tokens"]
    assert said(["verify", "out"], capsys).splitlines()[-1] == "5 of 5 files are what they were"
    shard = texts.parent / "out" / "train-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-1])
    lines = said(["verify", "out"], capsys, code=1).splitlines()
    assert lines[-2].startswith("train-00000.bin has ")
    assert lines[-1] == "4 of 5 files are what they were; restore the others, or prepare the data again"
    found = json.loads(said(["verify", "out", "--json"], capsys, code=1))
    assert [each["name"] for each in found["differing"]] == ["train-00000.bin"]
    assert "a shard must have the size that" in refused(["stats", "out"], capsys)


def test_shards_without_a_record(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", *PREPARE, "--json"]) == 0
    (texts.parent / "out" / "data.json").unlink()
    capsys.readouterr()
    assert "`froude data verify" in refused(["verify", "out"], capsys)
    assert not (texts.parent / "out" / "data.json").exists()
    assert "with the SHA-256 of 4 files" in said(["verify", "out", "--write"], capsys)
    assert json.loads(said(["verify", "out", "--json"], capsys)) == {"shards": 4, "differing": []}
    assert "not known: name the tokenizer" in said(["stats", "out"], capsys)


def test_shards_that_say_little_are_counted(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("raw").mkdir()
    Path("raw/a.bin").write_bytes(b"".join(i.to_bytes(4, "little") for i in range(257)))
    told = ["stats", "raw", "--format", "uint", "--dtype", "uint32"]
    assert json.loads(said([*told, "--json"], capsys))["splits"]["all"] == {
        **dict.fromkeys(("documents", "duplicates", "bytes", "bytes_per_token")),
        "tokens": 257,
        "lengths": {},
        "vocabulary_used": 257,
        "vocabulary": 257,
    }
    assert "has no boundaries" in said(told, capsys)
    assert "257 tokens occur" in said([*told, "--tokenizer", "t.json"], capsys).replace("of 300 ", "")


def test_ctrl_c_says_how_to_go_on_and_the_same_command_does(
    texts: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        write = whole.shards.write

        def interrupted(shard: whole.shards.Shard) -> object:
            if shard.name.startswith("validation"):
                raise KeyboardInterrupt
            return write(shard)

        patch.setattr(whole.shards, "write", interrupted)
        capsys.readouterr()
        assert main(["data", *PREPARE]) == 130
        assert capsys.readouterr().err == "froude: interrupted; the same command resumes\n"
    assert sorted(os.listdir("out")) == ["pieces", "train-00000.bin", "train-00000.idx"]
    made = os.stat("out/train-00000.bin").st_mtime_ns
    said(PREPARE, capsys)
    assert os.stat("out/train-00000.bin").st_mtime_ns == made
    assert "pieces" not in os.listdir("out")
    assert said(["verify", "out"], capsys).splitlines()[-1] == "5 of 5 files are what they were"


def test_one_document_and_a_small_vocabulary_are_told(
    texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("one.txt").write_text("abab abab")
    out = said(["prepare", "one.txt", "--tokenizer", "t.json", "--out", "one"], capsys)
    assert "no document is held out: all are one (a plain text file is one," in out
    assert "duplicates  none" in out
    out = said(["train-tokenizer", "one.txt", "--vocab", "5000", "--out", "few.json"], capsys)
    assert out.splitlines()[-1].endswith(
        "tokens: the texts hold no more pairs than that, 5,000 were asked for"
    )


@pytest.mark.parametrize(
    "arguments, match",
    [
        (
            ["prepare", "gone.jsonl", "--tokenizer", "t.json", "--out", "o"],
            "gone.jsonl is empty or not there",
        ),
        (["prepare", "texts.jsonl", "--tokenizer", "gone.json", "--out", "o"], "there is no file"),
        (["prepare", "texts.jsonl", "--tokenizer", "texts.jsonl", "--out", "o"], "is no JSON"),
        ([*PREPARE[:-2], "--column", "body"], "has no 'body' (it has text)"),
        ([*PREPARE[:-2], "--held-out", "2"], "--held-out must be a share"),
        ([*PREPARE[:-4], "--out", "."], "must be a new folder"),
        (["stats", "nowhere"], "`DIR|SHARD` must name at least one file, but 'nowhere' has no file"),
        (["verify", "nowhere"], "has none"),
        (
            ["train-tokenizer", "texts.jsonl", "--vocab", "9", "--out", "x.json"],
            "--vocab must be at least 257",
        ),
        (["prepare", "texts.jsonl", "--tokenizer", "t.json", "--out", "t.json"], "t.json"),
    ],
)
def test_bad_input_is_a_line_or_two(
    texts: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], match: str
) -> None:
    capsys.readouterr()
    assert match in refused([*arguments, *(["--json"] if "prepare" in arguments else [])], capsys)
    assert not Path("o/data.json").exists()


@pytest.mark.long
def test_the_guides_commands_do_what_it_says(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But those that need a cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(root / "docs", "docs")
    page = (root / "docs/guide/tokens.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    ran = []
    for language, text in blocks:
        if language == "python":
            Path(text.split("\n", 1)[0].removeprefix("# ")).write_text(text, encoding="utf-8")
            continue
        for line in text.splitlines():
            _, verb, *arguments = shlex.split(line, comments=True)
            if verb not in ("sweep", "fit"):
                assert main([verb, *arguments]) == 0, line
                ran.append(verb)
    assert ran == ["data"] * 4 + ["plan"]
    out = capsys.readouterr().out
    assert "5 of 5 files are what they were" in out
    assert "1 data source sound" in out
