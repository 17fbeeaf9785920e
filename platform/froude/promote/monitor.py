"""Whether a run in progress still follows its forecast: a function of its steps, so anyone can ask again later."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from froude import schedules
from froude.config import Run
from froude.promote.forecast import Forecast

if TYPE_CHECKING:
    import polars as pl

#: Share of the run's tokens for which the loss must be outside before an alarm is raised (methods: 0.5%).
PATIENCE = 0.005
#: Share of the run's tokens over which the run's own level is measured, and how many blocks that takes.
LEVEL_SHARE, LEVEL_BLOCKS = 0.05, 8
#: The curve's half-width is at 90%; a run makes hundreds of blocks and may leave it now and then.
TOLERANCE = 1.5
RATE_TOLERANCE = 0.01  # of the sealed schedule's rate: what a schedule of other code may differ by


@dataclass(frozen=True)
class Alarm:
    """The run left its forecast at `since` tokens; raised at `tokens`, where it had `seen` against `expected`.

    `kind` is "band" for a loss outside the sealed band, "shape" for one that left the curve which the run itself had
    followed, "rate" for a learning rate that is not the recipe's.
    """

    kind: str
    since: int
    tokens: int
    seen: float
    expected: float

    def line(self) -> str:
        """The alarm in words."""
        side = "above" if self.seen > self.expected else "below"
        if self.kind == "rate":
            return (
                f"learning rate {self.seen:.3g} has been {side} the recipe's ({self.expected:.3g}) since "
                f"{self.since:,} tokens; look at the spike policy's actions and the optimizer"
            )
        what = "the sealed band" if self.kind == "band" else "its own curve"
        return (
            f"training loss {self.seen:.3f} has been {side} {what} ({self.expected:.3f}) since {self.since:,} tokens; "
            "look at the data and the rate of that stretch"
        )


@dataclass
class Monitor:
    """Fed with the steps of the recipe's `run` in order; raises one alarm of each, loss and rate, until it is back."""

    forecast: Forecast
    run: Run
    _sum: float = 0.0
    _count: int = 0
    _block: int = 0
    _offsets: list[tuple[int, float]] = field(default_factory=list)
    _since: int | None = None
    _raised: bool = False
    _off: bool = False

    def step(self, tokens: int, loss: float, lr: float | None) -> list[Alarm]:
        """A step's mean loss over its batch and its rate, after `tokens` tokens in all; the alarms that are new.

        Of a rate that is not told (None) nothing is said.
        """
        return [alarm for alarm in (self._rate(tokens, lr), self._loss(tokens, loss)) if alarm is not None]

    def _rate(self, tokens: int, lr: float | None) -> Alarm | None:
        if lr is None:
            return None
        before = self._off
        step = self.run.phases.step_at(tokens) - 1
        expected = self.run.optimizer.lr * schedules.at_step(self.run, step)
        self._off = not abs(lr - expected) <= RATE_TOLERANCE * expected
        first = self._off and not before
        return Alarm("rate", self.run.phases.tokens_at(step), tokens, lr, expected) if first else None

    def _loss(self, tokens: int, loss: float) -> Alarm | None:
        block = self.forecast.block
        if not block or not self.forecast.band or tokens <= self.forecast.band[0].tokens:
            return None
        self._sum, self._count = self._sum + loss, self._count + 1
        number = tokens // block
        if number == self._block:
            return None
        self._block = number
        mean, self._sum, self._count = self._sum / self._count, 0.0, 0
        return self._judge(tokens, mean)

    def _judge(self, tokens: int, loss: float) -> Alarm | None:
        at = self.forecast.at(tokens)
        offset = loss - at.loss
        recent = [o for t, o in self._offsets if t > tokens - LEVEL_SHARE * self.run.tokens]
        level = median(recent) if len(recent) >= LEVEL_BLOCKS else None
        outside = not at.low <= loss <= at.high  # so is a loss that is no number
        if not outside and (level is None or abs(offset - level) <= TOLERANCE * at.shape):
            self._offsets.append((tokens, offset))
            self._since, self._raised = None, False
            return None
        if self._since is None:
            self._since = tokens - self.forecast.block
        if self._raised or tokens - self._since <= PATIENCE * self.run.tokens:
            return None
        self._raised = True
        expected = at.loss if outside or level is None else at.loss + level
        return Alarm("band" if outside else "shape", self._since, tokens, loss, expected)


def alarms(forecast: Forecast, run: Run, steps: pl.DataFrame) -> list[Alarm]:
    """Every alarm that the `steps` (`tokens`, `loss`, `lr`) of the recipe's `run` give rise to."""
    monitor = Monitor(forecast, run)
    rows = steps.sort("tokens").select("tokens", "loss", "lr").rows()
    return [alarm for row in rows for alarm in monitor.step(*row)]
