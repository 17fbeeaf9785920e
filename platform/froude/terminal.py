"""What a terminal is given of texts that somebody else wrote."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text without what is no character to be seen: escape sequences would colour, move or rename a terminal."""
    return "".join(mark if mark.isprintable() else "\N{REPLACEMENT CHARACTER}" for mark in text)
