"""Whether a run in progress still follows its forecast: a function of its steps, so anyone can ask again later."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from froude.promote.forecast import Forecast

if TYPE_CHECKING:
    import polars as pl

#: Share of the run's tokens for which the loss must be outside before an alarm is raised (methods: 0.5%).
PATIENCE = 0.005
#: Share of the run's tokens over which the run's own level is measured, and how many blocks that takes.
LEVEL_SHARE, LEVEL_BLOCKS = 0.05, 8
#: The curve's half-width is at 90%; a run makes hundreds of blocks and may leave it now and then.
TOLERANCE = 1.5


@dataclass(frozen=True)
class Alarm:
    """The loss left the band at `since` tokens; raised at `tokens`, where it was `loss` against `expected`.

    `kind` is "band" outside the sealed band, "shape" where it left the curve that the run itself had followed.
    """

    kind: str
    since: int
    tokens: int
    loss: float
    expected: float

    def line(self) -> str:
        """What a person is told."""
        side = "above" if self.loss > self.expected else "below"
        what = "the sealed band" if self.kind == "band" else "its own curve"
        return (
            f"training loss {self.loss:.3f} is {side} {what} ({self.expected:.3f}) since {self.since:,} tokens; "
            "look at the data and the rate of that stretch"
        )


@dataclass
class Monitor:
    """Fed with a run's steps in order; raises at most one alarm until the loss is back."""

    forecast: Forecast
    horizon: int
    _sum: float = 0.0
    _count: int = 0
    _block: int = 0
    _offsets: list[tuple[int, float]] = field(default_factory=list)
    _since: int | None = None
    _raised: bool = False

    def step(self, tokens: int, loss: float) -> Alarm | None:
        """A step's mean loss over its batch, after `tokens` tokens in all; an alarm, if there is a new one."""
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
        recent = [o for t, o in self._offsets if t > tokens - LEVEL_SHARE * self.horizon]
        level = median(recent) if len(recent) >= LEVEL_BLOCKS else None
        outside = not at.low <= loss <= at.high  # so is a loss that is no number
        if not outside and (level is None or abs(offset - level) <= TOLERANCE * at.shape):
            self._offsets.append((tokens, offset))
            self._since, self._raised = None, False
            return None
        if self._since is None:
            self._since = tokens - self.forecast.block
        if self._raised or tokens - self._since <= PATIENCE * self.horizon:
            return None
        self._raised = True
        expected = at.loss if outside or level is None else at.loss + level
        return Alarm("band" if outside else "shape", self._since, tokens, loss, expected)


def alarms(forecast: Forecast, horizon: int, steps: pl.DataFrame) -> list[Alarm]:
    """Every alarm that a run's `steps` (`tokens`, `loss`) give rise to; `horizon` in tokens."""
    monitor = Monitor(forecast, horizon)
    found = (
        monitor.step(tokens, loss) for tokens, loss in steps.sort("tokens").select("tokens", "loss").rows()
    )
    return [alarm for alarm in found if alarm is not None]
