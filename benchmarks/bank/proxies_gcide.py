"""Search space of the bank's proxies on gcide."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from proxies import proxies

from froude.space import Space


def space(seed: int = 0) -> Space:
    return proxies("gcide", seed)
