"""Figures as inline SVG."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import matplotlib as mpl

from froude.report.svg import ACTUAL, RAMP, VARIABLES, figure, inline


def drawn(name: str) -> str:
    with figure(4, 3) as drawing:
        axes = drawing.subplots()
        axes.plot([1, 2], [1, 2], "o-", color=ACTUAL, label="a < b & c")
        axes.fill_between([1, 2], [0, 1], color=RAMP[0], alpha=0.2)
        axes.legend()
        return inline(drawing, name, 'what "it" shows')


def test_the_svg_is_well_formed_and_says_what_it_shows() -> None:
    root = ElementTree.fromstring(drawn("one"))
    assert root.get("role") == "img"
    assert root.get("aria-label") == 'what "it" shows'
    assert "a < b & c" in "".join(root.itertext())


def test_colours_are_the_pages_and_the_font_too() -> None:
    svg = drawn("one")
    assert {"var(--actual)", "var(--ink)", "var(--muted)", "var(--grid)", "var(--size-0)"} <= set(
        re.findall(r"var\(--[\w-]+\)", svg)
    )
    assert not [colour for colour in VARIABLES if colour in svg]
    assert "#" not in re.sub(r"(href=\"|url\()#", "", svg)
    assert "DejaVu" not in svg


def test_nothing_in_it_reaches_the_rest_of_the_page() -> None:
    one, two = drawn("one"), drawn("two")
    assert "<style" not in one
    ids = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in (one, two)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for svg, own in zip((one, two), ids, strict=True):
        assert set(re.findall(r'(?:href="|url\()#([^")]+)', svg)) <= own


def test_drawing_twice_gives_the_same_and_leaves_settings_alone() -> None:
    before = dict(mpl.rcParams)
    assert drawn("one") == drawn("one")
    assert dict(mpl.rcParams) == before
