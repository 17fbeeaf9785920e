"""Live progress lines, on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest

from froude.launch import display
from froude.launch.display import Display, clock, following
from froude.launch.elastic import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(display.time, "monotonic", clock)
    return clock


def test_the_time_left_counts_from_the_first_progress(time: Clock) -> None:
    out = io.StringIO()
    show = Display(out)
    show.stage("train")
    for now, fraction in ((100, 0.0), (150, 0.0), (160, 0.1), (170, 0.2)):
        time.now = now
        show.update(fraction, "step")
    lines = out.getvalue().splitlines()
    assert lines[0] == "[train]   0%  step"
    # A tenth takes ten seconds once it moves; the fifty seconds of start-up are no part of it.
    assert lines[-1] == "[train]  20%  step, about 1 min 20 s left"


def test_a_log_gets_a_line_now_and_then_and_one_at_the_end(time: Clock) -> None:
    out = io.StringIO()
    show = Display(out)
    show.stage("sweep")
    for tenth in range(101):
        time.now = 100 + tenth / 4
        show.update(tenth / 100, "trials")
    show.update(1.0, "trials")
    show.done("42 finished")
    lines = out.getvalue().splitlines()
    assert len(lines) == 5
    assert lines[-2] == "[sweep] 100%  trials"
    assert lines[-1] == "[sweep] 42 finished (25 s)"


def test_a_terminal_gets_one_line_rewritten(time: Clock) -> None:
    out = Terminal()
    show = Display(out)
    show.stage("train")
    for now in (101, 102, 103):
        time.now = now
        show.update(0.5, "half")
    assert "\n" not in out.getvalue()
    assert out.getvalue().count("\r") == 3
    show.line("killed")
    assert out.getvalue().endswith("\nkilled\n")


def test_quiet_says_nothing(time: Clock) -> None:
    out = io.StringIO()
    show = Display(out, quiet=True)
    show.stage("train")
    show.update(0.5, "half")
    show.done("done")
    assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_each_alarm_is_said_once_also_where_two_come_between_two_looks() -> None:
    out = io.StringIO()
    show = following(Display(out))
    for step, alarms in (
        (1, ()),
        (2, ("rate", "band")),
        (3, ("rate", "band")),
        (4, ("rate", "band", "shape")),
    ):
        show(Progress(step, 100, 3, 1, alarms))
    said = [line for line in out.getvalue().splitlines() if "alarm" in line]
    assert said == [f"[train] alarm: {kind}" for kind in ("rate", "band", "shape")]


def test_what_a_run_does_by_its_policy_is_said_once_and_is_no_alarm() -> None:
    out = io.StringIO()
    show = following(Display(out))
    for step, said in ((1, ()), (2, ("batch 1 is left out",)), (3, ("batch 1 is left out", "back to 1"))):
        show(Progress(step, 100, 3, 1, ("rate",), said))
    lines = [line for line in out.getvalue().splitlines() if "%" not in line]
    assert lines == ["[train] alarm: rate", "[train] batch 1 is left out", "[train] back to 1"]


def test_a_host_that_is_left_out_is_said_once() -> None:
    out = io.StringIO()
    show = following(Display(out))
    host = "host 10.0.0.7: its torch is '2.0' instead of '2.9'"
    for step in range(4):
        show(Progress(step, 4, 2, 1, left_out=(host,) if step else ()))
    assert out.getvalue().count(f"[train] left out: {host}") == 1
