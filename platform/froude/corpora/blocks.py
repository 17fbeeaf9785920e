"""Blocks of objects on S3: fetched several at a time, kept while there is room, asked for before they are needed."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

#: Bytes of a block. A window of 1,024 tokens is 2 to 4 KiB; a request takes as long for 64 KiB as for those.
BLOCK = 1 << 16
#: Bytes of blocks that a process keeps: two steps of half a million tokens take 64 MiB where no block serves twice.
CAPACITY = 1 << 28
#: Requests at a time: at 30 ms each a thousand a second.
REQUESTS = 32


class Blocked(Protocol):
    """An object that can fetch its blocks."""

    url: str
    stamp: int

    def fetch(self, number: int) -> bytes:
        """A block, from the store."""


class Cache:
    """The blocks used last, and those that are on their way."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = max(1, capacity // BLOCK)
        self._found: OrderedDict[tuple[str, int, int], Future[bytes]] = OrderedDict()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._pid = os.getpid()

    def get(self, file: Blocked, number: int) -> bytes:
        """A block; what the store raises, if it raises: then the block is asked for again the next time."""
        future = self._asked(file, number)
        try:
            return future.result()
        except Exception:  # not Ctrl-C: then the block still comes
            with self._lock:
                self._found.pop((file.url, file.stamp, number), None)
            raise

    def expect(self, file: Blocked, numbers: Iterable[int]) -> None:
        """Begin to fetch blocks."""
        for number in numbers:
            self._asked(file, number)

    def _asked(self, file: Blocked, number: int) -> Future[bytes]:
        if (
            self._pid != os.getpid()
        ):  # a forked child has neither its parent's threads nor their locks' owners
            self.__init__(self._capacity * BLOCK)  # type: ignore[misc]
        key = (file.url, file.stamp, number)
        with self._lock:
            if (future := self._found.get(key)) is not None:
                self._found.move_to_end(key)
                return future
            if self._pool is None:
                self._pool = ThreadPoolExecutor(REQUESTS, "shards")
            future = self._found[key] = self._pool.submit(file.fetch, number)
            while len(self._found) > self._capacity:
                self._found.popitem(last=False)
            return future


CACHE = Cache()
