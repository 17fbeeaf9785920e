"""Calibration of the loss law's intervals: do nominal 90% ones hold the losses of larger runs?

Synthetic worlds that the law does not quite describe (noise with heavy tails, exponents that drift, mistuned learning
rates, one bad size) and published runs, split by compute. Beside the calibrated interval stand a bootstrap with the
residuals' noise, and the residuals' noise alone. Writes benchmarks/calibration.md. What is done is kept in --out, and a
second call goes on from there.

    FROUDE_REFERENCE_DATA=… python benchmarks/campaign/calibration.py [--worlds 62] [--workers 2] [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import scipy
from _calibration_report import INTERVALS, tables
from _worlds import KINDS, Study, published, world
from scipy import stats

from froude import laws
from froude.laws.loss import calibration as loss_calibration
from froude.laws.loss import law as loss

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))
from _machine import commit, cpu  # noqa: E402

RESULT = HERE / "calibration.md"
LEVEL = 0.9
FIRST = 2000  # seeds below were used to choose how the interval is made
#: Smaller than those of the package, for time's sake.
REPLICATES, SPLIT_REPLICATES = 80, 40
DEFAULTS = loss.REPLICATES, loss_calibration.SPLIT_REPLICATES


def predict(study: Study) -> list[dict[str, Any]]:
    """Fit a study and predict each of its held-out runs, by each kind of interval."""
    loss.REPLICATES, loss_calibration.SPLIT_REPLICATES = REPLICATES, SPLIT_REPLICATES
    law = laws.loss_law(study.fitted, groups=study.groups)
    known = {"study": study.name, "kind": study.kind, "rows": study.fitted.height, "status": law.status}
    if law.status == "too_few_points":
        return []
    rows = []
    for n, d, actual in study.held_out.select("params", "tokens", "loss").iter_rows():
        forecast = law.predict(params=n, tokens=d, level=LEVEL)
        rows.append(
            {
                **known,
                "reach": forecast.extrapolation["flops"],
                "certified": forecast.certified,
                "reasons": list(forecast.reasons),
                "error": forecast.loss / actual - 1,
                "calibrated": _score(forecast.low, forecast.high, actual),
                **_others(law, n, d, actual),
            }
        )
    return rows


def _others(law: laws.LossLaw, params: float, tokens: float, actual: float) -> dict[str, Any]:
    """What a plain bootstrap with the residuals' noise, and that noise around the law, make of one run."""
    error, problem = law._calibration.error, law._fit[0]
    n, d = np.log([params]) - problem.n_mean, np.log([tokens]) - problem.d_mean
    rng = np.random.default_rng(0)
    draws = np.repeat(loss_calibration.log_losses(error.replicates, n, d)[:, 0], 20)
    draws = draws + error.scatter * rng.standard_normal(draws.size)
    low, high = np.exp(np.quantile(draws, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2]))
    middle = float(loss_calibration.log_losses(error.theta[None, :], n, d)[0, 0])
    half = float(stats.norm.ppf(0.5 + LEVEL / 2)) * error.scatter
    ends = math.exp(middle - half), math.exp(middle + half)
    return {"bootstrap": _score(float(low), float(high), actual), "residual": _score(*ends, actual)}


def _score(low: float, high: float, actual: float) -> dict[str, Any]:
    return {"inside": low <= actual <= high, "half_width": (high - low) / 2 / actual}


def run(studies: list[Study], workers: int, kept: Path) -> pl.DataFrame:
    """Predict all studies, those already in the file `kept` excepted, and return every prediction."""
    done = {}
    if kept.exists():
        done = {entry["study"]: entry["rows"] for entry in map(json.loads, kept.read_text().splitlines())}
    left = [study for study in studies if study.name not in done]
    print(f"{len(studies)} studies, {len(studies) - len(left)} of them done before", flush=True)
    began = time.perf_counter()
    os.environ["OMP_NUM_THREADS"] = "1"  # of a worker: its systems are 5 × 5
    # A forked worker would wait for ever for a lock of the parent's polars.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn) as pool, kept.open("a") as file:
        futures = {pool.submit(predict, study): study.name for study in left}
        for number, future in enumerate(as_completed(futures), 1):
            name = futures[future]
            done[name] = future.result()
            file.write(json.dumps({"study": name, "rows": done[name]}) + "\n")
            file.flush()
            if number % 20 == 0 or number == len(left):
                seconds = time.perf_counter() - began
                print(
                    f"{number} of {len(left)}, {seconds:.0f} s, ~{seconds / number * (len(left) - number):.0f} s left"
                )
    rows = [row for study in studies for row in done[study.name]]
    frame = pl.from_dicts(rows, infer_schema_length=None)
    for name in INTERVALS:
        frame = frame.with_columns(
            pl.col(name).struct.field("inside").alias(name),
            pl.col(name).struct.field("half_width").alias(f"{name}_width"),
        )
    return frame


def report(predictions: pl.DataFrame) -> tuple[str, bool]:
    """The whole report as Markdown, and whether the acceptance holds."""
    body, good = tables(predictions)
    text = f"""# Calibration of the loss law's intervals

`python benchmarks/campaign/calibration.py`: do nominal {LEVEL:.0%} intervals hold the losses of runs larger than those
fitted, by up to 100 times in compute? A certified interval is one that `LossLaw.predict` vouches for; the others stand
beside. Half-widths and errors are medians over certified predictions, relative to the actual loss. "bootstrap":
quantiles of the bootstrap's predictions with the residuals' noise. "residual": the law ± that noise. The worlds are in
`_worlds.py`, seeds {FIRST} and up.

What was seen before: the interval was designed on seeds 0 to 17, and on Chinchilla and Gemstones below. That it counts
runs, not scores, and the prior on drifts were settled after a look at seeds 1000 to 1033, where a stricter variant held
95%; only then was the class "all three" added. Leaving out splits at a bound was tried and given up for Chinchilla's
coverage (83 to 88%). So the worlds' figures are of fresh seeds; those of the published runs are not a blind test.

There were {REPLICATES} bootstrap replicates, {SPLIT_REPLICATES} for each split (the package takes {DEFAULTS[0]} and
{DEFAULTS[1]}).

{body}

{datetime.now(UTC):%Y-%m-%d}, commit {commit("campaign")}; {cpu()}; Python {platform.python_version()},
numpy {np.__version__}, scipy {scipy.__version__}.
"""
    return text, good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--worlds", type=int, default=62, help=f"seeds, each a world of {len(KINDS)} kinds")
    parser.add_argument("--first", type=int, default=FIRST, help="the first seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/calibration"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    folder = os.environ.get("FROUDE_REFERENCE_DATA")
    studies = list(published(Path(folder))) if folder else []
    studies += [
        world(seed, kind) for seed in range(given.first, given.first + given.worlds) for kind in KINDS
    ]
    text, good = report(run(studies, given.workers, given.out / "predictions.jsonl"))
    RESULT.write_text(text)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
