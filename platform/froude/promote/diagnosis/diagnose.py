"""Why a learning rate does not transfer over width: what code does to its tensors, and what a study's runs show."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from froude import laws
from froude.config import Run
from froude.optimizers import REST
from froude.promote.diagnosis.causes import Cause, Examined, Exponent, causes, exponents
from froude.train.probe import coordcheck, slopes
from froude.train.probe.roles import tables
from froude.train.probe.updates import probe

#: The narrowest that a study has: what is measured is nearly exact, so the cheapest widths show as much as any.
WIDTHS = 3
#: Of the coordinate check: after more updates at a production rate seeds differ more than widths.
SEEDS, TIMES = 2, (1, 3)
#: A slope of a block under muP that is a cause by itself where no rule is found broken: SP's, over three widths. Two
#: narrow models can differ by as much without one (0.56 was seen between widths 32 and 64).
STRAYS, STRAYS_WIDTHS = slopes.CONTROL, 3
#: Exponents of the best rate where a study has not measured its own: over tokens, Bjorck et al. 2409.19913; over batch,
#: the square-root rule of Malladi et al. 2205.10287.
PRIOR = {"tokens": -0.32, "batch": 0.5}
EFFECTS = {"tokens": "horizon", "batch": "batch"}
GROWS = 0.1  # exponent of width from which on tokens or batch are said to grow with it


@dataclass(frozen=True)
class Diagnosis:
    """Of one parametrization: `code` are rules that the code breaks, `runs` what else the study's trials show.

    Both with the worst first. `exponents` and `coordinates` are the measurements; None and empty without two widths.
    """

    parametrization: str
    widths: tuple[int, ...]
    code: tuple[Cause, ...]
    runs: tuple[Cause, ...]
    exponents: tuple[Exponent, ...]
    coordinates: slopes.CoordinateCheck | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        content = {
            key: [asdict(each) for each in getattr(self, key)] for key in ("code", "runs", "exponents")
        }
        slopes = [asdict(slope) for slope in self.coordinates.slopes] if self.coordinates else []
        head = {"parametrization": self.parametrization, "widths": list(self.widths)}
        return {**head, **content, "coordinates": slopes}

    def lines(self) -> list[str]:
        """The same for people: the causes, then what was measured."""
        named = [f"{number}. {cause.line()}" for number, cause in enumerate((*self.code, *self.runs), 1)]
        table = [
            f"  {f'{row.what} of {row.of}':<50}{row.exponent:+.2f}"
            + (f"  rule {row.rule:+.2f}" if math.isfinite(row.rule) else "")
            for row in self.exponents
        ]
        blocks = [
            f"  {f'{s.name} after {s.t} updates':<50}{s.slope:+.2f} ± {2 * s.se:.2f}"
            for s in (self.coordinates.slopes if self.coordinates else ())
            if s.t
        ]
        where = f"{self.parametrization}, widths {', '.join(map(str, self.widths))}"
        return [
            f"diagnosis of {where}: {'no cause found' if not named else 'causes, the worst first'}",
            *named,
            *(["exponents of width, measured:", *table] if table else []),
            *(["coordinate check, exponents of width:", *blocks] if blocks else []),
        ]


def diagnose(
    runs: Sequence[Run],
    rows: pl.DataFrame | None = None,
    *,
    progress: Callable[[float, str], None] | None = None,
) -> Diagnosis:
    """Diagnose runs of one parametrization at several widths; `rows` are their rows of `trials()`, if there are any.

    Builds the models and makes a few real updates at the narrowest widths; with empty `runs` only `rows` are used.
    """
    shown = () if rows is None else tuple(_shown(rows))
    compared = comparable(runs)
    name = runs[0].parametrization if runs else "unknown"
    widths = tuple(run.model.width for run in compared)
    if len(compared) < 2:
        return Diagnosis(name, widths, (), shown, (), None)
    tell = progress or (lambda share, text: None)
    examined = examine(compared, progress=lambda share, text: tell(share / 2, text))
    seeds = [run.replace(seed=run.seed + seed) for run in compared for seed in range(SEEDS)]
    moves = coordcheck.measure(seeds, times=TIMES, progress=lambda share, text: tell(0.5 + share / 2, text))
    coordinates = slopes.judge("width", moves)
    found = causes(examined)
    if not found and runs[0].width_rules.transfers and len(widths) >= STRAYS_WIDTHS:
        found = list(_strays(coordinates))
    return Diagnosis(name, widths, tuple(found), shown, tuple(exponents(examined)), coordinates)


def _by_rows(run: Run) -> Run:
    """The run with AdamW, at the settings of the rest, in place of an optimizer whose updates are of whole matrices.

    Of those no single element says how large they are, and the model's code is as right or wrong under one as under the
    other.
    """
    if run.optimizer.spec.unit != "matrix":
        return run
    run = run.pinned()
    rest = {f"optimizer.{key}": value for key, value in run.optimizer.rest}
    plain = {"optimizer.name": REST.name, "optimizer.options": {}, "optimizer.rest": {}}
    return run.replace({**plain, **rest}, name=run.name)


def examine(runs: Sequence[Run], *, progress: Callable[[float, str], None] | None = None) -> Examined:
    """Measure what the code does at two widths or more, of runs that are alike in all else."""
    runs = [_by_rows(run) for run in runs]
    vocabulary, probes = tables(runs), []
    for number, run in enumerate(runs):
        if progress:
            progress(number / len(runs), f"{run.parametrization}, width {run.model.width}")
        probes.append(probe(run, vocabulary))
    return Examined(probes)


def comparable(runs: Sequence[Run]) -> list[Run]:
    """The runs at the narrowest widths, one a width, made alike in everything but the shape of the model.

    They get the middle one of the widest's rates: one that is right for a narrow model upsets a wide one under SP.
    """
    depths = [run.model.depth for run in runs]
    if not runs:
        return []
    usual = [run for run in runs if run.model.depth == max(sorted(set(depths)), key=depths.count)]
    shapes = {run.model.width: run.model.model_dump(mode="json") for run in usual}
    widths = sorted(shapes)[:WIDTHS]
    widest = sorted((r for r in usual if r.model.width == widths[-1]), key=lambda run: run.optimizer.lr)
    base = widest[(len(widest) - 1) // 2]
    return [base.replace(model=shapes[width]) for width in widths]


def _strays(coordinates: slopes.CoordinateCheck) -> list[Cause]:
    """Blocks that move more, or less, at larger widths though no rule is broken."""
    found = [
        Cause(
            "coordinates", s.name, s.slope, 0.0, abs(s.slope), f"mean|x_{s.t} - x_0| must not depend on width"
        )
        for s in coordinates.slopes
        if s.name.startswith("blocks.") and abs(s.slope) - 2 * s.se > STRAYS
    ]
    return sorted(found, key=lambda cause: -cause.off)[:1]


def _shown(rows: pl.DataFrame) -> list[Cause]:
    """Optima at an edge or too flat to place, and what grows with width and moves the optimum by itself."""
    law = laws.lr_transfer(rows)
    found = []
    for width, status in law.curves.select("width", "status").iter_rows():
        if status != "ok":
            text = WORDS.get(status, f"its curve is `{status}`")
            found.append(Cause(f"{status}_optimum", f"width {width:g}", math.nan, math.nan, 0.0, text))
    effects = [cause for column in PRIOR for cause in _effect(rows, column)]
    return sorted(effects, key=lambda cause: -cause.off) + found


WORDS = {
    "edge": "the best rate is the last of the grid, so the optimum lies beyond it; add rates there",
    "flat": "the loss hardly depends on the rate, so it places no optimum; widen the grid or add seeds",
    "too_few_points": "too few rates finished to place the optimum; add rates",
}


def _effect(rows: pl.DataFrame, column: str) -> list[Cause]:
    """The part of the slope over width that tokens, or the batch, account for where they grow with the width."""
    by_width = rows.group_by("width").agg(pl.col(column).cast(pl.Float64).log().mean()).sort("width")
    if by_width.height < 2:
        return []
    growth = float(np.polyfit(np.log(by_width["width"].to_numpy()), by_width[column].to_numpy(), 1)[0])
    if abs(growth) < GROWS:
        return []
    own = [
        law.slope.value
        for _, here in rows.group_by("width", maintain_order=True)
        if here[column].n_unique() > 1
        and (law := laws.lr_transfer(here, over=column)).status in ("ok", "flat")
    ]
    exponent = float(np.mean(own)) if own else PRIOR[column]
    source = "measured at one width" if own else "from other people's runs: train one width at two values"
    text = (
        f"{column} grow as width^{growth:.2f}, and the best rate moves as {column}^{exponent:+.2f} ({source}), "
        "which accounts for this much of the slope over width"
    )
    effect = growth * exponent
    return [Cause(EFFECTS[column], f"stage's {column}", effect, 0.0, abs(effect), text)]
