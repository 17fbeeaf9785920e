"""What names the rows that a law was fitted to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import polars as pl

from froude.promote.imported_runs.history import ROLE

DRIFT = "lr_drift_"


def fingerprint(rows: pl.DataFrame) -> str:
    """SHA-256 over what a law sees of the rows (name, fingerprint, status, loss), whatever their order."""
    columns = ["run", "fingerprint", "status", "loss"]
    lines = sorted(json.dumps(row) for row in rows.select(columns).rows())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def same(kept: Mapping[str, str], now: Mapping[str, str], rows: Mapping[str, pl.DataFrame]) -> bool:
    """Whether a recipe's fingerprints are those of a study's rows, by this version or an earlier one.

    Earlier ones fitted all rows of a rate as one, and of tables did not look at horizons beyond the first.
    """
    first = {name: value for name, value in now.items() if not name.startswith(DRIFT)}
    drifts = {name: value for name, value in now.items() if name.startswith(DRIFT)}
    as_one = first | {name.replace(DRIFT, "lr_transfer_"): value for name, value in drifts.items()}
    versions = [dict(now), as_one]
    if all((rows[name]["stage"] == ROLE).all() for name in drifts):
        versions.append(first)
    return dict(kept) in versions
