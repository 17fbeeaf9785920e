"""The search space of the campaign near_recipe: rates at a batch of 64, and what the other stages make of them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own, since the space changes the quickstart's, and the campaign another campaign.
SHOW = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import near_recipe
from whole_recipe import SPACE
place = Path(sys.argv[2]) / "space.py"
place.write_text(SPACE.format(folder=sys.argv[3], data={}, words="", loss=2.2))
from froude.space import load_space
space = load_space(place, seed=30)
found = {}
for stage in space.stages:
    found[stage.name] = [run.to_dict() for trial in stage.planned() for run in trial.runs]
print(json.dumps(found))
"""
LIFE = 768 * math.log(0.5) / math.log(0.95)  # of beta2, in tokens: where nothing has been searched


def half_life(run: dict) -> float:
    """In tokens."""
    return run["batch"] * math.log(0.5) / math.log(run["optimizer"]["beta2"])


@pytest.fixture(scope="module")
def planned(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict]]:
    given = [root / "benchmarks" / "campaign", tmp_path_factory.mktemp("space"), root / "search_spaces"]
    done = subprocess.run([sys.executable, "-c", SHOW, *given], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict]] = json.loads(done.stdout)
    return found


def test_rates_are_looked_for_at_64_with_what_a_token_has_at_768(planned: dict[str, list[dict]]) -> None:
    rates = planned["lr_transfer"]
    assert {(run["batch"], run["tokens"]) for run in rates} == {(64, 170 * 768)}
    base = [run["optimizer"] for run in rates if run["model"]["width"] == 64]
    middle = math.exp(sum(math.log(each["lr"]) for each in base) / len(base))
    assert middle == pytest.approx(2**-7.5 / math.sqrt(12), rel=1e-6)
    assert [half_life(run) for run in rates] == pytest.approx([LIFE] * len(rates))
    # The decay of a token, rate × weight decay / batch, is that of the other stages.
    assert middle * base[0]["weight_decay"] / 64 == pytest.approx(2**-7.5 * 0.1 / 768, rel=1e-6)


def test_horizons_are_whole_steps_of_64(planned: dict[str, list[dict]]) -> None:
    runs = planned["exponents"]
    assert {(run["batch"], run["tokens"]) for run in runs} == {(64, 65_536), (64, 196_608), (64, 589_824)}
    assert len(runs) == 3 * 5 * 2
    assert len({run["seed"] for run in runs}) == 2
    assert [half_life(run) for run in runs] == pytest.approx([LIFE] * len(runs), rel=1e-3)


def test_the_other_stages_begin_at_64_and_256(planned: dict[str, list[dict]]) -> None:
    batches = {run["batch"] for run in planned["critical_batch"]}
    assert batches == {64, 128, 192, 384, 768, 1536, 3072}
    assert {run["batch"] for run in planned["loss_law"]} == {256}
    lr = {run["batch"]: run["optimizer"]["lr"] for run in planned["critical_batch"]}
    assert lr[768] / lr[64] == pytest.approx(math.sqrt(12))
