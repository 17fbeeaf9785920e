"""Do loss curves of several sizes collapse onto one? Runs that leave the common curve are mis-tuned."""

import math
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from froude.laws.stats.frames import Array, read
from froude.laws.stats.results import Status

FIRST = 0.2  # of a run: before it warmups and initialisations differ
BINS = 24  # over the rest of it
MIN_RUNS = 4  # of fewer the common curve is the odd one's as much as the others'
SAME_RATIO = 1.25  # tokens per parameter of one collapse differ by less
#: A run stands out that is so many times as far from the common curve as its noise, and as the other runs.
FARTHER = 3.0
LEAST = 0.01  # of ln of the normalised loss: nearer than that runs are alike, however little noise they have


@dataclass(frozen=True, eq=False)
class Collapse:
    """How far each run lies from the curve that the others share.

    `runs` has a row a run: `run, params, ratio` (tokens per parameter), `deviation, noise, stands_out`. The deviation
    is the rms of ln of the normalised loss about the median of the other runs, the noise what it would be if the run
    differed from them by the scatter of its own losses alone; both are NaN with a status other than `ok`. `curve` has
    the common curve: `share` of the run, normalised `loss`.
    """

    status: Status
    reasons: tuple[str, ...]
    runs: pl.DataFrame
    curve: pl.DataFrame = field(repr=False)

    @property
    def outliers(self) -> list[str]:
        """The runs that stand out."""
        return [str(run) for run in self.runs.filter(pl.col("stands_out"))["run"]]


def collapse(frame: pl.DataFrame | pl.LazyFrame, *, floor: float = 0.0) -> Collapse:
    """Compare loss curves: columns `run, params, tokens` (seen so far), `loss` and `final` (the run's last loss; nats).

    At one number of tokens per parameter, with one schedule and rates set as well for each size, the normalised losses
    (L(t) - floor) / (L(T) - floor) of all sizes are one function of t / T, T the run's tokens, and closer to it than a
    run's noise (Qiu et al. 2507.02119); a run that leaves it is mis-tuned, or something happened to it (2509.25087).
    `floor` is the irreducible loss, such as `LossLaw.E`; ValueError if it is not below all finals. Status
    `too_few_points` with fewer than four runs that have losses all along, or where tokens per parameter differ by more
    than a quarter. Raises as `froude.laws.stats.frames.read` does.
    """
    sample = read(frame, ["params", "tokens", "final"], loss=True, groups="run")
    names = sample.frame.filter(pl.Series(sample.used))["run"].to_list()
    lowest = float(sample["final"].min(initial=math.inf))
    if not floor < lowest:
        raise ValueError(f"floor must be below the final losses, but is {floor:g} with a loss of {lowest:g}.")
    curves, noises, rows = [], [], []
    for group in range(sample.n_groups):
        at = np.flatnonzero(sample.groups == group)
        end = float(sample["tokens"][at].max())
        params, final = float(sample["params"][at[0]]), float(sample["final"][at[0]])
        rows.append((names[at[0]], params, end / params))
        value, scatter = _binned(sample["tokens"][at] / end, sample["loss"][at], floor)
        curves.append(value - math.log(final - floor))
        noises.append(scatter)
    schema = {"run": pl.String, "params": pl.Float64, "ratio": pl.Float64}
    runs = pl.DataFrame([(str(name), *rest) for name, *rest in rows], schema=schema, orient="row")
    whole = np.array([np.isfinite(curve).all() for curve in curves], dtype=bool)
    ratios = runs["ratio"].to_numpy()
    reasons = []
    if whole.sum() < MIN_RUNS:
        reasons.append(f"{whole.sum()} runs with losses all along; needs {MIN_RUNS}")
    elif ratios[whole].max() > SAME_RATIO * ratios[whole].min():
        span = f"{ratios[whole].min():.3g} to {ratios[whole].max():.3g}"
        reasons.append(f"tokens per parameter are {span}; curves collapse at one ratio only")
    shares = FIRST + (1 - FIRST) * (np.arange(BINS) + 0.5) / BINS
    deviation, noise = np.full(len(rows), math.nan), np.full(len(rows), math.nan)
    common = np.full(BINS, math.nan)
    if not reasons:
        values = np.array(curves)[whole]
        deviation[whole], noise[whole] = _deviations(values, np.array(noises)[whole])
        common = np.exp(np.median(values, axis=0))
    far = np.zeros(len(rows), dtype=bool)
    for i in np.flatnonzero(whole) if not reasons else ():
        others = np.delete(deviation, i)
        usual = float(np.median(others[np.isfinite(others)]))
        far[i] = deviation[i] > max(FARTHER * noise[i], FARTHER * usual, LEAST)
    return Collapse(
        status="too_few_points" if reasons else "ok",
        reasons=tuple(reasons),
        runs=runs.with_columns(
            deviation=pl.Series(deviation), noise=pl.Series(noise), stands_out=pl.Series(far)
        ),
        curve=pl.DataFrame({"share": shares, "loss": common}),
    )


def _binned(share: Array, loss: Array, floor: float) -> tuple[Array, float]:
    """Return ln of the mean loss above the floor in each bin, NaN without one, and the sd of a bin's noise.

    A bin below the floor counts as one without losses. The noise is from second differences of neighbouring bins,
    which a smooth curve hardly has.
    """
    place = np.floor((share - FIRST) / (1 - FIRST) * BINS)
    inside = place >= 0
    place = np.minimum(place[inside], BINS - 1).astype(np.intp)
    count = np.bincount(place, minlength=BINS)
    total = np.bincount(place, loss[inside], BINS)
    above = total / np.maximum(count, 1) - floor
    value = np.log(np.where((count > 0) & (above > 0), above, np.nan))
    bends = np.diff(value, 2)
    return np.asarray(value), 1.4826 * float(np.median(np.abs(bends))) / math.sqrt(6)


def _deviations(values: Array, noises: Array) -> tuple[Array, Array]:
    """Return each curve's rms distance from the median of the others, and what noise alone would make of it."""
    n = len(values)
    far, floor = np.empty(n), np.empty(n)
    for i in range(n):
        others = np.delete(values, i, axis=0)
        far[i] = math.sqrt(float(np.mean((values[i] - np.median(others, axis=0)) ** 2)))
        rest = float(np.mean(np.delete(noises, i) ** 2)) * math.pi / 2 / (n - 1)  # of a median of n - 1
        floor[i] = math.sqrt(noises[i] ** 2 + rest)
    return far, floor
