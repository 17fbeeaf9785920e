"""A config of each family of transformers, from its file to a directory that transformers loads: the whole chain.

adapter → plan → sweep → a promotion that the gate refuses for want of a coordinate check → coordcheck → recipe → an
exact run on two nodes, one of which is killed → verify-run --rerun → export → from_pretrained, with the run's logits.
The study is of minutes: what it is too small for is overridden, the coordinate check is not. Writes
benchmarks/hugging_face.md.

    python benchmarks/campaign/hugging_face.py [--families llama,qwen3,olmo2,gpt2,granite] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from froude.checkpoint.tools import chosen, parameters
from froude.cli import main
from froude.launch.cluster import SimulatedCluster, log_dir, simulated
from froude.launch.elastic import train
from froude.promote import gate
from froude.promote.promotion import promote
from froude.promote.recipe import read
from froude.quickstart.drill import Drill
from froude.store import Location
from froude.study import Study
from froude.train import api
from froude.train.hf.directory import apart

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))
from _machine import commit, hardware  # noqa: E402

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "vocab_size": 256,
    "max_position_embeddings": 128,
}
GRANITE = {"embedding_multiplier": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.125}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**SIZES, "attention_dropout": 0.1},
    "qwen3": SIZES,
    "olmo2": SIZES,
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": 128, "vocab_size": 256},
    "granite": {**SIZES, **GRANITE, "logits_scaling": 4.0},
}
WIDTHS = ("--widths", "64,128,256", "--seeds", "4")
#: At which the check is made, where it is not 2^-8: behind norms SP moves far only at low rates.
RATES = {"olmo2": 2**-9}
#: Half octaves by which its rates are higher: its norms take more.
HIGHER = {"olmo2": 4}
SPACE = """
from froude.config import Run
from froude.space import Grid, LogUniform, Search, Space, Trial

MODEL = {model!r}
RATES = [2.0 ** (octaves / 2) for octaves in range(-20 + {higher}, -6 + {higher}, 2)]


def proxy(seed, width, steps, lr={rate!r}, **changes):
    return Run(
        model={{**MODEL, "width": width}},
        optimizer={{"lr": lr}},
        schedule={{"warmup_tokens": 256 * 8}},
        batch=256,
        tokens=256 * steps,
        eval_windows=128,
        seed=seed,
    ).replace(changes)


def space(seed=0):
    axes = {{"optimizer.lr": LogUniform(2**-9, 2**-5)}}
    default = {{"optimizer.lr": {rate!r}}}
    search = Search(
        "search", base=proxy(seed, 32, 60), axes=axes, trials=3, startup=2, parallel=2, default=default
    )
    rates = [
        Trial(run.name, (run,))
        for s in (seed, seed + 1)
        for width in (32, 48, 64)
        for lr in RATES
        for run in [proxy(s, width, 60, lr, name=f"rate-w{{width}}-lr{{lr:.2e}}-s{{s}}")]
    ]
    ladder = []
    for s in (seed, seed + 1):
        for width in (32, 48, 64):
            name = f"law-w{{width}}-s{{s}}"
            branches = tuple(proxy(s, width, n, name=f"{{name}}-n{{n}}") for n in (60, 90, 120))
            ladder.append(Trial(name, branches))
    stages = (
        search,
        Grid("lr_transfer", lambda rows: rates, role="lr_transfer", after=("search",)),
        Grid("loss_law", lambda rows: ladder, role="loss_law", after=("lr_transfer",)),
    )
    target = proxy(seed, 96, 240, name="large", slots=2, reduction="exact", workers=(1, 2), checkpoint_every=20)
    return Space("hf", seed, stages, target)
"""


def done(*arguments: str, code: int = 0) -> str:
    """What a verb prints; SystemExit where it ends otherwise than with `code`."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        got = main([*arguments])
    if got != code:
        raise SystemExit(
            f"froude {' '.join(arguments)} ended with {got}:\n{out.getvalue()}\n{err.getvalue()}"
        )
    return out.getvalue() + err.getvalue()


def refusing(study: Study) -> list[str]:
    """The checks that refuse the study."""
    try:
        promote(study)
    except gate.Refused as refused:
        if refused.beyond:
            raise SystemExit(f"the study lacks what no override gives: {refused.beyond}") from None
        return [check.name for check in refused.checks if check.refuses]
    return []


def killed_on_the_way(place: Path) -> list[int]:
    """Train the recipe on two nodes, one of which dies; the sizes of the groups."""
    recipe = read(place / "recipe.toml")
    location = Location.parse(place)
    with simulated(2, log_dir=log_dir(location)) as cluster:
        assert isinstance(cluster, SimulatedCluster)
        drill = Drill(cluster, kill_at=0.3, say=print)
        found = train(
            recipe.run, location, cluster=cluster, recipe=recipe.sha256, spares=False, progress=drill
        )
    return found.world_sizes


@torch.no_grad()
def difference(place: Path, out: Path) -> float:
    """Of the logits of what from_pretrained loads from those of the run's model, on tokens that neither has seen."""
    from transformers import AutoModelForCausalLM

    run, at = read(place / "recipe.toml").run, Location.parse(place) / "runs" / "large"
    model = api.build_model(run)
    for name, value in parameters(at, chosen(at)).items():
        model.get_parameter(name).copy_(value)
    net = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    tokens = torch.randint(256, (8, run.model.context), generator=torch.Generator().manual_seed(1))
    assert net.generate(tokens[:1, :8], max_new_tokens=8, do_sample=False).shape[1] > 8
    return apart(model(tokens), net(tokens).logits)


def chain(family: str, folder: Path) -> dict[str, Any]:
    """One family's row."""
    began, place = time.monotonic(), folder / "study"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": family, **CONFIGS[family]}))
    model = {
        "factory": "froude.train.hf:Model",
        "options": {"config": str(folder / "config.json")},
        "base_width": 32,
        "head_dim": 8,
        "context": 32,
        "tied": family == "gpt2",
        "embedding_sd": 0.1 if family == "gpt2" else 0.5,
    }
    (folder / "space.py").write_text(
        SPACE.format(model=model, rate=RATES.get(family, 2**-8), higher=HIGHER.get(family, 0))
    )
    done("plan", str(folder / "space.py"))
    done("sweep", str(folder / "space.py"), "--out", str(place), "--simulate", "2")
    names = refusing(Study(str(place)))
    if "coordinates" not in names:
        raise SystemExit(f"the gate must ask for a coordinate check, but refuses by {names}")
    told = done("coordcheck", str(place), *WIDTHS, "--plot", str(folder / "coordcheck.svg"))
    names.remove("coordinates")
    reasons = [word for name in names for word in ("--override", name, "--reason", "a study of minutes")]
    done("promote", str(place), *reasons)
    worlds = killed_on_the_way(place)
    verified = done("verify-run", str(place), "--rerun")
    exported = done(
        "checkpoints", "export", str(place), "--format", "hf", "--out", str(folder / "out"), "--json"
    )
    said, _ = json.JSONDecoder().raw_decode(exported)
    return {
        "family": family,
        "coordcheck": told.strip().splitlines()[-1].removeprefix("coordinate check over width "),
        "overridden": ", ".join(names) or "none",
        "worlds": " → ".join(map(str, worlds)),
        "rerun": next(
            line[6:] for line in verified.splitlines() if line.startswith("ok") and "undisturbed" in line
        ),
        "architecture": said["architecture"],
        "folded": "; ".join(said["folded"]),
        "export": said["logits_apart"],
        "reloaded": difference(place, folder / "out"),
        "seconds": time.monotonic() - began,
    }


def page(rows: list[dict[str, Any]], machine: str) -> str:
    """The result in Markdown."""
    head = "| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0])
    lines = [
        "| " + " | ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()) + " |"
        for row in rows
    ]
    return f"""# Models of transformers, in and out

{datetime.now(UTC):%Y-%m-%d}, commit {commit("campaign/hugging_face.py")}, {machine}.
`export` and `reloaded` are the largest difference of logits over the largest logit: 0 is the same bits.

{head}
{chr(10).join(lines)}

What it does not show: wider and deeper models, long windows, where rounding of RoPE and norms may add up, other
precisions than fp32, GPUs. Studies are of minutes; what they are too small for is overridden, as the column says.
"""


def run() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", default=",".join(CONFIGS))
    parser.add_argument("--out", default="")
    given = parser.parse_args()
    machine, rows = hardware(), []
    folder = Path(given.out or tempfile.mkdtemp(prefix="froude-hf-")).absolute()
    for family in given.families.split(","):
        rows.append(chain(family, folder / family))
        print(json.dumps(rows[-1], indent=2), flush=True)
        (HERE / "hugging_face.md").write_text(page(rows, machine), encoding="utf-8")


if __name__ == "__main__":
    run()
