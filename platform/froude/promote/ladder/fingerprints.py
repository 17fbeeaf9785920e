"""What names the rows that a law was fitted to."""

from __future__ import annotations

import hashlib
import json

import polars as pl


def fingerprint(rows: pl.DataFrame) -> str:
    """SHA-256 over what a law sees of the rows (name, fingerprint, status, loss), whatever their order."""
    columns = ["run", "fingerprint", "status", "loss"]
    lines = sorted(json.dumps(row) for row in rows.select(columns).rows())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
