"""The verdicts of the campaign whole_recipe on losses that are known, and the script from kept recipes to its page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from froude.config import Run


@pytest.fixture
def campaign(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, its files in a folder of the test's; texts are not written."""
    for folder in ("benchmarks", "benchmarks/campaign"):
        monkeypatch.syspath_prepend(root / folder)
    import whole_recipe

    monkeypatch.setattr(whole_recipe, "STUDIES", (("kjv", 20), ("sympy", 22)))
    monkeypatch.setattr(whole_recipe, "RESULT", tmp_path / "whole_recipe.md")
    monkeypatch.setattr(whole_recipe, "OUT", tmp_path / "out")
    monkeypatch.setattr(whole_recipe, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(whole_recipe, "text_of", lambda corpus: None)
    (tmp_path / "kept").mkdir()
    for corpus, seed in whole_recipe.STUDIES:
        name = f"{corpus}-s{seed}.json"
        (tmp_path / "kept" / name).write_bytes((root / "benchmarks/whole_recipe" / name).read_bytes())
    return whole_recipe


def results(campaign: Any, noise: float, **changes: float | None) -> None:
    """End every run at 1.3 nats and the noise of a seed; `changes` by run's name, None for one that diverged."""
    rng, lines = np.random.default_rng(0), []
    for job in (job for study in campaign.STUDIES for job in campaign.jobs(*study)):
        loss = changes.get(job["name"].split(" ", 3)[3], 0.0)
        drawn = 1.3 + noise * rng.standard_normal()
        lines.append(
            campaign.many.ended(job, "diverged")
            if loss is None
            else campaign.many.ended(job, "finished", drawn + loss)
        )
        lines[-1]["device"] = "a card"
    (campaign.KEPT / campaign.RESULTS).write_text("".join(json.dumps(line) + "\n" for line in lines))


def run(campaign: Any, what: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", ["whole_recipe.py", what])
    return int(campaign.main())


def test_neighbours_are_called_by_what_they_are(campaign: Any) -> None:
    content = campaign.recipe("kjv", 20)
    recipe, jobs = Run.from_dict(content["run"]), campaign.jobs("kjv", 20)
    runs = {job["name"].split(" ", 3)[3]: Run.from_dict(job["run"]) for job in jobs}
    assert {name for name in runs if name.startswith("batch")} == {
        f"batch {factor}, rate {rate}" for factor in ("1/3", "2") for rate in ("1/√2", "1", "√2")
    }
    small = runs["batch 1/3, rate 1"]
    assert (recipe.batch, small.batch, small.tokens) == (192, 64, recipe.tokens)
    assert math.isclose(small.optimizer.lr, recipe.optimizer.lr / math.sqrt(3))
    assert math.isclose(
        math.log(small.optimizer.beta2) / small.batch, math.log(recipe.optimizer.beta2) / recipe.batch
    )
    drawn = {run.batch for name, run in runs.items() if name.startswith("search")}
    assert drawn <= set(content["batches"])
    assert min(content["batches"]) == recipe.batch
    assert len(jobs) == len({job["name"] for job in jobs}) == 2 * 36
    sizes = [job["run"]["batch"] for job in jobs]
    assert sizes == sorted(sizes)


def test_the_best_recipe_holds_and_a_worse_one_does_not(
    campaign: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results(campaign, 0.001, recipe=-0.01)
    assert run(campaign, "page", monkeypatch) == 0
    page = campaign.RESULT.read_text()
    assert "| regret of compute, worst study: ≤ 15% | +0.0% | +0.0% to +0.0% |" in page
    assert "| kjv 20 | 2a26ca2 | 192 |" in page
    assert "runs on a card" in page
    results(campaign, 0.001, recipe=0.05)
    assert run(campaign, "page", monkeypatch) == 1
    assert capsys.readouterr().out.count("| NO |") == 3


def test_while_runs_are_missing_nothing_is_said_to_hold(
    campaign: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    results(campaign, 0.001, recipe=-0.01)
    file = campaign.KEPT / campaign.RESULTS
    file.write_text("".join(line for line in file.open() if "sympy 22 2000" not in line))
    assert run(campaign, "page", monkeypatch) == 1
    page = campaign.RESULT.read_text()
    assert "| yes |" not in page
    assert "Missing: sympy 22 (36 runs)." in page
    file.write_text("")
    with pytest.raises(SystemExit, match=r"no study has all of its runs yet"):
        run(campaign, "page", monkeypatch)


def test_runs_that_diverged_are_named_and_left_out_of_the_curve(
    campaign: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    results(campaign, 0.001, **{"recipe": -0.01, "rate 2": None, "search 0": None})
    assert run(campaign, "page", monkeypatch) == 0
    page = campaign.RESULT.read_text()
    assert "Diverged, kjv 20: rate 2, search 0." in page
    assert "nan" not in page
    results(campaign, 0.001, recipe=None)
    assert run(campaign, "page", monkeypatch) == 1
    assert "too few rates did not diverge" in campaign.RESULT.read_text()


def test_without_recipes_train_says_what_to_do(campaign: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in campaign.KEPT.glob("*.json"):
        file.unlink()
    with pytest.raises(SystemExit, match=r"run `whole_recipe\.py sweep` first"):
        run(campaign, "train", monkeypatch)


def test_of_equal_runs_the_intervals_hold_what_is_measured(campaign: Any) -> None:
    """The worst of six studies of equal runs, .3% noise: what the page says that it would be, nine times in ten."""
    rng, inside, seen = np.random.default_rng(0), 0, []
    content = campaign.recipe("kjv", 20)
    names = [job["name"].split(" ", 3)[3] for job in campaign.jobs("kjv", 20)[::2]]
    for _ in range(100):
        studies = [
            campaign.Studied(
                str(i), content, {name: tuple(1.3 + 0.004 * rng.standard_normal(2)) for name in names}
            )
            for i in range(6)
        ]
        worst = campaign.verdicts(studies)[1]
        low, high = worst.equal
        inside += low <= worst.measured <= high
        seen.append(high)
    assert 80 <= inside <= 98
    assert 0.08 < np.median(seen) < 0.16
