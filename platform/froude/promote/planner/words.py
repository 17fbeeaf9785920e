"""The words of a plan of next runs: its columns, numbers, and the parts of a forecast's variance."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

LINE = 110  # characters of a line of text
#: What is printed of a candidate: heading and width, and the text of a value.
COLUMNS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "params": ("    params", lambda value: short(value)),
    "tokens": ("    tokens", lambda value: short(value)),
    "width": ("  width", str),
    "seed": ("  seed", str),
    "ratio": ("  tok/param", lambda value: short(value)),
    "flops": ("     FLOPs", lambda value: short(value)),
    "shrink": ("  narrows", "{:.1%}".format),
    "closes": ("  closes", "{:.1%}".format),
}
#: Parts of a forecast's variance in words, and what lowers each.
WHAT = {
    "law": "is what the runs leave open of the law",
    "reach": "its drift far from them",
    "noise": "the target run's own noise",
    "batch": "what its tokens are worth at its batch",
    "precision": "what its precision costs",
    "rate": "what a mis-set peak rate costs",
}
HELPS = {
    "law": "other sizes and horizons, and seeds of them, help most",
    "reach": "larger and longer runs help most",
    "noise": "no proxy lowers that",
    "batch": "more runs of stage critical_batch, or a ladder nearer to its batch, help most",
    "precision": "more pairs of stage precision help most",
    "rate": "more runs of stage lr_transfer help most",
}


def weakest(shares: Mapping[str, float]) -> str:
    """Of what the variance is made, and so what would help."""
    parts = ", ".join(
        f"{float(f'{100 * shares[part]:.2g}'):g}% {WHAT[part]}" for part in WHAT if part in shares
    )
    most = max(shares, key=lambda part: shares[part])
    if "rate" not in shares:
        return f"Of the forecast's variance {parts}: {HELPS[most]}."
    return f"Of the variance of the target's loss about its forecast {parts}; weakest link: {most}, {HELPS[most]}."


def short(value: float) -> str:
    """Three digits, and exponents as one types them: 7e9."""
    return re.sub(r"e\+?(-?)0*", r"e\1", f"{value:.3g}")


def named(params: float, tokens: float) -> str:
    """A run by its size and horizon."""
    return f"{short(params)} parameters for {short(tokens)} tokens"
