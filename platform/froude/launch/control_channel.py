"""How driver, controller and workers of a run speak to each other: short messages, kept on the cluster's head.

They steer and show; they hold nothing that must survive. Where Ray's internals are not used there are no messages, and
progress is that of the commit log.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from froude.launch.ray_internals import get_value, put_value


@dataclass(frozen=True)
class Beat:
    """The last sign of life of a run: `step` was completed at `time` (seconds since the epoch), 0 if none was.

    An attempt that has not made a step yet carries over the time of the one before.
    """

    attempt: int
    world: int
    step: int
    time: float


@dataclass(frozen=True)
class ControlChannel:
    """The messages of one run, by the URL of its directory."""

    run: str

    def write_beat(self, beat: Beat) -> None:
        put_value(f"{self.run}#beat", asdict(beat))

    def beat(self) -> Beat | None:
        note = get_value(f"{self.run}#beat")
        return Beat(**note) if note else None

    def ask_to_hold(self, attempt: int) -> None:
        """Ask the workers of this attempt, and no other, to commit and wait."""
        put_value(f"{self.run}#hold", {"attempt": attempt, "request": uuid.uuid4().hex})

    def asked_to_hold(self, attempt: int) -> bool:
        asked = get_value(f"{self.run}#hold")
        return asked is not None and asked["attempt"] == attempt

    def release(self) -> None:
        """Let workers that hold go on."""
        put_value(f"{self.run}#hold", None)

    def confirm_held(self, attempt: int) -> bool:
        """Say that all workers of this attempt have committed and wait; return whether they are still asked to.

        It answers one request only: an answer to an earlier request, which nobody waits for any longer, does not count.
        """
        asked = get_value(f"{self.run}#hold")
        if asked is None or asked["attempt"] != attempt:
            return False
        put_value(f"{self.run}#held", asked)
        return True

    def held(self, attempt: int) -> bool:
        """Whether all workers of this attempt have committed, and wait, as they are asked to now."""
        asked = get_value(f"{self.run}#hold")
        return asked is not None and asked["attempt"] == attempt and get_value(f"{self.run}#held") == asked

    def note_reservation(self, run_id: str) -> None:
        """Leave the id under which this driver reserves resources, for the next driver."""
        put_value(f"{self.run}#reservation", {"run_id": run_id})

    def reservation(self) -> str:
        """The id of the last driver on this head; empty if there was none."""
        return str((get_value(f"{self.run}#reservation") or {}).get("run_id", ""))

    def offer_template(self, attempt: int, template: dict[str, Any]) -> None:
        """Leave what a process must be like to take the place of a worker of this attempt."""
        put_value(f"{self.run}#template", {"attempt": attempt, **template})

    def template(self) -> dict[str, Any] | None:
        """That of the running attempt, None until it has left one."""
        note, beat = get_value(f"{self.run}#template"), self.beat()
        return note if note and beat and note["attempt"] == beat.attempt else None

    def raise_alarm(self, line: str) -> None:
        """Tell whoever watches that the run has left its forecast."""
        put_value(f"{self.run}#alarms", {"lines": [*self.alarms(), line]})

    def alarms(self) -> tuple[str, ...]:
        """All alarms of this driver's run, oldest first."""
        return tuple((get_value(f"{self.run}#alarms") or {}).get("lines", ()))

    def say(self, line: str) -> None:
        """Tell whoever watches what the run does by its own policy."""
        put_value(f"{self.run}#said", {"lines": [*self.said(), line]})

    def said(self) -> tuple[str, ...]:
        """All that this driver's run has said, oldest first."""
        return tuple((get_value(f"{self.run}#said") or {}).get("lines", ()))

    def leave_out(self, hosts: Mapping[str, str]) -> None:
        """Record which nodes the run does without from now on, by their ids, and why."""
        put_value(f"{self.run}#left-out", {**self.left_out(), **hosts})

    def left_out(self) -> dict[str, str]:
        """All such nodes of this driver's run, in the order in which they were found."""
        return get_value(f"{self.run}#left-out") or {}

    def give_up(self) -> None:
        put_value(f"{self.run}#no-progress", {})

    def given_up(self) -> bool:
        return get_value(f"{self.run}#no-progress") is not None

    def clear(self, attempts: int) -> None:
        """Forget requests that an earlier driver left, and the beat unless it is of one of the log's `attempts`.

        A log that began anew under its old URL counts its attempts anew: none would be later than that of the old one.
        """
        if (beat := self.beat()) is not None and beat.attempt > attempts:
            put_value(f"{self.run}#beat", None)
        for name in ("hold", "held", "template", "no-progress", "alarms", "said", "left-out"):
            put_value(f"{self.run}#{name}", None)
