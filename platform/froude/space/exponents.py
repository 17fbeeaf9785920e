"""A stage that moves one setting at a time, to measure how the best rate, decay and beta2 follow tokens and batch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from froude.config import ConfigError, Run, whole_steps
from froude.space.stages import Past, Role, check_stage
from froude.space.trial import Trial

LEAST = 4  # rates of a curve, and values of a grid: laws.lr_curve fits no fewer
#: Three quarters of an octave apart: laws.lr_curve fits a cubic to what lies within 1.5 octaves of the best.
FACTORS = tuple(2 ** (0.75 * i) for i in range(-3, 4))
MORE = 2  # rates beyond an end of a sweep whose best lies there


def decay(*, lr: float, batch: int, tokens: int, timescale: float) -> float:
    """The weight decay with which a run forgets its weights over a share `timescale` of its tokens.

    timescale = batch / (lr * weight_decay * tokens) (Wang & Aitchison 2405.13698); batch and horizon in tokens.
    """
    return batch / (lr * timescale * tokens)


class _Point(NamedTuple):
    """Where a trial lies: its rate, and all else as a multiple of the base's; `seed` counts from the base's."""

    lr: float
    horizon: float = 1.0
    batch: float = 1.0
    timescale: float = 1.0
    half_life: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Exponents:
    """Trials for `froude.laws.exponents`: each moves one setting, and the best value of another is sought.

    1. Each of `rates` (octaves from the base's) at each of `horizons` (multiples of `base.tokens`), and at each of
       `batches` (multiples of `base.batch`) at `base.tokens`; at a batch the rates are centred by its root.
       Two more where the best lies at an end.
    2. At each horizon and its best rate, decay timescales (multiples of `timescale`); at each batch and its best rate,
       half-lives of beta2 (multiples of the base's, in tokens).

    What a part does not move stays: the decay timescale batch / (lr * weight_decay * tokens) by a weight decay of each
    trial's own, beta2 by its half-life batch * ln(1/2) / ln(beta2), and the warmup as a share of the run. An empty
    sequence leaves a part out; of fewer than three horizons or batches no exponent is called measured.
    """

    name: str
    base: Run
    timescale: float = 0.2
    rates: Sequence[float] = (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0)
    horizons: Sequence[float] = (0.25, 1.0, 4.0)
    batches: Sequence[float] = (0.25, 1.0, 4.0)
    timescales: Sequence[float] = FACTORS
    half_lives: Sequence[float] = FACTORS
    seeds: int = 2
    role: Role = "transfer_exponents"
    after: tuple[str, ...] | None = ()

    def __post_init__(self) -> None:
        check_stage(self.name, self.role)
        grids = {name: getattr(self, name) for name in ("horizons", "batches", "timescales", "half_lives")}
        for name, grid in grids.items():
            if len(set(grid)) < len(grid) or not all(0 < factor < math.inf for factor in grid):
                raise ConfigError(
                    f"`{name}` of stage {self.name!r} must be different positive multiples of the base's, but got "
                    f"{tuple(grid)}"
                )
        few = [name for name in ("timescales", "half_lives") if 0 < len(grids[name]) < LEAST]
        few += ["rates"] if len(set(self.rates)) < LEAST else []
        if few:
            raise ConfigError(
                f"`{few[0]}` of stage {self.name!r} must have at least {LEAST} values to place an optimum, but got "
                f"{tuple(getattr(self, few[0]))}; add some"
                + ("" if few[0] == "rates" else ", or leave it out with ()")
            )
        if not any(grids.values()) or self.seeds < 1 or not 0 < self.timescale < math.inf:
            raise ConfigError(
                f"stage {self.name!r} needs a part, seeds >= 1 and timescale > 0, but got {self.seeds} seeds and a "
                f"timescale of {self.timescale}"
                + ("" if any(grids.values()) else ", with every part left out")
            )
        optimizer = self.base.optimizer
        if self.base.schedule.ramp:
            raise ConfigError(
                f"`schedule.ramp` of stage {self.name!r} must be left out: the stage moves horizon and batch alone"
            )
        spec = None if optimizer.imported else optimizer.spec
        if spec and (spec.unit == "matrix" or spec.curvature or not (spec.decays and spec.beta2)):
            raise ConfigError(
                f"stage {self.name!r} moves decay and beta2 of all parameters, but {optimizer.name} does not have both "
                "for all; use e.g. adamw"
            )
        if spec and spec.coupled:
            raise ConfigError(
                f"stage {self.name!r} holds a decay timescale, which {optimizer.name} does not have, since it adds the "
                "decay to the gradient; use adamw"
            )
        if (self.batches or self.half_lives) and not optimizer.beta2:
            raise ConfigError(
                f"stage {self.name!r} holds the half-life of beta2, so `optimizer.beta2` must be above 0; leave "
                "`batches` and `half_lives` out with ()"
            )
        self.planned()

    @property
    def extends(self) -> bool:
        return True

    @property
    def one_by_one(self) -> bool:
        return True  # the second part comes when the first is done

    def planned(self) -> list[Trial]:
        return self._trials([*self._sweeps(), *self._grids({})])

    def undecided(self, before: Sequence[str]) -> str:
        return "rates of the second part; more rates at an edge"

    def next(self, past: Past) -> list[Trial] | None:
        """The rates; then more at an edge; then timescales and half-lives at the best rates."""
        if past.rounds == 0:
            return self._trials(self._sweeps()) or self._trials(self._grids({}))
        ended = {trial.name: past.outcome(trial) for trial in past.trials}
        if not all(ended.values()):
            return None
        losses = {name: _loss(row) for name, row in ended.items() if row and row["status"] != "failed"}
        for points in (self._beyond(losses), self._grids(losses)):
            if new := [trial for trial in self._trials(points) if trial.name not in ended]:
                return new
        return None

    @property
    def _levels(self) -> list[tuple[float, float]]:
        """Horizon and batch of each sweep of rates."""
        return list(dict.fromkeys([*((h, 1.0) for h in self.horizons), *((1.0, b) for b in self.batches)]))

    def _rate(self, octaves: float, batch: float) -> float:
        return _rounded(self.base.optimizer.lr * math.sqrt(batch) * 2**octaves)

    def _rates(self, batch: float) -> list[float]:
        return [self._rate(octaves, batch) for octaves in sorted(self.rates)]

    def _sweeps(self) -> list[_Point]:
        return [
            _Point(lr, horizon, batch, seed=seed)
            for horizon, batch in self._levels
            for lr in self._rates(batch)
            for seed in range(self.seeds)
        ]

    def _beyond(self, losses: Mapping[str, float]) -> list[_Point]:
        """Rates beyond the end at which a sweep has its best."""
        points = []
        for horizon, batch in self._levels:
            rates = self._rates(batch)
            best = self._best(horizon, batch, losses, rates)
            for end, inner in ((rates[0], rates[1]), (rates[-1], rates[-2])):
                if best == end:
                    new = [_rounded(end * (end / inner) ** (i + 1)) for i in range(MORE)]
                    points += [_Point(lr, horizon, batch, seed=s) for lr in new for s in range(self.seeds)]
        return points

    def _grids(self, losses: Mapping[str, float]) -> list[_Point]:
        """Timescales and half-lives at the best rates, or at the middle ones where none has run."""
        tried = {level: self._rates(level[1]) for level in self._levels}
        for point in self._beyond(losses) if losses else []:
            tried[point.horizon, point.batch].append(point.lr)
        best = {level: self._best(*level, losses, rates) for level, rates in tried.items()}
        grids = [
            *(
                (horizon, 1.0, factor, 1.0)
                for factor in self.timescales
                for horizon in self.horizons or (1.0,)
            ),
            *((1.0, batch, 1.0, factor) for factor in self.half_lives for batch in self.batches or (1.0,)),
        ]
        return [
            _Point(best.get(values[:2], self._rate(0.0, values[1])), *values, seed)
            for values in grids
            for seed in range(self.seeds)
        ]

    def _best(
        self, horizon: float, batch: float, losses: Mapping[str, float], rates: Sequence[float]
    ) -> float:
        """The rate of least mean loss over the seeds that did not fail; the middle one where none has finished."""

        def mean(lr: float) -> float:
            names = [self._name(_Point(lr, horizon, batch, seed=seed)) for seed in range(self.seeds)]
            found = [losses[name] for name in names if name in losses]
            return sum(found) / len(found) if found else math.inf

        best = min(rates, key=mean)
        return best if mean(best) < math.inf else self._rate(0.0, batch)

    def _sizes(self, point: _Point) -> tuple[int, int]:
        """Batch and horizon in tokens, in whole slots and steps."""
        part = self.base.slots * self.base.model.context
        batch = whole_steps(point.batch * self.base.batch, part)
        return batch, whole_steps(point.horizon * self.base.tokens, batch)

    def _name(self, point: _Point) -> str:
        batch, tokens = self._sizes(point)
        moved = f"t{point.timescale:g}-h{point.half_life:g}-s{self.base.seed + point.seed}"
        return f"{self.name}-d{tokens}-b{batch}-lr{point.lr:g}-{moved}"

    def _run(self, point: _Point) -> Run:
        """The trial's run: here each setting follows from what is held."""
        base, (batch, tokens) = self.base, self._sizes(point)
        changes: dict[str, Any] = {
            "batch": batch,
            "tokens": tokens,
            "seed": base.seed + point.seed,
            "optimizer.lr": point.lr,
            "optimizer.beta2": base.optimizer.beta2 ** (batch / base.batch / point.half_life),
            "optimizer.weight_decay": decay(
                lr=point.lr, batch=batch, tokens=tokens, timescale=point.timescale * self.timescale
            ),
            "schedule.warmup_tokens": round(base.schedule.warmup_tokens / base.tokens * tokens),
        }
        return base.replace(changes, name=self._name(point), stage=self.name)

    def _trials(self, points: Iterable[_Point]) -> list[Trial]:
        runs = {run.name: run for run in map(self._run, points)}  # the parts share some
        return [Trial(name, (run,)) for name, run in runs.items()]


def _loss(row: Mapping[str, Any]) -> float:
    return math.inf if row["loss"] is None else float(row["loss"])


def _rounded(lr: float) -> float:
    """To four digits: a rate that differs in its last bit is another run."""
    return float(f"{lr:.4g}")
