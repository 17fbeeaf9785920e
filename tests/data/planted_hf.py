"""The adapter with bugs in what it derives from a config: what the coordinate check is to catch."""

from __future__ import annotations

from collections.abc import Mapping

from froude.train.api import Kind
from froude.train.hf import Model


class Readout(Model):
    """Calls the readout a hidden matrix, so that its rate shrinks with the width."""

    def kinds(self) -> Mapping[str, Kind]:
        return {**super().kinds(), "lm_head.weight": "hidden"}


class Hidden(Model):
    """Calls what writes into the residual stream a norm, so that its rate does not shrink with the width."""

    def kinds(self) -> Mapping[str, Kind]:
        kinds = dict(super().kinds())
        return {name: "norm" if name.endswith("down_proj.weight") else kind for name, kind in kinds.items()}
