"""Optimizers: one spec each, which a run names. A new one is a file and a line here."""

from __future__ import annotations

from froude.optimizers.adamw import ADAMW
from froude.optimizers.lion import LION
from froude.optimizers.muon import MUON
from froude.optimizers.sgd import SGD
from froude.optimizers.spec import Held, Option, Settings, Spec, moments

__all__ = ["OPTIMIZERS", "REST", "Held", "Option", "Settings", "Spec", "moments"]

#: By name, in the order in which they are listed.
OPTIMIZERS: dict[str, Spec] = {each.name: each for each in (ADAMW, LION, MUON, SGD)}
#: What takes the parameters that an optimizer of matrices leaves.
REST = ADAMW
