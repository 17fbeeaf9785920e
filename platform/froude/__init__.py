"""froude: sweep small proxies, fit the laws, forecast the target run, launch it once, let it survive its cluster."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from froude import laws as laws
    from froude.config import Run as Run
    from froude.study import Study as Study

__version__ = "0.1.0"
__all__ = ["Run", "Study", "laws"]

_HOME = {"Run": "froude.config", "Study": "froude.study"}


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that `froude --help` stays quick."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name == "laws":
        return import_module("froude.laws")
    raise AttributeError(f"module 'froude' has no attribute {name!r}")
