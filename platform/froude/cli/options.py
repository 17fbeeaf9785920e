"""Values of options that consist of pairs, such as params=7e9,tokens=1.4e11."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Sequence
from pathlib import Path


def pairs(option: str, text: str, *, empty: bool = False) -> dict[str, str]:
    """`name=value,name=value` as a mapping; ConfigError for anything else. With `empty`, values may be empty."""
    from froude.config import ConfigError

    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = (piece.strip() for piece in part.partition("="))
        if not (separator and name and (value or empty)) or name in found:
            raise ConfigError(
                f"{option} must be name=value pairs with commas between them, each name once, but got {text!r}"
            )
        found[name] = value
    return found


def point(option: str, text: str, names: Sequence[str] = ("params", "tokens")) -> dict[str, float]:
    """Positive numbers under exactly these names; ConfigError otherwise."""
    from froude.config import ConfigError

    example = f"{option} params=7e9,tokens=1.4e11"
    given = pairs(option, text)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"write e.g. {example}"
            raise ConfigError(f"{option} takes {' and '.join(names)}, but got {name!r}; {hint}")
    numbers = {}
    for name in names:
        if name not in given:
            raise ConfigError(
                f"{option} needs {' and '.join(names)}, but {name} is missing; write e.g. {example}"
            )
        try:
            numbers[name] = float(given[name])
        except ValueError:
            numbers[name] = math.nan
        if not (math.isfinite(numbers[name]) and numbers[name] > 0):
            raise ConfigError(
                f"{option}: {name} must be a positive number, but got {given[name]!r}; write e.g. {example}"
            )
    return numbers


def check_plot(file: str, suffixes: Sequence[str]) -> None:
    """ConfigError unless --plot's picture can be written to `file`."""
    from froude.config import ConfigError
    from froude.section import listing

    place = Path(file).resolve()
    if place.suffix not in suffixes:
        raise ConfigError(f"--plot must be a {listing(suffixes)} file, but got {file!r}; rename it")
    if not place.parent.is_dir():
        raise ConfigError(
            f"--plot must be in a folder that exists, but got {file!r}; create it, or name another"
        )
    if place.is_dir() or not os.access(place if place.exists() else place.parent, os.W_OK):
        raise ConfigError(f"--plot must be a file that can be written, but got {file!r}; name another")
