"""What to say of a sweep none of whose trials finished."""

from __future__ import annotations

from collections.abc import Mapping


def none_finished(counts: Mapping[str, int], where: str, *, table: bool = False) -> str:
    """The error where no trial finished, given how many have each status; empty if one finished, or none ran.

    Those of a `table` were trained elsewhere, and cannot be swept again.
    """
    ended = {status: counts.get(status, 0) for status in ("diverged", "failed")}
    if counts.get("finished") or not any(ended.values()):
        return ""
    said = " and ".join(f"{n} {status}" for status, n in ended.items() if n)
    if table:
        lost = (
            "its loss column has no finite number (or its status says diverged); is `--columns loss=…` right?"
        )
        why = lost if ended["diverged"] else "is `--columns status=…` right?"
        return f"no run of the table in {where} finished: {said}; {why}"
    remedy = (
        "correct what made them fail"
        if ended["failed"]
        else "lower the learning rates or lengthen the warmup"
    )
    return f"no trial of {where} finished: {said}; `froude status` says why; {remedy}, and sweep again"
