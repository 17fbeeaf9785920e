"""What a check of a stored run comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from froude.config import ConfigError

#: Told what is being done, and the share of it that is done.
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Verdict:
    """One check: what must hold, whether it does (None: it can't be told from here), and what was seen."""

    name: str
    passed: bool | None
    seen: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def judged(name: str, verdicts: Iterator[Verdict]) -> Iterator[Verdict]:
    """The verdicts; what is stored in a form that no writer leaves, or is gone, fails the check `name` alone."""
    try:
        yield from verdicts
    except ConfigError:
        raise
    except (FileNotFoundError, pl.exceptions.PolarsError) as error:
        yield Verdict(name, False, f"its part can't be read: {error}")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        yield Verdict(name, False, f"what is stored can't be read: {type(error).__name__}: {error}")
