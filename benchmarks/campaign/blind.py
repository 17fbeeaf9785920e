"""What alarms and diagnosis make of the faults of `blind_faults` and `blind_models`, written before they were read.

The target is that of alarms.py, forecast from a finished study's laws: trained clean with 20 seeds, and with each fault
on the first of the same seeds, so that the effect on its last loss is a difference of pairs. The faults over widths
are trained and diagnosed as diagnosis.py does, and so are clean models. What is done is kept: the same command goes on
where it was stopped. Writes benchmarks/blind_faults.md.

    python benchmarks/campaign/blind.py --study runs/quickstart [--clean 20] [--seeds 3] [--out runs/blind_faults]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import torch

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "data")]

from _blind_page import page  # noqa: E402
from _machine import hardware  # noqa: E402
from alarms import target  # noqa: E402
from blind_faults import RUN_FAULTS, Patient, RunFault  # noqa: E402
from blind_models import MODEL_FAULTS, planted_groups  # noqa: E402
from diagnosis import RATES  # noqa: E402
from planted import TIED, WIDTHS, growing, runs  # noqa: E402

from froude import Study, laws  # noqa: E402
from froude.config import Run  # noqa: E402
from froude.promote.diagnosis.diagnose import diagnose  # noqa: E402
from froude.promote.forecast import Forecast  # noqa: E402
from froude.promote.monitor import alarms  # noqa: E402
from froude.train import optimizers  # noqa: E402
from froude.train.trial import run_trial  # noqa: E402

GRID_STEPS = 100  # of each run of a diagnosed grid, as in diagnosis.py
CLEAN_MODELS = {
    "μP": runs(),
    "SP": runs(parametrization="sp"),
    "μP, tied": runs(**TIED),
    "μP, QK-norm": runs(**{"model.qk_norm": True}),
    "μP, growing heads": growing(),
    "μP, four blocks": runs(**{"model.depth": 4}),
}


def train(run: Run, fault: RunFault | None, file: Path) -> pl.DataFrame:
    """`tokens`, `loss` and `lr` of every step, and `end`, the loss that an evaluation then gives; kept in the file."""
    if not file.exists():
        trainer, rows = Patient(run, fault), []
        for step in range(run.steps):
            result = trainer.step(run, step)
            rows.append(((step + 1) * run.batch, result.loss, result.lr))
        steps = pl.DataFrame(rows, schema=["tokens", "loss", "lr"], orient="row")
        steps.with_columns(end=pl.lit(trainer.evaluate())).write_parquet(file)
    return pl.read_parquet(file)


def watch(run: Run, forecast: Forecast, fault: RunFault | None, steps: pl.DataFrame) -> dict[str, Any]:
    """The alarms after the fault began, and when the first came, in shares of the run's tokens."""
    began = fault.start * run.tokens if fault else 0.0
    found = alarms(forecast, run, steps)
    after = [alarm for alarm in found if alarm.tokens > began]
    return {
        "kinds": [alarm.kind for alarm in after],
        "side": ("above" if after[0].seen > after[0].expected else "below") if after else "",
        "delay": (after[0].tokens - began) / run.tokens if after else None,
        "early": len(found) - len(after),
        "end": float(steps["end"][0]),
    }


def grid(name: str, cases: list[Run]) -> dict[str, Any]:
    """Train runs at each rate, diagnose them, and say what was named and how well the widest one did."""
    rows, trained = [], []
    with mock.patch.object(optimizers, "parameter_groups", planted_groups):
        for run in cases:
            shift = run.model.width / WIDTHS[0] if run.parametrization == "sp" else 1.0
            for rate in RATES:
                changes = {"optimizer.lr": rate / shift, "tokens": run.batch * GRID_STEPS}
                changes["schedule.warmup_tokens"] = run.batch * GRID_STEPS // 10
                trained.append(run.replace(changes))
                rows += run_trial([trained[-1]], trial="t").trials
        frame = pl.DataFrame(rows)
        found = diagnose(trained, frame)
    slope = laws.lr_transfer(frame).slope
    placed = math.isfinite(slope.value)
    return {
        "name": name,
        "code": [[cause.name, cause.where, cause.measured, cause.expected] for cause in found.code],
        "runs": [cause.name for cause in found.runs],
        "slope": f"{slope.value:+.2f} [{slope.low:+.2f}, {slope.high:+.2f}]" if placed else "none",
        "best": frame.filter((pl.col("width") == WIDTHS[-1]) & (pl.col("status") == "finished"))[
            "loss"
        ].min(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--study", default="runs/quickstart")
    parser.add_argument("--clean", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/blind_faults"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    machine = hardware()
    args.out.mkdir(parents=True, exist_ok=True)
    run, forecast = target(Study(args.study))
    if not forecast.band:
        raise SystemExit("the study's proxies determine no curve: there is no band to leave")

    def outcome(seed: int, fault: RunFault | None, name: str) -> dict[str, Any]:
        steps = train(run.replace(seed=seed), fault, args.out / f"{name}-{seed:02d}.parquet")
        found = watch(run, forecast, fault, steps)
        print(fault.name if fault else "clean", seed, found, flush=True)
        return found

    clean = [outcome(seed, None, "clean") for seed in range(args.clean)]
    outcomes = {
        f.name: [outcome(seed, f, f"fault{i:02d}") for seed in range(args.seeds)]
        for i, f in enumerate(RUN_FAULTS)
    }
    cases: dict[str, list[Run]] = {f.key: [f.of(each) for each in runs()] for f in MODEL_FAULTS}
    for seed in range(2):
        for name, made in CLEAN_MODELS.items():
            key = f"clean: {name}" + (f", seed {seed}" if seed else "")
            cases[key] = [each.replace(seed=seed) for each in made]
    grids = {}
    for key, each in cases.items():
        file = args.out / f"grid-{key}.json"
        if not file.exists():
            file.write_text(json.dumps(grid(key, each)))
        grids[key] = json.loads(file.read_text())
        print(grids[key], flush=True)
    text = page(run, forecast, clean, outcomes, grids, machine)
    (HERE / "blind_faults.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
