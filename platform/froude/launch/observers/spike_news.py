"""What the spike policy of a run does, told on its control channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from froude.launch.control_channel import ControlChannel
from froude.launch.observers import Lasting
from froude.train.stability.spikes import sentence


class PolicyNews(Lasting):
    """Says what changed the run, and nothing of what was only noticed."""

    def __init__(self, channel: ControlChannel) -> None:
        self.channel = channel

    def decided(self, events: Sequence[Mapping[str, Any]]) -> None:
        for line in filter(None, map(sentence, events)):
            self.channel.say(line)
