"""Row groups that stay: as many as there is room for, each counted once."""

from __future__ import annotations

import numpy as np
import pytest

from froude.corpora.formats import parquet


def test_a_row_group_that_is_put_twice_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [parquet.Group(np.zeros(96, np.uint8), np.zeros(4, np.int8)) for _ in range(3)]
    monkeypatch.setattr(parquet, "CAPACITY", 300)
    cache = parquet._Cache()
    first, second, third = [("file", 0, "ids", number) for number in range(3)]
    for _ in range(4):
        cache.put(first, groups[0])
    for key, group in zip((second, third), groups[1:], strict=True):
        cache.put(key, group)
    assert [cache.get(key) is not None for key in (first, second, third)] == [True] * 3
    cache.put(("file", 0, "ids", 3), groups[0])
    assert cache.get(first) is None
