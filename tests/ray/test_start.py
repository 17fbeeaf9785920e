"""The guide page "Your model and data, in six commands": its three ways, command by command, with smaller numbers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3_server import create_bucket, s3_server

from froude.store import Location
from froude.train.data import kjv

__all__ = ["s3_server"]

pytestmark = pytest.mark.long

SECTION = re.compile(r"^## (.+?)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REFUSED = re.compile(r"^  (\w+): ", re.MULTILINE)
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 512,
}
#: A made-up loss, near a law, in a tenth of a second.
TRAINER = """
import json, math, os
run = json.load(open(os.environ["FROUDE_RUN"]))
width, depth, tokens = run["model"]["width"], run["model"]["depth"], run["tokens"]
params, steps = 12 * depth * width**2, tokens // run["batch"]
off = math.log(run["optimizer"]["lr"] * width / (2**-7 * 48))
noise = 0.002 * math.sin(1e3 * run["seed"] + width + tokens)
loss = 1.5 + 20 / params**0.35 + 60 / tokens**0.4 + 0.02 * off**2 + noise
with open(os.environ["FROUDE_METRICS"], "a") as file:
    last = {"step": steps, "loss": loss, "lr": 0.0}, {"step": steps, "validation_loss": loss}
    for line in ({"params": params}, *last):
        file.write(json.dumps(line) + "\\n")
"""
SMALLER = {
    r"^STEPS = .*": "STEPS = 40",
    r"^HORIZONS = .*": "HORIZONS = (10, 20, STEPS)",
    r"^WARMUP = .*": "WARMUP = 4",
    r"^SEEDS, RATE_SEEDS = .*": "SEEDS, RATE_SEEDS = 1, 1",
    r"^OFFSETS = .*": "OFFSETS = (-2, -1, 0, 1, 2)",
    r"trials=12": "trials=4",
    r"startup=6": "startup=2",
    r"^CONTEXT, VOCAB = \d+": "CONTEXT, VOCAB = 32",
}


class Newcomer:
    """Somebody who types the page's commands."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def types(self, command: str) -> None:
        """Run a line of the page; where promotion is refused, once more with the checks overridden by name."""
        found = self._run(command)
        if found.returncode == 3:
            names = REFUSED.findall(found.stderr)
            assert names, found.stderr
            command += "".join(f" --override {name} --reason smaller" for name in names)
            found = self._run(command)
        assert found.returncode == 0, f"{command}: {found.stderr[-3000:]}"
        if command.startswith("froude init"):
            self._shrink()

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.place,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )

    def _shrink(self) -> None:
        file = self.place / "tank" / "search_space.py"
        text = file.read_text()
        for pattern, line in SMALLER.items():
            text, count = re.subn(pattern, line, text, flags=re.MULTILINE)
            assert count == 1, pattern
        file.write_text(text)


def documents() -> list[str]:
    """A few hundred."""
    lines = b"".join(kjv.streams()).decode("utf-8", "replace").splitlines(keepends=True)[:8000]
    return ["".join(lines[i : i + 20]) for i in range(0, len(lines), 20)]


def fill_bucket(url: str) -> None:
    """Two files of Parquet, with a column beside the text's."""
    folder, all_texts = Location.parse(url), documents()
    for number, texts in enumerate((all_texts[::2], all_texts[1::2])):
        held = pa.BufferOutputStream()
        pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), held)
        (folder / f"part-{number}.parquet").replace(held.getvalue().to_pybytes())


def write_shards(newcomer: Newcomer, folder: Path) -> None:
    """Megatron's, as their owner made them."""
    texts = newcomer.place / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents()))
    newcomer.types("froude data train-tokenizer texts.jsonl --vocab 512 --out words.json")
    newcomer.types(f"froude data prepare texts.jsonl --tokenizer words.json --out {folder}")


@pytest.mark.parametrize(
    "title",
    ["A model of transformers, on texts", "Shards of yours, and froude's model", "A trainer of yours"],
)
def test_each_way_leads_to_a_recipe(
    root: Path, tmp_path: Path, title: str, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (root / "docs/guide/start.md").read_text(encoding="utf-8")
    (block,) = BLOCK.findall(dict(SECTION.findall(page))[title])
    typed = [line.partition("    #")[0].strip() for line in block.splitlines()]
    assert len(typed) <= 6
    assert not any(sign in line for line in typed for sign in ("&&", ";", "|"))  # a line is one command
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "train.py").write_text(TRAINER)
    if "s3://bucket/texts" in block:
        create_bucket(s3_server, "bucket", monkeypatch)
        fill_bucket("s3://bucket/texts")
    newcomer = Newcomer(tmp_path)
    if "/data/corpus" in block:
        write_shards(newcomer, tmp_path / "corpus")
    for command in typed:
        newcomer.types(command.replace("/data/corpus", str(tmp_path / "corpus")))
    assert (tmp_path / "runs" / "tank" / "recipe.toml").exists()
