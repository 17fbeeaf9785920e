"""What the planner's campaign makes of its replays: errors, coverage, widths, and what is asked of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl

NAMES = {"planner": "planner", "grid": "full grid", "half": "grid's runs by chance"}
INFERIOR = 1.1  # the planner's rms error over the grid's is to be at most this,
COVERED = 0.85  # the coverage of its 90% intervals at least this,
REPLAYS = 200  # in at least so many replays
RESAMPLES = 4000


def frame_of(found: list[dict[str, Any]]) -> pl.DataFrame:
    """One row a replay: of the planner's last state, the grid and the control, `<name>_error` and so on."""
    rows = []
    for one in found:
        row = {key: one[key] for key in ("name", "kind", "source", "cluster", "reach")}
        for name in NAMES:
            state = one[name][-1] if name == "planner" else one[name]
            row |= {
                f"{name}_error": state["loss"] / one["actual"] - 1,
                f"{name}_inside": float(state["low"] <= one["actual"] <= state["high"]),
                f"{name}_half": (state["high"] - state["low"]) / 2 / state["loss"],
                f"{name}_certified": float(state["certified"]),
                **{
                    f"{name}_{key}": float(state[key])
                    for key in ("cost", "runs", "points", "sizes", "largest")
                },
            }
        rows.append(row)
    return pl.from_dicts(rows)


def weights(frame: pl.DataFrame) -> np.ndarray:
    """With which each source weighs the same; their sum is 1."""
    each = frame.select(1 / pl.len().over("kind", "source")).to_series().to_numpy()
    return np.asarray(each / each.sum())


def rms(frame: pl.DataFrame, name: str) -> float:
    return math.sqrt(float(weights(frame) @ frame[f"{name}_error"].to_numpy() ** 2))


def mean(frame: pl.DataFrame, column: str) -> float:
    return float(weights(frame) @ frame[column].to_numpy())


def median(frame: pl.DataFrame, column: str) -> float:
    """The weighted median."""
    values, share = frame[column].to_numpy(), weights(frame)
    order = np.argsort(values)
    return float(values[order][np.searchsorted(np.cumsum(share[order]), 0.5)])


def ratio(frame: pl.DataFrame, name: str = "planner") -> tuple[float, float, float]:
    """Its rms error over the grid's, and the ends of a 90% bootstrap interval: clusters drawn anew within each kind."""
    rng = np.random.default_rng(0)
    own = frame.with_row_index("row")
    clusters = [
        [part["row"].to_numpy() for part in kind.partition_by("cluster", maintain_order=True)]
        for kind in own.partition_by("kind", maintain_order=True)
    ]
    sources = frame.select(pl.concat_str("kind", "source").rank("dense")).to_series().to_numpy().astype(int)
    squares = {key: frame[f"{key}_error"].to_numpy() ** 2 for key in (name, "grid")}
    found = []
    for _ in range(RESAMPLES):
        rows = np.concatenate([own[i] for own in clusters for i in rng.integers(0, len(own), len(own))])
        share = 1 / np.bincount(sources[rows])[sources[rows]]
        found.append(math.sqrt(share @ squares[name][rows] / (share @ squares["grid"][rows])))
    low, high = np.quantile(found, [0.05, 0.95])
    return rms(frame, name) / rms(frame, "grid"), float(low), float(high)


def tables(
    found: list[dict[str, Any]], wanted: int, share: float, first: int, begun: int
) -> tuple[str, bool]:
    """Return the report's tables as Markdown, and whether the acceptance holds."""
    frame = frame_of(found)
    value, low, high = ratio(frame)
    covered, cost = mean(frame, "planner_inside"), float(frame["planner_cost"].max())  # type: ignore[arg-type]
    asked = [
        (f"replays ≥ {REPLAYS}", str(frame.height), frame.height >= REPLAYS),
        (f"cost ≤ {share:g} of the grid's in each", f"{cost:.3f} at most", cost <= share + 1e-9),
        (f"rms error over the grid's ≤ {INFERIOR:g}", f"{value:.2f}", value <= INFERIOR),
        (f"its upper end ≤ {INFERIOR:g}, too", f"{low:.2f} to {high:.2f}", high <= INFERIOR),
        (f"coverage of the 90% interval ≥ {COVERED:.0%}", f"{covered:.1%}", covered >= COVERED),
    ]
    parts = [
        _table(frame, share),
        "\n".join(
            [
                "| all kinds, each source weighing the same | measured | holds |",
                "|---|---|---|",
                *(f"| {rule} | {said} | {'yes' if good else 'NO'} |" for rule, said, good in asked),
            ]
        ),
        f"""A replay is one target of one world or set of runs, forecast from a whole uniform grid and from what the
planner bought for at most {share:g} of the grid's cost, its few cheap runs to begin with included. Costs are FLOPs,
6·params·tokens. Errors are relative to the loss of the target's run, its noise included; intervals are those of
`Fits.predict` at 90%. Sources weigh the same. The interval of a ratio is a bootstrap, one-sided 95% at either end,
over worlds, published sets, and runs of the bank that are forecast. "By chance" are the planner's first runs and runs
of the grid drawn at random up to the same cost: what the choice is worth, the amount spent apart.""",
        "## By source",
        _by(frame, "source"),
        "## What was bought",
        bought(frame),
        f"""## What it does not show

- Seeds from 0 to {first - 1} were used to develop the planner and this page; it has those from {begun} on. Published
  sets and the bank are the same for all seeds: a seed chooses the target, what is on offer, the grid and the start. The
  planner's wariness of its law (`froude.laws.loss.design.MISFIT`) was chosen with these sets in sight.
- A later look: earlier versions were held against these seeds, too; the last one's intervals were narrower.
- The bank has two corpora and few runs that are larger than those on offer, so many replays forecast the same runs.
- Errors hold the target run's noise, which no proxy lowers and which draws the ratio of both towards 1.
- Points of one training curve are bought and paid one by one, though whoever pays for the last has the others. Sets
  of points of curves that went on decaying (Porian's with Kaplan's schedule) are left out: no run ends there.
- Rates of the bank's runs are not corrected, and no stage but the ladder is paid for.
- Half of the cost is all that was tried, in three rounds; one run after another would know more before each.
- The grid's size is a choice: one of fewer runs costs less, and its forecast may be as good.
""".rstrip(),
    ]
    if frame.height < wanted:
        parts.insert(0, f"{frame.height} of {wanted} replays are done.")
    return "\n\n".join(parts), all(good for *_, good in asked)


def _groups(frame: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    own = [(str(kind), part) for (kind,), part in frame.sort("kind").group_by("kind", maintain_order=True)]
    return [*own, ("all", frame)]


def _table(frame: pl.DataFrame, share: float) -> str:
    head = "| kind | replays | forecast from | error, rms | coverage | half-width, median | rms over the grid's |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    labels = {**NAMES, "planner": f"planner, {share:g} of the cost", "half": f"{NAMES['half']}, {share:g}"}
    for kind, part in _groups(frame):
        for name, label in labels.items():
            value, low, high = ratio(part, name)
            over = "1" if name == "grid" else f"{value:.2f} ({low:.2f} to {high:.2f})"
            cells = [kind, str(part.height), label, f"{rms(part, name):.2%}"]
            cells += [f"{mean(part, f'{name}_inside'):.1%}", f"{median(part, f'{name}_half'):.2%}", over]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _by(frame: pl.DataFrame, by: str) -> str:
    lines = [
        "| kind | source | replays | worlds, sets or targets | reach in compute, median | rms: planner | grid "
        "| coverage: planner | grid |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (kind, source), part in frame.sort("kind", by).group_by("kind", by, maintain_order=True):
        cells = [str(kind), str(source), str(part.height), str(part["cluster"].n_unique())]
        cells += [f"{part['reach'].median():.1f}×"]
        cells += [f"{rms(part, name):.2%}" for name in ("planner", "grid")]
        cells += [f"{mean(part, f'{name}_inside'):.0%}" for name in ("planner", "grid")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def bought(frame: pl.DataFrame) -> str:
    """Medians of what was bought: runs, points, sizes, the largest run over the grid's, and certified forecasts."""
    lines = [
        "| kind | forecast from | cost | runs | distinct points | sizes | largest run over the grid's | certified |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, part in _groups(frame):
        for name in NAMES:
            middle = {
                key: median(part, f"{name}_{key}") for key in ("cost", "runs", "points", "sizes", "largest")
            }
            cells = [kind, NAMES[name], f"{middle['cost']:.2f}"]
            cells += [f"{middle[key]:.0f}" for key in ("runs", "points", "sizes")]
            cells += [f"{middle['largest']:.2f}", f"{mean(part, f'{name}_certified'):.0%}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
