"""The verdicts of the campaign whole_recipe on losses that are known, and the script from kept recipes to its page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from froude.config import Run

RECIPE = Run(
    name="large",
    stage="target",
    model={"width": 160, "base_width": 64},
    optimizer={"lr": 0.002, "beta2": 0.98, "weight_decay": 0.1},
    schedule={"name": "wsd", "warmup_tokens": 76800},
    parametrization="mup",
    batch=192,
    tokens=768000,
)


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
    content = {
        "run": RECIPE.to_dict(),
        "set": RECIPE.replace({"batch": 768}, name="large").to_dict(),
        "nats_per_efold": 0.11,
        "proxies_over_target": 3.3,
        "batches": [64, 128, 192, 384, 768],
        "commit": "2a26ca2",
    }
    for corpus, seed in whole_recipe.STUDIES:
        (tmp_path / "kept" / f"{corpus}-s{seed}.json").write_text(json.dumps(content))
    return whole_recipe


def results(
    campaign: Any, noise: float, *, about: str = "", **changes: float | tuple[float, ...] | None
) -> None:
    """End every run at 1.3 nats and the noise of a seed; `changes` by run's name, None for one that diverged.

    Several are of the seeds one after another.
    """
    rng, lines = np.random.default_rng(0), []
    rules = {"rules": about or campaign.rules(), "commit": "abcdef0"}

    def end(jobs: list[dict[str, Any]]) -> None:
        for job in jobs:
            _, _, fresh, name = job["name"].split(" ", 3)
            change, drawn = changes.get(name, 0.0), 1.3 + noise * rng.standard_normal()
            if isinstance(change, tuple):
                change = change[(campaign.CHOSEN, *campaign.SCORED).index(int(fresh))]
            how = ("diverged",) if change is None else ("finished", drawn + change)
            lines.append(campaign.many.ended(job, *how) | {"device": "a card"} | rules)

    for study in campaign.STUDIES:
        first = campaign.choosing(*study)
        end(first)
        end(campaign.scoring(*study, campaign.losses_of(first, lines)))
    (campaign.KEPT / campaign.RESULTS).write_text("".join(json.dumps(line) + "\n" for line in lines))


def run(campaign: Any, what: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", ["whole_recipe.py", what])
    return int(campaign.main())


def test_neighbours_are_called_by_what_they_are(campaign: Any) -> None:
    runs = campaign.runs("kjv", 20)
    assert {name for name in runs if name.startswith("batch")} == {
        f"batch {factor}, rate {rate}" for factor in ("1/3", "2") for rate in ("1/√2", "1", "√2")
    }
    small = runs["batch 1/3, rate 1"]
    assert (small.batch, small.tokens) == (64, RECIPE.tokens)
    assert math.isclose(small.optimizer.lr, RECIPE.optimizer.lr / math.sqrt(3), rel_tol=1e-5)
    lives = [math.log(each.optimizer.beta2) / each.batch for each in (small, RECIPE)]
    assert math.isclose(*lives, rel_tol=1e-4)
    timescales = [each.optimizer.lr * each.optimizer.weight_decay / each.batch for each in (small, RECIPE)]
    assert math.isclose(*timescales, rel_tol=1e-5)
    jobs = campaign.choosing("kjv", 20)
    assert len(jobs) == len(runs) == 36
    sizes = [job["run"]["batch"] for job in jobs]
    assert sizes == sorted(sizes)


def test_no_batch_is_smaller_than_a_window(campaign: Any) -> None:
    found = campaign.neighbours(RECIPE.replace({"batch": 64}, name="large"))
    assert {name.partition(",")[0] for name in found if name.startswith("batch")} == {"batch 2"}


def test_each_study_searches_settings_of_its_own(campaign: Any) -> None:
    """At batches on offer, the rate by the root of the batch, beta2 by its half-life."""
    target = RECIPE.replace({"batch": 768}, name="large")
    one, other = (campaign.drawn(target, [64, 768], [20, corpus]) for corpus in (0, 1))
    assert {run.batch for run in one.values()} == {64, 768}
    assert [run.optimizer.lr for run in one.values()] != [run.optimizer.lr for run in other.values()]
    for run in one.values():
        ratio = run.batch / 768
        assert 2**-10 <= run.optimizer.lr / math.sqrt(ratio) <= 2**-5
        assert 0.9 <= run.optimizer.beta2 ** (1 / ratio) <= 0.991


def test_what_was_chosen_is_scored_on_fresh_seeds(campaign: Any) -> None:
    first = dict.fromkeys(campaign.runs("kjv", 20), 1.3)
    named = [job["name"] for job in campaign.scoring("kjv", 20, first)]
    assert (
        len(named) == len(set(named)) == 22
    )  # five rates, what was set, sixteen draws: the recipe is as good as any
    named = [job["name"] for job in campaign.scoring("kjv", 20, first | {"tail 2": 1.28, "decay 1/2": 1.29})]
    assert len(named) == 22 + 2 + 4
    assert {"kjv 20 4000 tail 2", "kjv 20 4000 recipe", "kjv 20 2000 decay 1/2"} <= set(named)
    assert "kjv 20 3000 decay 1/2" not in named


def test_the_best_recipe_holds_and_a_worse_one_does_not(
    campaign: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results(campaign, 0.001, recipe=-0.01)
    assert run(campaign, "page", monkeypatch) == 0
    page = campaign.RESULT.read_text()
    assert "| regret of compute, worst study: ≤ 15% | +0.0% | +0.0% to +0.0% |" in page
    assert "| kjv 20 | 2a26ca2 | 192 |" in page
    assert "runs on a card" in page
    assert "have not changed since" in page
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
    assert "Missing: sympy 22 (22 runs)." in page
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
    results(campaign, 0.001, recipe=(-0.01, None, -0.01, -0.01))
    assert run(campaign, "page", monkeypatch) == 1
    page = campaign.RESULT.read_text()
    assert "too few rates did not diverge" in page
    assert "| regret of compute, worst study: ≤ 15% | +inf% |" in page


def test_without_recipes_train_says_what_to_do(campaign: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in campaign.KEPT.glob("*.json"):
        file.unlink()
    with pytest.raises(SystemExit, match=r"run `whole_recipe\.py sweep` first"):
        run(campaign, "train", monkeypatch)


def test_rules_that_changed_are_named(campaign: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    results(campaign, 0.001, about="0123456789ab", recipe=-0.01)
    run(campaign, "page", monkeypatch)
    assert (
        f"0123456789ab at abcdef0, **have changed since**: {campaign.rules()}." in campaign.RESULT.read_text()
    )


@pytest.mark.usefixtures("campaign")
def test_a_search_is_scored_over_all_subsets_of_its_draws() -> None:
    """As drawing subsets says; a draw that diverged where it is scored counts as a guess."""
    from _recipe_noise import GUESSED, searched

    rng = np.random.default_rng(1)
    own = {f"search {i}": tuple(1.3 + 0.1 * rng.standard_normal(2)) for i in range(16)}
    own |= {"recipe": (1.3, 1.25), "search 3": (1.2, math.inf)}
    table = np.array([own[f"search {i}"] for i in range(16)])
    subsets = np.array([rng.permutation(16)[:4] for _ in range(20_000)])
    best = subsets[np.arange(20_000), table[subsets, 0].argmin(axis=1)]
    expected = np.minimum(table[best, 1], GUESSED).mean()
    assert searched(own, 4, 0.01).nats == pytest.approx(1.25 - expected, abs=0.02)
    assert searched(own, 16, 0.01).nats == pytest.approx(1.25 - min(table[table[:, 0].argmin(), 1], GUESSED))


@pytest.mark.usefixtures("campaign")
@pytest.mark.parametrize("off", [0.0, 0.14, 0.32])
def test_the_cubics_interval_covers_what_the_rate_costs(off: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parabolas of curvature .1 with the optimum so many e-folds away, .3% noise: in 85 to 99.5% of 200."""
    import _recipe_noise
    from _recipe_noise import FACTORS, bottom

    monkeypatch.setattr(_recipe_noise, "DRAWS", 400)
    rng, inside = np.random.default_rng(2), 0
    for i in range(200):
        own = {
            name: tuple(1.3 + 0.05 * (math.log(by) - off) ** 2 + 0.004 * rng.standard_normal(2))
            for name, by in FACTORS.items()
        }
        found = bottom(own, i)
        assert found is not None
        inside += found.low <= 0.05 * off**2 <= found.high
    assert 170 <= inside <= 199


def test_of_equal_runs_the_intervals_hold_what_is_measured(campaign: Any) -> None:
    """The worst of six studies of equal runs, .3% noise: what the page says that it would be, nine times in ten."""
    rng, inside, seen = np.random.default_rng(0), 0, []
    content, names = campaign.recipe("kjv", 20), list(campaign.runs("kjv", 20))
    for _ in range(100):
        losses = [{name: tuple(1.3 + 0.004 * rng.standard_normal(4)) for name in names} for _ in range(6)]
        sd = campaign.noise(losses)
        studies = [campaign.Studied(str(i), content, own, sd) for i, own in enumerate(losses)]
        worst = campaign.verdicts(studies)[1]
        low, high = worst.equal
        inside += low <= worst.measured <= high
        seen.append(high)
    assert 80 <= inside <= 98
    assert 0.05 < np.median(seen) < 0.1  # the means of three seeds
