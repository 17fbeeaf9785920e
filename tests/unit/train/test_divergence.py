"""When a run is diverged, by its losses alone and as trials tell it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from froude.config import Run
from froude.train import rows
from froude.train.stability.divergence import LEAST, MARGIN, MOST, tolerance, why_diverged
from froude.train.trial import run_trial

#: Logits with a standard deviation of several nats: it begins far above a uniform guess, as many models of users do.
COLD = Run(
    name="cold",
    tokens=192 * 20,
    batch=192,
    slots=12,
    eval_windows=32,
    model={"width": 16, "depth": 1, "context": 16, "readout_sd": 0.25},
    optimizer={"lr": 1e-3},
)

losses = st.lists(st.floats(0.1, 30.0), min_size=1, max_size=40)


def falling(first: float, last: float, steps: int = 200) -> list[float]:
    return np.linspace(first, last, steps).tolist()


def test_a_run_that_ends_above_a_uniform_guess_but_improves_is_finished() -> None:
    """GPT-2 at a low rate with a short warmup: ln 1024 is 6.93."""
    assert not why_diverged(falling(12.2, 7.2), 7.054, vocab=1024)
    assert "above a uniform guess (6.931)" in why_diverged(falling(12.2, 5.0), 7.054, vocab=1024)
    assert "above a uniform guess" in why_diverged(falling(12.2, 7.0), 7.4, vocab=1024, validation=[6.8])


@pytest.mark.parametrize(
    ("training", "final", "words"),
    [
        ([5.5, 5.4, math.nan], math.nan, "not finite at step 3"),
        ([5.5, 5.4, math.inf], 5.0, "not finite at step 3"),
        ([5.5, 5.4, 5.3, 5.2], math.inf, "not finite at step 4"),
        ([], math.nan, "not finite at step 0"),
        ([5.545] * 50, 5.6, "more than 0.01 nats above its start (5.545)"),
        (
            [5.545, 263.0, 25e3, 3e6, *[5.545] * 9],
            5.545,
            "not below its start (5.545), after it had risen to 1.008e+06",
        ),
        ([5.545, 263.0, 25e3, 3e6, *[5.545] * 9], 5.2, ""),  # a run that recovered
        ([3.0] * 50, 3.2, "above its start"),  # of a model that knew something, and is below a uniform guess
        (
            [*falling(5.5, 3.0), *falling(3.0, 5.4)],
            5.4,
            "",
        ),  # it came back to below its start: bad, yet a number
    ],
)
def test_each_kind_of_end(training: list[float], final: float, words: str) -> None:
    said = why_diverged(training, final, vocab=256)
    assert words in said
    assert bool(words) == bool(said)


@given(losses, st.floats(0.1, 30.0), st.floats(0.1, 30.0), st.integers(2, 10**6))
def test_a_worse_end_is_never_better(training: list[float], one: float, other: float, vocab: int) -> None:
    low, high = sorted((one, other))
    if why_diverged(training, low, vocab=vocab):
        assert why_diverged(training, high, vocab=vocab)


@given(losses, st.floats(0.1, 30.0), st.integers(2, 10**6))
def test_what_ends_below_its_start_and_near_its_least_is_finished(
    training: list[float], final: float, vocab: int
) -> None:
    assume(final <= training[0] - LEAST)
    assume(final <= max(math.log(vocab), min(training) + MARGIN))
    assert not why_diverged(training, final, vocab=vocab)


@given(losses)
def test_the_allowance_for_noise_is_bounded(training: list[float]) -> None:
    assert LEAST <= tolerance(training) <= max(LEAST, MOST * training[0])
    assert tolerance([training[0] - 0.1 * step for step in range(20)]) <= max(LEAST, 1e-9)


@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_noise_between_batches_is_no_divergence(noise: float) -> None:
    """A rate so low that nothing moves: the end is the start, but for the batch that the start was measured on."""
    chance = np.random.default_rng(0)
    for _ in range(200):
        training = (12.2 + noise * chance.standard_normal(100)).tolist()
        assert not why_diverged(training, 12.2, vocab=1024)


def test_a_trial_that_improves_slowly_is_finished_and_one_that_never_moves_too() -> None:
    (row,) = run_trial([COLD], trial="t").trials
    assert row["loss"] > math.log(COLD.model.vocab)
    assert (row["status"], row["reason"], row["last_loss"]) == ("finished", None, row["loss"])
    for seed in range(3):
        (still,) = run_trial([COLD.replace({"optimizer.lr": 1e-9, "seed": seed})], trial="t").trials
        assert still["status"] == "finished"
        assert still["loss"] > 7


def test_a_diverged_trial_keeps_its_last_loss_and_says_why() -> None:
    warm = COLD.replace({"model.readout_sd": 0.0, "optimizer.clip": 1e6})
    outcome = run_trial([warm.replace({"optimizer.lr": 10.0})], trial="t")
    (row,) = outcome.trials
    assert (row["status"], row["loss"]) == ("diverged", None)
    assert row["last_loss"] == outcome.evals[-1]["loss"] > math.log(256)
    assert "above its start (5.545)" in row["reason"]

    outcome = run_trial([warm.replace({"optimizer.lr": 1e30})], trial="t")
    (row,) = outcome.trials
    assert (row["status"], row["loss"], outcome.evals) == ("diverged", None, [])
    finite = [step["loss"] for step in outcome.steps if math.isfinite(step["loss"])]
    assert row["last_loss"] == finite[-1]
    assert row["reason"] == f"the loss or its gradient was not finite at step {len(outcome.steps)}"


def test_the_start_of_a_branch_is_its_trunks(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[list[float]] = []

    def watched(training: list[float], final: float, **more: Any) -> str:
        judged.append(training)
        return why_diverged(training, final, **more)

    monkeypatch.setattr(rows, "why_diverged", watched)
    runs = [COLD.replace(name=f"n{n}", tokens=192 * n) for n in (10, 20)]
    run_trial(runs, trial="trunk")
    assert [len(training) for training in judged] == [10, 20]
    assert judged[0][:8] == judged[1][:8]


def test_rows_name_model_and_corpus_and_steps_their_seconds_and_workers(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_bytes(b"In the beginning " * 6000)
    run = COLD.replace({"data": {"source": "froude.train.data.text:TextFile", "path": str(file)}})
    outcome = run_trial([run], trial="t")
    assert outcome.trials[0]["model"] == "froude.train.model:Transformer"
    assert (
        outcome.trials[0]["corpus"]
        == f"froude.train.data.text:TextFile mine.txt sha256:{run.data.sha256[:12]}"
    )
    assert {row["workers"] for row in outcome.steps} == {1}
    assert all(row["tokens_per_second"] == pytest.approx(run.batch / row["seconds"]) for row in outcome.steps)
