"""Which exponents do the quickstart's smallest proxies have: of the best rate, of decay, of beta2's half-life?

Sweeps search_spaces/transfer_exponents.py in one process, without Ray, into the study runs/exponents, where the same
command goes on; analysis/transfer_exponents.ipynb shows that study. Rows are copied to benchmarks/exponents.parquet,
from which benchmarks/exponents.md is written. Then the rates at every horizon once more, with the weight decay held in
place of its timescale: what the exponent over tokens is where both move.

    nice -n 5 python benchmarks/campaign/exponents.py [--report]
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import torch

from froude import laws
from froude.launch.sweep import open_study
from froude.laws.lr.exponents import KNOBS
from froude.space import Exponents, load_space
from froude.space.exponents import decay
from froude.store import Location
from froude.study import Study
from froude.sweep import agenda, trial_store
from froude.train.trial import run_trial

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))
from _machine import commit, cpu  # noqa: E402

SPACE = HERE.parent / "search_spaces" / "transfer_exponents.py"
STUDY = HERE.parent / "runs" / "exponents"
ROWS = HERE / "exponents.parquet"
FIXED = "fixed_decay"


def train() -> None:
    """Every trial of the space that the study does not have."""
    place, made = Location.parse(STUDY), commit("campaign/exponents.py", "../search_spaces")
    left = open_study(load_space(SPACE), place, trust=False, fresh=False)
    began, spent = time.monotonic(), 0.0
    while (trial := left.next()) is not None:
        outcome = run_trial(trial.runs, trial=trial.name)
        trial_store.write(place, trial, trials=outcome.trials, steps=outcome.steps, evals=outcome.evals)
        left.finish(trial_store.read(place, trial.name, trial))
        spent += agenda.cost(trial)
        minutes = (time.monotonic() - began) / 60
        more = sum(agenda.cost(each) for _, each in left.left())
        print(f"{trial.name}: {minutes:.1f} min, ~{minutes * more / spent:.0f} min left", flush=True)
        # Rows that an earlier call trained keep the commit that they were trained at.
        rows = Study(place).trials().collect().with_columns(commit=pl.lit(made))
        if ROWS.exists():
            before = pl.read_parquet(ROWS)
            rows = pl.concat([before, rows.join(before, on="run", how="anti")])
        rows.write_parquet(ROWS)


def train_at_fixed_decay() -> None:
    """The rates at each horizon with the decay of the base, under the stage's name FIXED."""
    space = load_space(SPACE)
    (stage,) = space.stages
    base, made = space.target, commit("campaign/exponents.py", "../search_spaces")
    assert isinstance(stage, Exponents)
    weight_decay = decay(
        lr=base.optimizer.lr, batch=base.batch, tokens=base.tokens, timescale=stage.timescale
    )
    for trial in stage.planned():
        (run,) = trial.runs
        rows = pl.read_parquet(ROWS)
        name = run.name.replace(stage.name, FIXED, 1)
        if run.batch != base.batch or "-t1-h1-" not in name or name in rows["run"]:
            continue
        run = run.replace({"optimizer.weight_decay": weight_decay}, name=name, stage=FIXED)
        (row,) = run_trial([run], trial=name).trials
        new = pl.DataFrame([{**row, "commit": made}], schema_overrides=rows.schema)
        pl.concat(
            [
                rows,
                new.select(pl.col(c) if c in new.columns else pl.lit(None).alias(c) for c in rows.columns),
            ],
            how="vertical_relaxed",
        ).write_parquet(ROWS)
        print(name, flush=True)


def interval(value: float, low: float, high: float) -> str:
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]" if math.isfinite(high - low) else "–"


def page(rows: pl.DataFrame) -> str:
    fixed, rows = rows.filter(pl.col("stage") == FIXED), rows.filter(pl.col("stage") != FIXED)
    found, base = laws.exponents(rows), load_space(SPACE).target
    minutes = (rows["seconds"].sum() + fixed["seconds"].sum()) / 60
    lines = [
        "# Which exponents do the smallest proxies have?",
        "",
        f"`python benchmarks/campaign/exponents.py`, {rows.height + fixed.height} runs trained at commits "
        f"{', '.join(rows['commit'].unique(maintain_order=True))} (each row names its own), on one of {cpu()}, "
        f"which others used too: {minutes:.0f} minutes in all; written {datetime.now(UTC):%Y-%m-%d}. The "
        f"package's own model, width {base.model.width}, depth {base.model.depth}, {rows['params'][0]:,} parameters "
        f"without embeddings, AdamW; bytes of the King James Bible, contexts of {base.model.context}; WSD with a "
        f"warmup of a tenth; seeds {', '.join(map(str, sorted(rows['seed'].unique())))}. What is not moved stays: the "
        "decay timescale batch / (rate · decay · tokens) at 0.4 of the run, the half-life of beta2 at that of 0.95 at "
        "the base.",
        "",
        "Each optimum is that of a cubic in ln of the setting (a quadratic where fewer than five values lie near), the "
        "exponent their weighted regression. Intervals are at 90%, for exponents of the runs alone (measured) and with "
        "the prior (posterior), for optima at 95%.",
        "",
        "| exponent | measured | values | status | posterior | rests on | published |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, law in found.knobs.items():
        m, p = law.measured, law.posterior
        others = ", ".join(f"{each.value:+.2f} {each.name}" for each in law.published)
        lines.append(
            f"| {KNOBS[name].words} | {interval(m.value, m.low, m.high)} | {law.sizes} | {law.status} | "
            f"{interval(p.value, p.low, p.high)} | {law.source} | {others} |"
        )
    confounded = laws.exponent(fixed, held=("batch", "weight_decay", "beta2"))
    m, decays = confounded.measured, fixed["weight_decay"].unique()
    lines += [
        "",
        f"With the weight decay held at {decays[0]:.3g} instead, {fixed.height} runs, the same rates, horizons and "
        f"seeds give for the rate over tokens {interval(m.value, m.low, m.high)} ({confounded.status}); "
        f"optima {', '.join(f'{lr:.3g}' for lr in confounded.levels.sort('tokens')['lr'])}.",
    ]
    first = laws.exponents(rows.filter(pl.col("seed") < 2))
    early = [first[name].measured for name in ("lr_tokens", "lr_batch")]
    lines += [
        "",
        "Seeds 0 and 1 came first, and gave for the rate over tokens and over batch "
        f"{' and '.join(interval(each.value, each.low, each.high) for each in early)}. Seeds 2 and 3 were added since "
        "these had not placed decay and beta2; nor do four.",
    ]
    lines += ["", "| best | over | at | optimum | 95% | loss | status |", "|---|---|---|---|---|---|---|"]
    for law in found.knobs.values():
        for row in law.levels.sort(law.over).iter_rows(named=True):
            ends = f"{row['low']:.3g} to {row['high']:.3g}" if math.isfinite(row["high"]) else "–"
            lines.append(
                f"| {law.setting} | {law.over} | {row[law.over]:,.0f} | {row[law.setting]:.3g} | {ends} | "
                f"{row['loss']:.3f} | {row['status']} |"
            )
    return "\n".join(
        [
            *lines,
            "",
            "What it does not show: any other size, width, optimizer or corpus; horizons beyond a factor of 9 and "
            "batches beyond a factor of 4, at 1 to 8 tokens per parameter; where a status is not ok, anything at all.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--report", action="store_true", help="train nothing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if not given.report:
        train()
        train_at_fixed_decay()
    (HERE / "exponents.md").write_text(page(pl.read_parquet(ROWS)))


if __name__ == "__main__":
    main()
