"""Optimizers: one spec each, which a run names. A new one is a file and a line here."""

from __future__ import annotations

from froude.optimizers.adafactor import ADAFACTOR
from froude.optimizers.adam import ADAM, ADAMW, ADEMAMIX, RMSPROP
from froude.optimizers.averaged import SCHEDULE_FREE_ADAMW
from froude.optimizers.eigenbasis import SHAMPOO, SOAP
from froude.optimizers.eight_bit import ADAMW8BIT
from froude.optimizers.hyperball import ADAMH, MUONH
from froude.optimizers.lion import LION
from froude.optimizers.low_rank import APOLLO, GALORE_ADAMW
from froude.optimizers.sgd import SGD
from froude.optimizers.sophia import SOPHIA_G, SOPHIA_H
from froude.optimizers.spec import Average, Held, Option, Settings, Spec, moments
from froude.optimizers.spectral import MUON, NORMUON
from froude.section import ConfigError, listing
from froude.user_code import load

__all__ = ["OPTIMIZERS", "REST", "Average", "Held", "Option", "Settings", "Spec", "imported", "moments"]

#: By name, in the order in which they are listed.
OPTIMIZERS: dict[str, Spec] = {
    each.name: each
    for each in (
        ADAFACTOR,
        ADAM,
        ADAMH,
        ADAMW,
        ADAMW8BIT,
        ADEMAMIX,
        APOLLO,
        GALORE_ADAMW,
        LION,
        MUON,
        MUONH,
        NORMUON,
        RMSPROP,
        SCHEDULE_FREE_ADAMW,
        SGD,
        SHAMPOO,
        SOAP,
        SOPHIA_G,
        SOPHIA_H,
    )
}
#: What takes the parameters that an optimizer of matrices leaves.
REST = ADAMW


def imported(path: str) -> Spec:
    """The Spec at an import path; ConfigError if there is none."""
    found = load(path)
    if not isinstance(found, Spec):
        raise ConfigError(
            f"`optimizer.name` must be one of {listing(OPTIMIZERS)}, or the import path of a froude.optimizers.Spec, "
            f"but {path} is {type(found).__name__}"
        )
    return found
