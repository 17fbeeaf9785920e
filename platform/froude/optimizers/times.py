"""Settings that a time may stand for, since it holds for runs of other rates, batches and lengths.

- `timescale` for `weight_decay`: decay forgets weights over 1 / (lr * weight_decay) steps, which are the share
  tau = batch / (lr * weight_decay * tokens) of a run (Wang & Aitchison 2405.13698); batch and tokens in tokens, the
  batch of a ramp its first.
- `beta2_half_life` for `beta2`: after so many tokens a gradient counts half in the second moment, so beta2 =
  .5^(batch / it); Marek et al. 2507.07101. It is kept in .9 to .9999.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from froude.section import ConfigError

#: The number that each time stands for. A table has the one or the other.
TIMES = {"timescale": "weight_decay", "beta2_half_life": "beta2"}
#: The ends of beta2: below, Adam nears sign descent; above, a short run never fills its second moment.
LEAST_BETA2, MOST_BETA2 = 0.9, 0.9999


class Timed(Protocol):
    """A table of settings with times; 0: the number counts."""

    @property
    def lr(self) -> float: ...

    @property
    def timescale(self) -> float: ...

    @property
    def beta2_half_life(self) -> float: ...


def check_one_of_each(table: str, content: object) -> None:
    """ConfigError where a table, as it is written, has a time and the number that it stands for."""
    for time, number in TIMES.items():
        if isinstance(content, Mapping) and content.get(time) and number in content:
            raise ConfigError(
                f"`{table}.{time}` stands for `{table}.{number}`, but got both, {content[time]} and "
                f"{content[number]}; leave one out"
            )


def numbers(table: str, settings: Timed, batch: int, tokens: int) -> dict[str, float]:
    """What the times of a table come to in a run; ConfigError for a timescale of less than a step."""
    found = {}
    if settings.timescale:
        try:
            few = settings.timescale * tokens < batch
            decay = batch / (settings.lr * settings.timescale * tokens)
        except (ZeroDivisionError, OverflowError):
            few, decay = False, math.inf
        if few:
            raise ConfigError(
                f"`{table}.timescale` must be at least a step, {batch / tokens:.3g} of the run, but got "
                f"{settings.timescale}; raise it"
            )
        if decay == math.inf:
            raise ConfigError(
                f"`{table}.timescale` of {settings.timescale} comes to no finite decay at rate {settings.lr}; raise "
                "one of them"
            )
        found["weight_decay"] = decay
    if settings.beta2_half_life:
        found["beta2"] = min(max(0.5 ** (batch / settings.beta2_half_life), LEAST_BETA2), MOST_BETA2)
    return found


def cut_off(half_life: float, beta2: float) -> bool:
    """Whether a beta2 is an end at which half-lives (0: there is none) are cut off."""
    return half_life > 0 and beta2 in (LEAST_BETA2, MOST_BETA2)


def timescale(*, lr: float, weight_decay: float, batch: int, tokens: int) -> float:
    """Share of a run of `tokens` over which this decay, which is not 0, forgets weights."""
    return batch / (lr * weight_decay * tokens)


def replaced(key: str, value: object, changes: Mapping[str, Any]) -> str:
    """The key beside a dotted one that gives way to it: a time to its number, a number to its time; else empty.

    None gives way that is changed itself, so that both are an error.
    """
    table, _, last = key.rpartition(".")
    pairs = [*(TIMES.items() if value else ()), *((number, time) for time, number in TIMES.items())]
    other = dict(pairs).get(last, "")
    return other if table and f"{table}.{other}" not in changes else ""


def drop_numbers(table: dict[str, Any]) -> None:
    """Take the numbers that times stand for out of a table's content."""
    for time in TIMES.keys() & table.keys():
        del table[TIMES[time]]
