"""From a study of proxies to the recipe of one target run: fits, gate, forecast and seal.

What notebooks and scripts use is here by name; the modules are the package's own business.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from froude.promote.band import averaged as averaged
    from froude.promote.forecast import Forecast as Forecast
    from froude.promote.forecast import score as score
    from froude.promote.gate import Check as Check
    from froude.promote.gate import Refused as Refused
    from froude.promote.monitor import alarms as alarms
    from froude.promote.promotion import promote as promote
    from froude.promote.recipe import Recipe as Recipe
    from froude.promote.recipe import read as read_recipe

_HOME = {
    "Check": "gate",
    "Forecast": "forecast",
    "Recipe": "recipe",
    "Refused": "gate",
    "alarms": "monitor",
    "averaged": "band",
    "promote": "promotion",
    "read_recipe": "recipe",
    "score": "forecast",
}
__all__ = [
    "Check",
    "Forecast",
    "Recipe",
    "Refused",
    "alarms",
    "averaged",
    "promote",
    "read_recipe",
    "score",
]


def __getattr__(name: str) -> Any:
    """Import the public names on first use: the command line needs few of them."""
    if name in _HOME:
        module = import_module(f"froude.promote.{_HOME[name]}")
        return getattr(module, "read" if name == "read_recipe" else name)
    raise AttributeError(f"module 'froude.promote' has no attribute {name!r}")
