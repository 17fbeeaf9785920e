"""A question to a study of 10,000 runs: froude's Parquet parts and Polars against TensorBoard's event files.

Both sides hold the same steps (loss, learning rate, gradient norm) of the same runs, one file a run, written by each
side's own writer. The question: the mean loss over the last tenth of the steps, for each peak learning rate. Both read
in one process, the first round of ours from a cold file cache; TensorBoard's reader is `EventAccumulator`, keeping
every scalar. As it takes minutes, it reads a sample of the runs, chosen by the seed, in each round; its time is scaled
to all of them, and both answers are compared on the sample. Writes benchmarks/metrics_query.md.

    pip install tensorboard
    python benchmarks/metrics_query.py [--runs 10000] [--sample 500] [--steps 100] [--rounds 3] [--seed 0]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
from _machine import commit, hardware
from tensorboardX import SummaryWriter

from froude.config import Run
from froude.space import Trial
from froude.store import Location
from froude.study import Study
from froude.sweep import trial_store
from froude.train.rows import describe

RESULT = Path(__file__).with_suffix(".md")
RATES = 2.0 ** np.arange(-12, -4)
GOAL = 20.0


def write_both(folder: Path, runs: int, steps: int, seed: int) -> None:
    """The same runs as a study and as a folder of event files."""
    rng = np.random.default_rng(seed)
    study, now = Location.parse(folder / "study"), datetime.now(UTC)
    base = Run(name="proxy", tokens=768 * steps, batch=768, slots=12)
    for i in range(runs):
        peak = float(RATES[i % len(RATES)])
        run = base.replace({"optimizer.lr": peak, "seed": i}, name=f"run-{i:05d}")
        loss = (
            2 + np.log(peak / 2**-8) ** 2 / 50 + 3 / np.sqrt(1 + np.arange(steps)) + 0.05 * rng.random(steps)
        )
        lr, norm = np.linspace(peak, 0, steps), rng.random(steps)
        rows = [
            {"run": run.name, "attempt": 1, "step": s + 1, "tokens": 768 * (s + 1), "loss": float(loss[s]),
             "lr": float(lr[s]), "grad_norm": float(norm[s]), "world": 1, "time": now}
            for s in range(steps)
        ]  # fmt: skip
        told = {"status": "finished", "loss": float(loss[-1]), "attempts": 1, "trial": run.name, "workers": 1}
        trial_store.write(
            study, Trial(run.name, (run,)), trials=[{**describe(run), **told, "time": now}], steps=rows
        )
        with SummaryWriter(str(folder / "events" / run.name)) as writer:
            for row in rows:
                for tag in ("loss", "lr", "grad_norm"):
                    writer.add_scalar(tag, row[tag], row["step"])


def ask_froude(folder: Path, steps: int, runs: Sequence[str] | None = None) -> dict[float, float]:
    """Mean loss at the end, for each peak rate, as one query."""
    study = Study(folder / "study")
    last = study.steps().filter(pl.col("step") > 0.9 * steps).select("run", "loss")
    if runs is not None:
        last = last.filter(pl.col("run").is_in(list(runs)))
    found = (
        last.join(study.trials().select("run", peak="lr"), on="run")
        .group_by("peak")
        .agg(pl.col("loss").mean())
    )
    return dict(found.collect().iter_rows())


def ask_tensorboard(folder: Path, steps: int, runs: Sequence[str]) -> dict[float, float]:
    """The same from the event files of these runs; a run's peak rate is its largest."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    losses: dict[float, list[float]] = defaultdict(list)
    for run in runs:
        events = EventAccumulator(str(folder / "events" / run), size_guidance={"scalars": 0}).Reload()
        peak = max(event.value for event in events.Scalars("lr"))
        losses[peak] += [event.value for event in events.Scalars("loss") if event.step > 0.9 * steps]
    return {peak: statistics.fmean(values) for peak, values in losses.items()}


def agree(ours: dict[float, float], theirs: dict[float, float]) -> bool:
    """Whether the answers are the same to single precision, which is what event files hold."""
    a, b = (np.array(sorted(answer.items())) for answer in (ours, theirs))
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-5))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("runs", 10_000), ("sample", 500), ("steps", 100), ("rounds", 3), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    machine, revision = hardware(), commit(Path(__file__).name)
    rng, rows, ratios = np.random.default_rng(args.seed), [], []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        print(f"writing {args.runs} runs of {args.steps} steps twice", flush=True)
        write_both(folder, args.runs, args.steps, args.seed)
        names = [f"run-{i:05d}" for i in range(args.runs)]
        for number in range(1, args.rounds + 1):
            sample = [names[i] for i in rng.choice(args.runs, min(args.sample, args.runs), replace=False)]
            began = time.perf_counter()
            ask_froude(folder, args.steps)
            ours = time.perf_counter() - began
            began = time.perf_counter()
            theirs = ask_tensorboard(folder, args.steps, sample)
            scaled = (time.perf_counter() - began) * args.runs / len(sample)
            if not agree(ask_froude(folder, args.steps, sample), theirs):
                raise SystemExit("the two answers differ")
            ratios.append(scaled / ours)
            rows.append(f"| {number} | {ours:.2f} | {scaled:.0f} | {ratios[-1]:.0f} |")
            print(rows[-1], flush=True)
    ratio = statistics.median(ratios)
    goal = f"The goal of {GOAL:.0f}× is {'met' if ratio >= GOAL else 'missed'}."
    n = len(sample)
    text = f"""# A question to {args.runs:,} runs

Mean loss over the last tenth of the steps for each peak learning rate, over {args.runs:,} runs of {args.steps} steps
with three numbers a step: one Polars query over a study's Parquet parts against TensorBoard's EventAccumulator over
event files of the same numbers. TensorBoard read {n} runs a round, its time is scaled to all; the answers agree.

TensorBoard's reader is not made for this; a tracker with a database may be much nearer.

| round | froude, s | TensorBoard, s | ratio |
|---|---|---|---|
{chr(10).join(rows)}

Median {ratio:.0f}×, from {min(ratios):.0f} to {max(ratios):.0f}. {goal}

{machine}; commit {revision}; seed {args.seed}; {datetime.now(UTC):%Y-%m-%d}.
"""
    RESULT.write_text(text)
    print(text)
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main())
