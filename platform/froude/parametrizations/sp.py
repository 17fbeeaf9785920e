"""The standard parametrization: nothing but the initialisation moves with width, so the best rate does."""

from __future__ import annotations

from froude.parametrizations.parametrization import ANY, Parametrization

SP = Parametrization(name="sp", label="SP", transfers=False, table={ANY: {}})
