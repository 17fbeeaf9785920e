"""froude checkpoints export as directories: hf with its card, dcp; what is refused before anything is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from honest_run import sealed
from s3_server import empty_bucket, s3_server
from ship_texts import TEXTS
from tiny_hf import config_file, run_of
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from froude.checkpoint.run_store import RunStore
from froude.cli import main
from froude.config import Run
from froude.corpora import tokenizer as tokenizers
from froude.promote.forecast import Forecast
from froude.store import Location
from froude.train import api
from froude.train.api import Unsupervised
from froude.train.hf.tokenizer import SHARDS
from froude.train.worker import run_worker

pytestmark = pytest.mark.slow

__all__ = ["s3_server"]

FORECAST = Forecast(5.2, 5.0, 5.4, 0.9, False, "prior_driven", ("one split",), 6.0)


def study(folder: Path, run: Run) -> Path:
    """A sealed study whose run was trained to its end, here and now."""
    recipe = sealed(folder, FORECAST, run)
    store = RunStore(Location.parse(folder) / "runs" / run.name, run.name)
    meta = {"material": api.material_of(run).to_dict()}
    run_worker(run, store, Unsupervised(attempt=store.open_attempt(recipe.sha256, meta)), device="cpu")
    torch.use_deterministic_algorithms(False)
    return folder


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapted")
    return study(folder / "study", run_of(config_file(folder, "llama"), width=128))


def export(place: Path, *options: str) -> int:
    return main(["checkpoints", "export", str(place), *options])


def test_a_run_of_the_adapter_leaves_with_a_card(
    adapted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM

    out = tmp_path / "out"
    assert export(adapted, "--format", "hf", "--out", str(out)) == 0
    assert (
        "LlamaForCausalLM; logits against the run's: the same bits, on 4 validation windows"
        in capsys.readouterr().out
    )
    names = {"config.json", "generation_config.json", "model.safetensors", "README.md", "recipe.toml"}
    assert {p.name for p in out.iterdir()} == names
    assert (out / "recipe.toml").read_bytes() == (adapted / "recipe.toml").read_bytes()
    card = (out / "README.md").read_text()
    for said in (
        "| run | large, step 4 of 4, 1,024 tokens |",
        "| forecast | 5.2000 nats per token, 5.0000 to 5.4000 (90%), not certified: one split |",
        "| tokens expected | 1,024 |",
        "| tokens skipped | 0 (by policy 0) |",
        "| tokens repeated | 0 |",
        "- logits × 0.25 into model.norm",
        "The same bits as the run's own model gives.",
    ):
        assert said in card
    assert "nats per token, inside the interval" in card or "outside the interval" in card
    net: Any = AutoModelForCausalLM.from_pretrained(out)
    assert net.config.use_cache
    assert net.config.vocab_size == 256


def test_a_config_that_has_changed_since_is_refused(
    adapted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = adapted.parent.glob("**/config.json")
    before = file.read_text()
    try:  # no weight shows it, and the export would be the same as the run's model as it is built now
        file.write_text(json.dumps({**json.loads(before), "rms_norm_eps": 0.1}))
        assert export(adapted, "--format", "hf", "--out", str(tmp_path / "out")) == 2
    finally:
        file.write_text(before)
    assert "the model's config must be the one that large was trained with" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_json_has_the_figures(adapted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert (
        export(adapted, "--format", "hf", "--dtype", "bf16", "--step", "2", "--out", str(out), "--json") == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert (said["step"], said["logits_apart_fp32"]) == (2, 0.0)
    assert 0 < said["logits_apart"] < 0.05
    card = (out / "README.md").read_text()
    assert "| outcome | none: the forecast is of step 4 |" in card
    # What the run trained after this checkpoint is no part of it.
    assert "| tokens expected | 512 |" in card
    assert "| tokens skipped | 0 (by policy 0) |" in card
    assert "| tokens repeated | 0 |" in card
    assert "the same bits in fp32" in card
    assert "rounded to bf16" in card


def test_torch_loads_the_parameters_from_dcp(adapted: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert export(adapted, "--format", "dcp", "--out", str(out)) == 0
    assert export(adapted, "--out", str(tmp_path / "flat.safetensors")) == 0
    from safetensors.torch import load_file

    expected = load_file(tmp_path / "flat.safetensors")
    state = {name: torch.zeros_like(value) for name, value in expected.items()}
    load(state, storage_reader=FileSystemReader(out), no_dist=True)
    assert all(torch.equal(state[name], value) for name, value in expected.items())


def test_the_packages_own_run_leaves_as_granite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(name="large", tokens=768, slots=2, eval_windows=8, model={"width": 128}, reduction="exact")
    assert export(study(tmp_path / "study", run), "--format", "hf", "--out", str(tmp_path / "out")) == 0
    assert "GraniteForCausalLM; logits against the run's: " in capsys.readouterr().out
    assert json.loads((tmp_path / "out/config.json").read_text())["logits_scaling"] == 2.0


REFUSED = {
    "a format": (["--format", "gguf"], "--format must be safetensors, hf or dcp, but got 'gguf'"),
    "a dtype": (["--format", "hf", "--dtype", "int8"], "--dtype must be fp32, or bf16"),
    "a dtype of a file": (["--dtype", "bf16"], "--dtype must be fp32, or bf16"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_options_are_refused(what: str, adapted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options, says = REFUSED[what]
    assert export(adapted, *options) == 2
    assert says in capsys.readouterr().err


def test_a_directory_that_holds_something_stays(
    adapted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("x")
    for format in ("hf", "dcp"):
        assert export(adapted, "--format", format, "--out", str(tmp_path)) == 2
        assert "must go into a new directory, but" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_run_without_its_recipe_is_no_hf_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(name="large", tokens=768)
    store = RunStore(Location.parse(tmp_path) / "runs" / "large", "large")
    store.open_attempt("another")
    state = {f"model.{name}": value.detach() for name, value in api.build_model(run).named_parameters()}
    store.save(state, step=1, tokens=768, tables={})
    assert export(tmp_path, "--format", "hf", "--out", str(tmp_path / "out")) == 2
    assert "has no recipe of it two folders up" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("remote", "named"), [(False, False), (True, False), (False, True)], ids=["local", "s3", "named"]
)
def test_the_tokenizer_of_the_shards_comes_along(
    remote: bool, named: bool, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer

    texts, words, shards = tmp_path / "texts.jsonl", tmp_path / "tokenizer.json", str(tmp_path / "shards")
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    words.write_bytes(tokenizers.trained(TEXTS, 300))
    assert main(["data", "prepare", str(texts), "--tokenizer", str(words), "--out", shards]) == 0
    if remote:
        bucket = empty_bucket(request.getfixturevalue("s3_server"), monkeypatch)
        for file in Path(shards).iterdir():
            (bucket / "shards" / file.name).replace(file.read_bytes())
        shards = (bucket / "shards").url
    run = run_of(config_file(tmp_path, "llama"), vocab=300)
    options = {"held_out": 0.2, **({"tokenizer": str(words)} if named else {})}
    run = run.replace(data={"source": SHARDS, "path": shards, "options": options}, name="large")
    out = tmp_path / "out"
    assert export(study(tmp_path / "study", run), "--format", "hf", "--out", str(out)) == 0
    own, theirs = tokenizers.load(str(words)), AutoTokenizer.from_pretrained(out)
    assert f"| tokenizer | sha256 {own.sha256} |" in (out / "README.md").read_text()
    assert (theirs.eos_token, theirs.eos_token_id) == own.end(None)
    for text in ("In the beginning ", "Ünïcode,  two spaces\n", "ships: 12345"):
        assert theirs(text)["input_ids"] == own.ids([text], "int64")[0].tolist()
        assert theirs.decode(theirs(text)["input_ids"]) == text


def test_a_directory_on_s3_holds_the_same_files(
    adapted: Path, s3_server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = empty_bucket(s3_server, monkeypatch)
    for format, file in (("hf", "model.safetensors"), ("dcp", ".metadata")):
        assert export(adapted, "--format", format, "--out", (bucket / format).url) == 0
        assert file in (bucket / format).children()
        assert export(adapted, "--format", format, "--out", (bucket / format).url) == 2
        assert "must go into a new directory, but s3://" in capsys.readouterr().err
    assert export(adapted, "--format", "hf", "--out", "s3://no-such-bucket-here/out") == 2
