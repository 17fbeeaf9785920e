"""The forecast monitor beside a run: its alarms go to the control channel while the run goes on."""

from __future__ import annotations

from froude.config import Run
from froude.launch.control_channel import ControlChannel
from froude.launch.observers import Lasting
from froude.promote import recipe
from froude.promote.monitor import Monitor
from froude.store import Location
from froude.train.rows import Row


class ForecastMonitor(Lasting):
    """Raises an alarm where the run leaves its forecast; each attempt begins anew, and a run that goes back does."""

    def __init__(self, monitor: Monitor, channel: ControlChannel) -> None:
        self.monitor, self.channel = monitor, channel
        self.tokens = 0

    def wrote(self, row: Row) -> None:
        # Not in `rewind`: a group that was held gets there, too, and goes on from where it is.
        if row["tokens"] <= self.tokens:
            self.monitor = Monitor(self.monitor.forecast, self.monitor.run)
        self.tokens = row["tokens"]
        for alarm in self.monitor.step(row["tokens"], row["loss"], row["lr"]):
            self.channel.raise_alarm(alarm.line())


def forecast_monitors(
    run: Run, study: Location, sha256: str, channel: ControlChannel
) -> list[ForecastMonitor]:
    """That of the study's recipe with this seal; none for a run without a recipe."""
    place = study / recipe.FILE
    if sha256 == run.fingerprint or not place.exists():
        return []
    found = recipe.read(place)
    if found.sha256 != sha256:
        return []
    return [ForecastMonitor(Monitor(found.forecast, found.run), channel)]
