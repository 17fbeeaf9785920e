"""What a tracker is told, and the protocol of one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol


@dataclass(frozen=True)
class Subject:
    """A run as a tracker lists it. `key` is its identity: another key, another run of the tracker.

    `config` is the Run as JSON, `tags` what it belongs to.
    """

    key: str
    name: str
    study: str
    stage: str
    config: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Point:
    """All that is said of one step: numbers by name, and in words what happened there ("": nothing)."""

    step: int
    time: datetime
    values: Mapping[str, float]
    events: str = ""


class Tracker(Protocol):
    """Where points go. Points of a run come in the order of their steps, each step once; it asks itself what it has."""

    def ended(self, study: str) -> Collection[str]:
        """The keys of the study's runs that were closed with a status."""

    def open(self, subject: Subject) -> int:
        """Begin this run, or go on with it: the newest step that the tracker has of it, 0 if none."""

    def send(self, points: Sequence[Point]) -> None:
        """Add points to the open run."""

    def close(self, status: str, summary: Mapping[str, Any]) -> None:
        """Leave the open run. With a `status` (finished, diverged, failed, superseded) nothing more is coming."""
