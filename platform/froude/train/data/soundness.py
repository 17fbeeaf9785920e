"""Whether a corpus keeps the contract of `froude.train.api.Source`: windows that a model of the run can be given."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from froude.config import ConfigError, Run
from froude.train import api
from froude.train.data.documents import told_apart
from froude.train.data.mixture import Mixture, named, on_part
from froude.train.data.split import Split
from froude.user_code import call_user

WINDOWS = 64  # read of each split, spread evenly over it


def check_corpus(run: Run) -> list[str]:
    """Open both splits and read windows of them; what a user may want to know of them.

    ConfigError if a split can't be opened or read, is empty, or has windows of another shape, type or vocabulary.
    """
    notes = []
    for part in run.data.parts:  # each has windows looked at, however small its share of all
        with named(part):
            check_corpus(on_part(run, part))
    for split in ("train", "validation"):
        found = _check_split(run, split)
        if split == "validation" and found < run.eval_windows:
            notes.append(
                f"the validation split of {_name(run)} has {found} windows, fewer than the {run.eval_windows} of "
                "`eval_windows`: evaluations use them all"
            )
    if run.data.parts:
        notes.append(_mixed(run))
    return notes


def _mixed(run: Run) -> str:
    """What of a mixture is used how often."""
    source = api.build_source(run, "train")
    used = source.epochs(run) if isinstance(source, Mixture) else {}
    shares = [
        ", ".join(f"{name} {share:.4g}" for name, share in each.items() if share)
        for each in run.data.mixture()
    ]
    begins = [phase.tokens(run.tokens) for phase in run.data.phases]
    starts = [
        f"from {tokens:,} tokens on{' (beyond its end)' if tokens >= run.tokens else ''} "
        for tokens in begins
    ]
    told = "; ".join(f"{start}{share}" for start, share in zip(["", *starts], shares, strict=True))
    epochs = ", ".join(f"{name} {times:.3g}" for name, times in used.items())
    return f"mixture: {told}" + (f"; epochs in {run.tokens:,} tokens: {epochs}" if used else "")


def _check_split(run: Run, split: Split) -> int:
    """The split's number of windows."""
    name = f"the {split} split of {_name(run)}"
    source = call_user(f"opening {name}", api.build_source, run, split)
    length, context = getattr(source, "length", None), run.model.context
    if not isinstance(length, int | np.integer) or length < 1:
        raise ConfigError(
            f"`length` must be the number of windows, at least one, but that of {name} is {length!r}; use a longer "
            "corpus or a shorter `model.context`"
        )
    if not isinstance(getattr(source, "sha256", None), str):
        raise ConfigError(
            f"a source must have `sha256`, a string that names its content, but {name} has none; add one"
        )
    numbers = sorted({i * int(length) // WINDOWS for i in range(WINDOWS)} | {int(length) - 1})
    rows = [_read(source, number, 1, name, context) for number in numbers]
    if told_apart(source):  # the gate's leak check reads them in any case
        for number in numbers:
            _read(source, number, 1, name, context, "documents")
    for number, row in zip(numbers, rows, strict=True):
        check_ids(row, run, f"window {number} of {name}")
    pair = min(2, int(length))
    again = _read(source, numbers[-1] + 1 - pair, pair, name, context)
    if not np.array_equal(again[-1:], rows[-1]):
        raise ConfigError(
            f"read() must return the same window each time, whatever is read with it, but window {numbers[-1]} of "
            f"{name} changed; make a window a function of its number alone"
        )
    return int(length)


def _read(source: Any, first: int, n: int, name: str, context: int, what: str = "read") -> npt.NDArray[Any]:
    windows = call_user(f"{what}({first}, {n}) of {name}", getattr(source, what), first, n)
    found = np.asarray(windows)
    if found.shape != (n, context + 1) or found.dtype.kind not in "iu":
        raise ConfigError(
            f"{what}(first, {n}) must return integers [{n}, context + 1] = [{n}, {context + 1}], but that of {name} "
            f"returned {found.dtype} {list(found.shape)}; correct `data.source`"
        )
    return found


def check_ids(windows: npt.NDArray[Any], run: Run, where: str) -> None:
    """ConfigError unless all token ids are in the run's vocabulary; on a GPU such an id would end the process."""
    low, high = int(windows.min()), int(windows.max())
    if low < 0 or high >= run.model.vocab:
        odd = low if low < 0 else high
        remedy = f"set `model.vocab` to at least {high + 1}, or " if low >= 0 else ""
        raise ConfigError(
            f"token ids must be from 0 to {run.model.vocab - 1}, below `model.vocab`, but {where} holds {odd}; "
            f"{remedy}correct `data.source`"
        )


def _name(run: Run) -> str:
    return repr(run.data.path) if run.data.path else run.data.source
