"""Showing a sweep's progress."""

import io
import math
import os

import pytest

from froude.launch.display import Display
from froude.sweep.progress import SweepProgress, clock, shown, tell


def at(done, seconds, left=60.0):
    return SweepProgress(
        {"search": (min(done, 2), 2), "law": (max(0, done - 2), 3)}, {"a": 0.5}, 1, 0, seconds, left
    )


def test_a_line_has_counts_and_the_time_left():
    assert at(3, 65.0).line() == "[sweep] 3/5 trials, 1 diverged (search 2/2  law 1/3)  1:05, left 1:00"


def test_a_clock_knows_what_it_does_not_know():
    assert (clock(0.0), clock(61.9), clock(math.nan)) == ("0:00", "1:01", "–")


def test_elsewhere_than_on_a_terminal_a_line_comes_now_and_then_and_at_the_end():
    out = io.StringIO()
    with shown(out) as show:
        for second in range(25):
            show(at(1, float(second)))
        show(at(5, 25.0, 0.0))
        show(at(5, 25.0, 0.0))
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["1/5", "1/5", "1/5", "5/5"]


@pytest.mark.parametrize(
    "show", [lambda out, text: tell(text, out), lambda out, text: Display(out).line(text)]
)
def test_work_goes_on_when_nobody_reads(show):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as out:
        for text in ("first", "second"):
            show(out, text)


def test_on_a_terminal_a_table_is_drawn():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out = Terminal()
    with shown(out) as show:
        show(at(5, 25.0, 0.0))
    text = out.getvalue()
    assert "search" in text
    assert "5/5" in text or "3/3" in text
