"""A new project, as its user first meets it: it is planned as it was written."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from played_sweep import play
from s3_server import empty_bucket, s3_server
from ship_texts import TEXTS

from froude.cli import main
from froude.config import ConfigError
from froude.corpora.tokenizer import load, trained
from froude.promote.choice.searched import best_settings
from froude.space import load_space
from froude.starter.project import Wishes, write
from froude.sweep.agenda import Agenda
from froude.train.api import build_source
from froude.train.data import text_tokens
from froude.train.hf.config import scaled

__all__ = ["s3_server"]

pytestmark = pytest.mark.slow

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "vocab_size": 512,
}
TRAINER = "import json, os\nprint('a trainer')\n"


def planned(folder: Path, *more: str, path: str = "") -> str:
    """What `froude plan` prints in a process of its own, as the installed command: the folder is not on its path."""
    code = "import sys; from froude.cli import main; sys.exit(main())"
    known = os.pathsep.join(filter(None, [path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]))
    found = subprocess.run(
        [sys.executable, "-P", "-c", code, "plan", "search_space.py", *more],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": known},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_a_project_here_needs_no_change_of_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "."]) == 0
    assert "next      froude plan search_space.py" in capsys.readouterr().out


@pytest.mark.long
def test_a_project_is_planned_as_it_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "tank")]) == 0
    assert "froude plan search_space.py" in capsys.readouterr().out
    assert sorted(file.name for file in (tmp_path / "tank").iterdir()) == [
        "README.md",
        "runtime_env.yaml",
        "search_space.py",
    ]
    readme = (tmp_path / "tank" / "README.md").read_text()
    assert len(readme.split("\n\n")[1].splitlines()) == 5
    assert "a cluster that has froude installed on every node" in readme  # only its folder travels with a job
    text = planned(tmp_path / "tank")
    assert "loss_law" in text
    assert "probe: 1 model and 1 data source sound" in text


@pytest.mark.long
def test_classes_to_fill_in_are_sound_before_they_are_filled_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "own"
    assert main(["init", str(folder), "--model", "own", "--data", "own"]) == 0
    step = f"cd {folder} && export PYTHONPATH=$PWD && froude plan search_space.py --trust"
    assert step in capsys.readouterr().out
    assert "`export PYTHONPATH=$PWD` first" in (folder / "README.md").read_text()
    assert "probe: 1 model and 1 data source sound" in planned(folder, "--trust", path=str(folder))


@pytest.mark.parametrize(
    ("changes", "widths", "tied", "heads", "keys"),
    [
        ({"model_type": "gpt2", "n_head": 8, "n_embd": 256}, "(32, 64, 96, 128)", True, 1, 1),
        (
            {"model_type": "qwen3", "head_dim": 64, "tie_word_embeddings": True},
            "(128, 256, 384, 512)",
            True,
            4,
            1,
        ),
        # Heads that are together wider than the model, two of which share a key.
        ({"hidden_size": 128, "head_dim": 24, "num_key_value_heads": 4}, "(96, 192, 288, 384)", False, 6, 3),
    ],
)
def test_a_config_is_kept_at_every_width_tied_or_not(
    tmp_path: Path, changes: dict[str, object], widths: str, tied: bool, heads: int, keys: int
) -> None:
    gone = ("hidden_size", "num_", "intermediate") if "n_embd" in changes else ()
    config = {key: value for key, value in LLAMA.items() if not key.startswith(gone)}
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    write(tmp_path / "hf", Wishes(model=f"hf:{tmp_path}"))
    assert f"\nWIDTHS = {widths}\n" in (tmp_path / "hf" / "search_space.py").read_text()
    target = load_space(tmp_path / "hf" / "search_space.py").target
    assert target.model.tied is tied
    first = scaled(target.replace({"model.width": int(widths[1:].split(",")[0])}, name="first"))
    assert first.num_attention_heads == heads
    assert getattr(first, "num_key_value_heads", heads) == keys


@pytest.mark.long
def test_a_configuration_of_transformers_over_shards(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    shards = tmp_path / "shards"
    shards.mkdir()
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        rng.integers(0, 512, 300_000).astype(np.uint16).tofile(shards / f"{name}.bin")
    write(tmp_path / "first", Wishes(model=f"hf:{tmp_path}", data=str(shards), context=64))
    (tmp_path / "first").rename(tmp_path / "hf")  # it goes where its folder goes
    (tmp_path / "config.json").unlink()
    space = (tmp_path / "hf" / "search_space.py").read_text()
    assert "WIDTHS = (128, 256, 384, 512)" in space  # four heads of 32 share a key
    assert "CONTEXT, VOCAB = 64, 512" in space
    assert "probe: 1 model and 1 data source sound" in planned(tmp_path / "hf")


@pytest.mark.long
def test_a_trainer_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    write(tmp_path / "outside", Wishes(trainer=f"{sys.executable} {tmp_path / 'train.py'}"))
    readme = (tmp_path / "outside" / "README.md").read_text()
    assert "froude follow" in readme
    assert "--trust" in readme
    assert "loss_law" in planned(tmp_path / "outside", "--trust")


@pytest.mark.parametrize("trainer", ["", f"{sys.executable} -c 0"])
def test_a_study_whose_best_rate_lies_at_an_edge_ends_and_leaves_the_rest_to_the_gate(
    tmp_path: Path, trainer: str
) -> None:
    write(tmp_path / "tank", Wishes(trainer=trainer))
    agenda = Agenda(load_space(tmp_path / "tank" / "search_space.py"), {})
    play(agenda, lambda run: 3.0 - 0.1 * math.log2(run.optimizer.lr * (run.model.width if trainer else 1)))
    assert agenda.done
    # What follows the search has the beta2 of stage settled, which is the bowl's and no trial's.
    found = best_settings(agenda.rows(["search"]), batch=agenda.rows(["settled"])["batch"][0])["beta2"]
    later = agenda.rows(["settled", "lr_transfer", "loss_law"])["beta2"]
    assert later.unique().to_list() == [found]
    assert found not in agenda.rows(["search"])["beta2"].to_list()
    rates = agenda.rows(["lr_transfer"]).filter(pl.col("width") == 32)["lr"]
    assert agenda.rows(["loss_law"]).filter(pl.col("width") == 32)["lr"].unique().to_list() == [rates.max()]


def test_a_config_must_be_one_that_the_adapter_knows(tmp_path: Path) -> None:
    for changes, message in (
        ({"num_attention_heads": 0}, "0 heads"),
        ({"hidden_size": None}, "readable config.json"),
        ({"model_type": "mamba"}, "`model_type`"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "`rope_type`"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(LLAMA | changes))
        with pytest.raises(ConfigError, match=message):
            write(tmp_path / "new", Wishes(model=f"hf:{tmp_path}"))


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        (Wishes(model="gpt"), "--model must be hf:CONFIG"),
        (Wishes(model="hf:/nowhere"), "--model hf:CONFIG must be a readable"),
        (Wishes(data="/nowhere"), "/nowhere"),
        (Wishes(tokenizer="tokenizer.json"), "--tokenizer is for texts"),
        (Wishes(column="body"), "--column is for JSON lines"),
        (Wishes(trainer=f"{sys.executable} no_such.py"), "no_such.py does not"),
        (Wishes(trainer="no-such-program"), "must begin with a program"),
        (Wishes(trainer="python 'train.py"), "as a shell reads it"),
    ],
)
def test_what_cannot_be_read_leaves_nothing(tmp_path: Path, wishes: Wishes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        write(tmp_path / "new", wishes)
    assert not (tmp_path / "new").exists()


def test_one_plain_text_is_not_split_by_the_models_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "tokenizer.json").write_bytes(trained(TEXTS, 400))
    (tmp_path / "corpus.txt").write_text("\n".join(TEXTS))
    with pytest.raises(ConfigError, match="is one plain text; write JSON lines"):
        write(tmp_path / "new", Wishes(model=f"hf:{tmp_path}", data=str(tmp_path / "corpus.txt")))
    assert not (tmp_path / "new").exists()


def test_texts_in_a_bucket_get_a_tokenizer_of_their_own(
    tmp_path: Path, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parquet with a column that has another name; the project goes where its folder goes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bucket = empty_bucket(s3_server, monkeypatch)
    pq.write_table(pa.table({"url": TEXTS, "body": TEXTS}), tmp_path / "a.parquet")
    (bucket / "texts" / "a.parquet").replace((tmp_path / "a.parquet").read_bytes())
    where = ["--data", (bucket / "texts").url, "--column", "body", "--vocab", "300"]
    assert main(["init", str(tmp_path / "first"), *where]) == 0
    assert (tmp_path / "first" / "tokenizer.json").read_bytes() == trained(TEXTS, 300)
    (tmp_path / "first").rename(tmp_path / "tank")
    run = load_space(tmp_path / "tank" / "search_space.py").target.replace(
        {"model.context": 16}, name="large"
    )
    size = load(str(tmp_path / "tank" / "tokenizer.json")).size
    assert run.model.vocab >= size
    assert run.data.options["column"] == "body"
    assert build_source(run, "validation").length
    assert main(["init", str(tmp_path / "second"), *where[:2]]) == 2  # there is no column `text`
    assert not (tmp_path / "second").exists()


def test_a_models_own_tokenizer_comes_before_a_new_one(tmp_path: Path) -> None:
    model, texts = tmp_path / "model", tmp_path / "texts.jsonl"
    model.mkdir()
    files = {
        "tokenizer.json": trained(TEXTS, 290),
        "tokenizer_config.json": b'{"eos_token": "<|endoftext|>"}',
    }
    for name, content in {**files, "config.json": json.dumps(LLAMA).encode()}.items():
        (model / name).write_bytes(content)
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    write(tmp_path / "new", Wishes(model=f"hf:{model}", data=str(texts)))
    assert {name: (tmp_path / "new" / name).read_bytes() for name in files} == files
    assert load_space(tmp_path / "new" / "search_space.py").target.model.vocab == 290


@pytest.mark.parametrize("end", ['"<stop>"', '{"content": "<stop>"}', "null"])
def test_a_tokenizer_with_an_end_of_its_own_has_it_named_beside_it(tmp_path: Path, end: str) -> None:
    model, texts = tmp_path / "model", tmp_path / "texts.jsonl"
    model.mkdir()
    (model / "tokenizer.json").write_bytes(trained(TEXTS, 290).replace(b"<|endoftext|>", b"<stop>"))
    (model / "tokenizer_config.json").write_text(f'{{"eos_token": {end}}}')
    (model / "config.json").write_text(json.dumps(LLAMA))
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    wishes = Wishes(model=f"hf:{model}", data=str(texts))
    if end == "null":
        with pytest.raises(ConfigError, match="names its `eos_token`"):
            write(tmp_path / "new", wishes)
        return
    write(tmp_path / "new", wishes)
    target = load_space(tmp_path / "new" / "search_space.py").target
    assert target.data.options["eod"] == "<stop>"
    wishes = Wishes(data=str(texts), tokenizer=str(model / "tokenizer.json"))
    write(tmp_path / "named", wishes)
    assert load_space(tmp_path / "named" / "search_space.py").target.data.options["eod"] == "<stop>"


def test_more_text_than_can_be_read_in_passing_is_for_prepare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n')
    monkeypatch.setattr(text_tokens, "MOST_BYTES", 5)
    with pytest.raises(ConfigError, match="make shards of it once, with `froude data prepare`"):
        write(tmp_path / "new", Wishes(data=str(tmp_path / "texts.jsonl")))


def test_a_folder_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "search_space.py").write_text("mine")
    with pytest.raises(ConfigError, match="new or an empty folder"):
        write(tmp_path / "full", Wishes())
    assert (tmp_path / "full" / "search_space.py").read_text() == "mine"


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of shards that has a README."""
    folder = tmp_path / "shards"
    folder.mkdir()
    np.arange(1000, dtype=np.uint16).tofile(folder / "a.bin")
    (folder / "README.md").write_text("what they are")
    return folder


def test_plain_text_beside_shards_is_about_them(tmp_path: Path, shards: Path) -> None:
    write(tmp_path / "new", Wishes(data=str(shards), vocab=1000))
    assert "froude.train.data.shards:Shards" in (tmp_path / "new" / "search_space.py").read_text()


def test_shards_take_no_tokenizer_and_stand_without_other_texts(tmp_path: Path, shards: Path) -> None:
    with pytest.raises(ConfigError, match=r"--tokenizer is for texts, .* with --vocab"):
        write(tmp_path / "new", Wishes(data=str(shards), tokenizer="tokenizer.json"))
    (shards / "b.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(ConfigError, match=r"has both .*a.bin, .*b.jsonl"):
        write(tmp_path / "new", Wishes(data=str(shards)))


def test_texts_are_what_prepare_takes(tmp_path: Path) -> None:
    """Markdown is one of them; a pattern is none, since no source of texts takes it."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.md").write_text("a document")
    (docs / "b.md").write_text("another")
    (tmp_path / "tokenizer.json").write_bytes(trained(["a document"], 257))
    wishes = Wishes(data=str(docs), tokenizer=str(tmp_path / "tokenizer.json"))
    write(tmp_path / "new", wishes)
    assert "text_tokens:TextTokens" in (tmp_path / "new" / "search_space.py").read_text()
    with pytest.raises(ConfigError, match=r"is the pattern .*\*.md; name its folder"):
        write(tmp_path / "other", replace(wishes, data=f"{docs}/*.md"))
    with pytest.raises(ConfigError, match="--vocab must be at least 257"):
        write(tmp_path / "other", replace(wishes, vocab=256))
