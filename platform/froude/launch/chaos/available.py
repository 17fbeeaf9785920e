"""Which kinds of failure can be brought about here, and what the others lack."""

from __future__ import annotations

from collections.abc import Sequence

from froude.config import ConfigError
from froude.launch.chaos import KINDS
from froude.store import Location


def chosen(asked: Sequence[str], place: Location) -> tuple[list[str], dict[str, str]]:
    """The kinds to use for a study at `place`, and those left out, each with the reason.

    Without `asked` all possible kinds; ConfigError for a kind that is unknown, or asked for but not possible.
    """
    if unknown := [kind for kind in asked if kind not in KINDS]:
        raise ConfigError(f"--kinds must be among {', '.join(KINDS)}, but got {', '.join(unknown)}")
    lacking = {kind: why for kind in KINDS if (why := missing(kind, place))}
    if impossible := [kind for kind in asked if kind in lacking]:
        raise ConfigError("; ".join(f"{kind} {lacking[kind]}" for kind in impossible))
    if asked:
        return list(dict.fromkeys(asked)), {}
    return [kind for kind in KINDS if kind not in lacking], lacking


def missing(kind: str, place: Location) -> str:
    """What this kind lacks for a study at `place`, with the remedy; "" where nothing."""
    needs = KINDS[kind].needs
    return needs.missing(place) if needs else ""
