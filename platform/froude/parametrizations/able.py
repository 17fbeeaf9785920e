"""Which optimizers a parametrization has rules for, and with which settings."""

from __future__ import annotations

from froude.optimizers import OPTIMIZERS
from froude.optimizers.section import Optimizer
from froude.parametrizations import PARAMETRIZATIONS
from froude.parametrizations.parametrization import Parametrization
from froude.section import ConfigError, listing


def check(rules: Parametrization, optimizer: Optimizer) -> None:
    """ConfigError if a parametrization has no rules for an optimizer with these settings."""
    if not rules.covers(*optimizer.families):
        able = [f'"{p.name}"' for p in PARAMETRIZATIONS.values() if p.covers(*optimizer.families)]
        raise ConfigError(
            f'`parametrization` must be {listing(able)} with {optimizer.name}, but got "{rules.name}", whose rules '
            f"here are only for {listing(_covered(rules))}"
        )
    spec = optimizer.spec
    if not rules.transfers and optimizer.decay_width != "constant":
        raise ConfigError(
            f'`optimizer.decay_width` must be "constant" under {rules.name}, which has no rule for width, but got '
            f'"{optimizer.decay_width}"; leave it out'
        )
    if rules.transfers and spec.coupled and not spec.proportional and optimizer.weight_decay:
        raise ConfigError(
            f"`optimizer.weight_decay` must be 0 with {optimizer.name} under {rules.name}, which has no rule for a "
            f"decay that is added to the gradient, but got {optimizer.weight_decay}; set it to 0, or use adamw"
        )


def check_heads(rules: Parametrization, optimizer: Optimizer) -> None:
    """ConfigError if the optimizer's updates of single heads move with the width where rates are not to."""
    spec = optimizer.spec
    if rules.transfers and "heads" in spec.options and optimizer.option("heads"):
        # A head is [head_dim, width]: only that scale follows its ratio, which falls as the width grows.
        scale = str(optimizer.option("scale")) if "scale" in spec.options else ""
        if scale != "spectral":
            of = f' of scale "{scale}"' if scale else ""
            raise ConfigError(
                f"`optimizer.options.heads` must be false under {rules.name} with {optimizer.name}{of}, whose updates "
                'of single heads grow with the width, but got true; leave it out, or use muon of scale "spectral"'
            )


def _covered(rules: Parametrization) -> list[str]:
    return [name for name in OPTIMIZERS if rules.covers(*Optimizer(name=name).families)]
