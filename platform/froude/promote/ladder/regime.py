"""Whether the proxies' losses are on one side of a change of regime, as a power law needs them to be.

Under E + A/params^alpha + B/tokens^beta each doubling of the tokens gains less than the one before. When a model begins
to copy from its context its loss falls at once (Olsson et al. 2209.11895, "induction heads"), sooner in larger models
and at another time on another seed; exponents read across that fall hold on neither side of it.
"""

from __future__ import annotations

import numpy as np
import polars as pl

#: By how much of the loss a later gain may exceed what the earlier pace would have given: branches of one trunk differ
#: by a quarter of a percent, and under a law the excess is negative, -1 to -4% for horizons √2 to 2 apart.
MORE = 0.02


def doubts(ladder: pl.DataFrame) -> tuple[str, ...]:
    """Return the reason why no law holds of branches off one trunk that fall faster later; nothing where none does.

    `ladder` has columns `trial, params, tokens, status, loss` (nats per token).
    """
    found, trials = [], 0
    finished = ladder.filter(pl.col("status") == "finished").sort("tokens")
    for (_, params), own in finished.group_by("trial", "params", maintain_order=True):
        if own["tokens"].n_unique() < 3:
            continue
        trials += 1
        tokens, loss = own["tokens"].log().to_numpy(), own["loss"].to_numpy()
        apart = np.diff(tokens)
        pace = -np.diff(loss) / np.where(apart > 0, apart, np.nan)
        excess = np.diff(pace) * apart[1:] / loss[2:]
        if np.nanmax(excess, initial=-np.inf) > MORE:
            found.append(int(params))
    if not found:
        return ()
    sizes = ", ".join(f"{n:,}" for n in sorted(set(found)))
    return (
        f"in {len(found)} of {trials} trunks the loss falls faster late than early (params {sizes}), as when a model "
        "begins to copy from its context: train all proxies beyond that, or leave out those before it",
    )
