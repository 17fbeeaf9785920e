"""Sixty small documents, for corpora and tokenizers."""

from __future__ import annotations

TEXTS = [
    f"In the beginning there were {n} ships, and each was the {n}th of her line.\n" * (n % 4 + 1)
    for n in range(60)
]
