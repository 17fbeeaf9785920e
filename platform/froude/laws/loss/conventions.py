"""Which count of parameters predicts larger runs best: with or without embeddings, or what attention makes of it.

The count is one of the corrections by which Porian et al. 2406.19146 get from one published law to another. No theory
says which is right, but runs do: each count gets a law of the smaller runs, and is scored on the larger ones.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from froude.laws.loss.calibration import SPLIT_DRAWS, Calibration, splits
from froude.laws.loss.draws import WEAK, ExponentPrior
from froude.laws.loss.fit import Problem
from froude.laws.loss.posterior import posterior, thinned
from froude.laws.loss.reach import MOST_ALONE
from froude.laws.stats.frames import Array, plausible, read


def counting_conventions(
    frame: pl.DataFrame | pl.LazyFrame,
    columns: Sequence[str],
    *,
    prior: ExponentPrior = WEAK,
    groups: str | Sequence[str] | None = None,
) -> pl.DataFrame:
    """Score each of several columns of parameter counts as the loss law's N; the other columns are `tokens, loss`.

    Rows `column, error, asked, nearest, runs`, the least error first. `error` is the root mean square relative error on
    larger runs that were held out: up to ten times beyond rolling splits, in compute by the first column, so the same
    runs for all. `asked` is how many expected errors that is (`Calibration.asked`), `nearest` the share of them that
    this count comes nearest to, `runs` how many there are. FLOPs/(6·tokens) is a count that holds attention. The runs
    share splits and laws, so a few of them tell large differences only. NaN where nothing could be held out. Raises as
    `froude.laws.stats.frames.read` does.
    """
    if isinstance(columns, str) or len(set(columns)) < 2:
        raise ValueError(f"columns must name two counts of parameters or more, but got {columns!r}.")
    sample = read(frame, [*columns, "tokens"], loss=True, groups=groups)
    plausible(sample, [*columns, "tokens", "loss"])
    problems = {}
    for name in columns:
        whole = Problem.of(sample[name], sample["tokens"], sample["loss"], sample.weights, None, False)
        problems[name], known = thinned(whole, sample.groups, np.random.default_rng(0), 400)
    first = problems[columns[0]]
    scores: dict[str, list[Array]] = {name: [] for name in columns}
    errors: dict[str, list[Array]] = {name: [] for name in columns}
    scored = np.zeros(known.size, dtype=bool)
    for _, inside, outside in splits(first, known, MOST_ALONE):
        rows = np.flatnonzero(outside)
        scored[rows] = True
        fewer = np.unique(known[inside], return_inverse=True)[1]
        for name, problem in problems.items():
            found = posterior(
                problem.take(np.flatnonzero(inside)), prior, fewer, draws=SPLIT_DRAWS, quick=True
            )
            draws = found.log_losses(problem.n[rows], problem.d[rows], np.random.default_rng(0))
            low, middle, high = np.quantile(draws, [0.16, 0.5, 0.84], axis=0)
            errors[name].append(np.abs(problem.log_loss[rows] - middle))
            scores[name].append(errors[name][-1] / ((high - low) / 2))
    runs = int(np.unique(known[scored]).size)
    off = np.array([np.concatenate([*errors[name], np.empty(0)]) for name in columns])
    nearest = np.argmin(off, axis=0) if runs else np.empty(0)
    return pl.DataFrame(
        {
            "column": list(columns),
            "error": np.sqrt(np.mean(off**2, axis=1)) if runs else np.full(len(columns), np.nan),
            "asked": [Calibration(tuple(scores[name]), runs).asked for name in columns],
            "nearest": [float(np.mean(nearest == i)) if runs else np.nan for i in range(len(columns))],
            "runs": runs,
        }
    ).sort("error", maintain_order=True)
