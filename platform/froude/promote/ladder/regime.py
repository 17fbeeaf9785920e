"""Whether the proxies' losses are on one side of a change of regime, as a power law needs them to be.

Under E + A/params^alpha + B/tokens^beta each doubling of the tokens gains less than the one before. When a model begins
to copy from its context its loss falls at once (Olsson et al. 2209.11895, "induction heads"), sooner in larger models
and at another time on another seed; exponents read across that fall hold on neither side of it.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from froude.laws.stats.frames import Array

#: By how much of the loss a later gain may exceed what the earlier pace would have given: branches of one trunk differ
#: by a quarter of a percent, and under a law the excess is negative, -1 to -4% for horizons √2 to 2 apart.
MORE = 0.02
#: In ln tokens, less than √2: of checkpoints nearer than this to the one before, noise over their distance is no pace.
APART = 0.3
SHOWN = 4  # sizes that a reason lists


def doubts(ladder: pl.DataFrame) -> tuple[str, ...]:
    """Return the reason why no law holds of branches off one trunk that fall faster later; nothing where none does.

    `ladder` has columns `trial, params, tokens, status, loss` (nats per token).
    """
    found, trials = [], 0
    finished = ladder.filter(pl.col("status") == "finished").sort("tokens")
    for (_, params), own in finished.group_by("trial", "params", maintain_order=True):
        tokens, loss = _thinned(own["tokens"].log().to_numpy(), own["loss"].to_numpy())
        if tokens.size < 3:
            continue
        trials += 1
        apart = np.diff(tokens)
        pace = -np.diff(loss) / apart
        excess = np.diff(pace) * apart[1:] / loss[2:]
        if excess.max() > MORE:
            found.append(int(params))
    if not found:
        return ()
    sizes = ", ".join(f"{n:,}" for n in sorted(set(found))[:SHOWN])
    if (more := len(set(found)) - SHOWN) > 0:
        sizes += f" and {more} more"
    return (
        f"in {len(found)} of {trials} trunks the loss falls faster late than early (params {sizes}), as when a model "
        "begins to copy from its context: train all proxies beyond that, or leave out those before it",
    )


def _thinned(tokens: Array, loss: Array) -> tuple[Array, Array]:
    """The last point of a trunk, ln tokens and loss, and those before it that are APART from the next kept one."""
    kept: list[int] = []
    for number in reversed(range(tokens.size)):
        if not kept or tokens[kept[-1]] - tokens[number] >= APART:
            kept.append(number)
    return tokens[kept[::-1]], loss[kept[::-1]]
