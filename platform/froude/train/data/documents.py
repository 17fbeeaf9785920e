"""Which document each token is of, for models that attend within documents: beside the tokens, in one tensor.

Windows are int64 [n, context + 1], or with documents [n, 2, context + 1], so slots and micro-batches cut both alike.
What is asked of windows outside of this module is asked through it.
"""

from __future__ import annotations

import inspect

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from froude.config import ConfigError, Run


def beside(tokens: npt.NDArray[np.int64], documents: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Windows [n, 2, context + 1] of tokens and the documents' numbers, both [n, context + 1]."""
    return np.stack((tokens, documents), axis=1)


def inputs(windows: Tensor) -> tuple[Tensor, ...]:
    """What a forward pass is given of windows: tokens [n, context], and their documents if these are beside them."""
    return windows[..., :-1].unbind(1) if windows.ndim == 3 else (windows[:, :-1],)


def labels(windows: Tensor) -> Tensor:
    """The tokens that follow the inputs. The first of a document follows the last of the one before, and counts."""
    return tokens_of(windows)[:, 1:]


def tokens_of(windows: Tensor) -> Tensor:
    """The tokens of windows alone, [n, context + 1]."""
    return windows[:, 0] if windows.ndim == 3 else windows


def told_apart(source: object) -> bool:
    """Whether a source says which document each token is of."""
    return callable(getattr(source, "documents", None))


def check_source(run: Run, source: object, name: str) -> None:
    """ConfigError if the run wants documents of a source that does not tell them apart."""
    if run.model.documents and not told_apart(source):
        raise ConfigError(
            f"`model.documents` needs a source that tells documents apart (froude.train.api.Source), but {name} does "
            "not; use one of a format with documents (docs/guide/data.md), or leave the key out"
        )


def check_model(run: Run, model: nn.Module) -> None:
    """ConfigError if the run wants documents masked by a model that takes none."""
    if run.model.documents and "documents" not in inspect.signature(model.forward).parameters:
        raise ConfigError(
            "`model.documents` needs a model whose forward takes `documents`, but that of "
            f"{run.model.factory} does not; add the argument (froude.train.api.Model), or leave the key out"
        )
