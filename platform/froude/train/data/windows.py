"""Windows of tokens by number, and what every source of ours checks before it serves them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from froude.config import ConfigError
from froude.train.data.split import Split

if TYPE_CHECKING:
    from froude.config import Run, Scalar


class Windows:
    """Source of `length` windows [context + 1] of tokens: `context` inputs and, shifted by one, targets.

    `sha256` names the corpus and is the same for both splits. `read` gives read-only views.
    """

    def __init__(self, windows: npt.NDArray[Any], sha256: str) -> None:
        self._windows = windows
        self.length = len(windows)
        self.sha256 = sha256

    def read(self, first: int, n: int) -> npt.NDArray[Any]:
        """Windows first … first + n − 1 as uint8 or int64 [n, context + 1]; ValueError outside the source."""
        if not 0 <= first <= first + n <= self.length:
            raise ValueError(f"windows must lie in [0, {self.length}), but got first={first}, n={n}")
        return self._windows[first : first + n]


def cut(stream: npt.NDArray[Any], context: int, *, split: Split, corpus: str) -> npt.NDArray[Any]:
    """View [windows, context + 1] of a stream: window i starts at i * context; no input occurs twice."""
    if len(stream) <= context:
        raise ConfigError(
            f"the {split} split of {corpus} must hold at least one window of context + 1 = {context + 1} "
            f"bytes, but holds {len(stream)}; use a longer text or a shorter `model.context`"
        )
    return np.lib.stride_tricks.sliding_window_view(stream, context + 1)[::context]


def check_split(split: str) -> None:
    """ConfigError unless the split is one of the two."""
    if split not in get_args(Split):
        raise ConfigError(f'a split must be "train" or "validation", but got {split!r}; name one of the two')


def check_vocab(run: Run, emitted: int, source: str) -> None:
    """ConfigError when the model knows fewer tokens than the source emits."""
    if run.model.vocab < emitted:
        raise ConfigError(
            f"`model.vocab` must be at least {emitted} for {source}, but got {run.model.vocab}; "
            f"set `model.vocab` = {emitted}"
        )


def check_sha256(run: Run, found: str, corpus: str) -> None:
    """ConfigError when the run names another corpus than the one found."""
    if run.data.sha256 and run.data.sha256 != found:
        raise ConfigError(
            f"`data.sha256` must be the SHA-256 of {corpus}, {found}, but got {run.data.sha256}; "
            "restore the corpus that the run was planned with, or correct the key"
        )


def check_no_path(run: Run, source: str) -> None:
    """ConfigError when a run points a source that reads no file at one."""
    if run.data.path:
        raise ConfigError(
            f"`data.path` must be empty for {source}, which reads no file, but got {run.data.path!r}; "
            'to train on that file set `data.source` = "froude.train.data.text:TextFile"'
        )


def options(run: Run, defaults: Mapping[str, Scalar], source: str) -> dict[str, Any]:
    """`data.options` over the defaults; ConfigError for an unknown key or a type unlike the default's."""
    for key, value in run.data.options.items():
        if key not in defaults:
            near = difflib.get_close_matches(key, defaults, n=1, cutoff=0.4)
            hint = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(defaults) or 'none'}"
            raise ConfigError(f"unknown key `data.options.{key}` of {source}; {hint}")
        wanted = (int, float) if isinstance(defaults[key], float) else type(defaults[key])
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise ConfigError(
                f"`data.options.{key}` of {source} must be of type {type(defaults[key]).__name__}, "
                f"but got {value!r}; the default is {defaults[key]!r}"
            )
    return {key: type(default)(run.data.options.get(key, default)) for key, default in defaults.items()}
