"""Numbers as a reader wants them: short, with units, never false digits."""

from __future__ import annotations

import math
from collections.abc import Sequence

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
NOTHING = "–"


def loss(value: float | None) -> str:
    """Nats per token, to a thousandth."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value:.3f}"


def count(value: float | None, digits: int = 3) -> str:
    """A count in k, M, B (10⁹), T or P (10¹⁵), with `digits` significant digits."""
    if value is None or not math.isfinite(value):
        return NOTHING
    for unit, name in _UNITS:
        if abs(value) >= unit * (1 - 0.5 * 10**-digits):
            return f"{_significant(value / unit, digits)}{name}"
    return _significant(value, digits)


def whole(value: float | None) -> str:
    """A whole number with thin spaces between thousands."""
    return (
        NOTHING if value is None or not math.isfinite(value) else f"{round(value):,}".replace(",", "\u2009")
    )


def rate(value: float | None) -> str:
    """A learning rate, three significant digits, with an exponent below 10⁻³."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0 or abs(value) >= 1e-3:
        return _significant(value, 3)
    digits, exponent = f"{value:.2e}".split("e")
    return f"{digits}×10{str(int(exponent)).translate(_SUPERSCRIPT)}"


def number(value: float | None, digits: int = 3) -> str:
    """Any number with `digits` significant digits, a true minus sign and no exponent between 10⁻³ and 10⁵."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value and not 1e-3 <= abs(value) < 1e5:
        digits_, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{digits_}×10{str(int(exponent)).translate(_SUPERSCRIPT)}".replace("-", "−", 1)
    return _significant(value, digits).replace("-", "−")


def signed(value: float | None, decimals: int = 2) -> str:
    """A number with its sign, zero without."""
    if value is None or not math.isfinite(value):
        return NOTHING
    text = f"{value:+.{decimals}f}".replace("-", "−")
    return text[1:] if not text.strip("+−0.") else text


def percent(proportion: float | None, decimals: int = 1) -> str:
    """A proportion as a signed percentage."""
    return (
        NOTHING
        if proportion is None
        else f"{signed(100 * proportion, decimals)}%".replace(f"{NOTHING}%", NOTHING)
    )


def seconds(value: float | None) -> str:
    """A duration in seconds, minutes or hours."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value < 90:
        return f"{value:.1f} s"
    if value < 5400:
        return f"{value / 60:.1f} min"
    return f"{value / 3600:.1f} h"


def power_of_two(value: float) -> str:
    """The nearest tenth of an octave, as 2⁻⁷ or 2⁻⁷·⁵."""
    exponent = round(math.log2(value), 1)
    text = f"{exponent:g}".translate(_SUPERSCRIPT).replace(".", "·")
    return f"2{text}"


def listing(words: Sequence[str], last: str = "and") -> str:
    """Words in a row: a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}" if words else ""


def plural(n: int, one: str, many: str = "") -> str:
    """The number with its noun."""
    return f"{n} {one if n == 1 else many or one + 's'}"


def _significant(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded value: 0.9996 is 1.00
    return f"{value:.{max(digits - 1 - exponent, 0)}f}"
