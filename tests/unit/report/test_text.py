"""How numbers are written."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from froude.report import text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (96, "96.0"),
        (998_400, "998k"),
        (999_999, "1.00M"),
        (1_048_576, "1.05M"),
        (7e9, "7.00B"),
        (None, "–"),
    ],
)
def test_counts(value: float | None, expected: str) -> None:
    assert text.count(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0112, "0.0112"), (0.011, "0.0110"), (3e-4, "3.00×10⁻⁴"), (0, "0"), (math.nan, "–")],
)
def test_rates(value: float, expected: str) -> None:
    assert text.rate(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(-0.004, "−0.00"), (0.0, "0.00"), (1.257, "+1.26"), (-1.0, "−1.00"), (math.inf, "–")],
)
def test_signs(value: float, expected: str) -> None:
    assert text.signed(value) == expected.replace("−0.00", "0.00")


def test_percentages_and_durations_and_powers() -> None:
    assert text.percent(0.0042) == "+0.4%"
    assert text.percent(math.nan) == "–"
    assert text.seconds(16.93) == "16.9 s"
    assert text.seconds(600) == "10.0 min"
    assert text.seconds(7200) == "2.0 h"
    assert text.power_of_two(2**-7.5) == "2⁻⁷·⁵"
    assert text.power_of_two(2**-10) == "2⁻¹⁰"
    assert text.whole(998400) == "998\u2009400"


def test_listing() -> None:
    assert [text.listing(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
    assert text.plural(1, "check") == "1 check"
    assert text.plural(2, "check") == "2 checks"


@given(st.floats(min_value=1e-12, max_value=1e17))
def test_no_number_is_wrong_in_its_third_digit(value: float) -> None:
    written = text.number(value).split("×10")
    digits = "⁰¹²³⁴⁵⁶⁷⁸⁹"
    power = 0
    if len(written) == 2:
        sign = -1 if written[1].startswith("⁻") else 1
        power = sign * int("".join(str(digits.index(c)) for c in written[1].lstrip("⁻")))
    assert float(written[0]) * 10**power == pytest.approx(value, rel=6e-3)
