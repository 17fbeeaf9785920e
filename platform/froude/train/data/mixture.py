"""A source made of several, in the weights that a run gives them and in an order of its own."""

from __future__ import annotations

import bisect
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from froude.config import ConfigError
from froude.mixtures import Part
from froude.train import api
from froude.train.api import Source
from froude.train.data import windows
from froude.train.data.documents import told_apart
from froude.train.data.order import mix, permute
from froude.train.data.split import Split

if TYPE_CHECKING:
    from froude.config import Run

Ints = npt.NDArray[np.int64]
#: Samples that are dealt at once.
PERIOD = 1 << 16


class Stretch(NamedTuple):
    """From sample `first` (from 0) on, parts have these shares of the samples; they sum to 1."""

    first: int
    shares: tuple[Fraction, ...]


@functools.lru_cache(maxsize=64)
def apportioned(shares: tuple[Fraction, ...], total: int) -> tuple[int, ...]:
    """The shares of `total`, each rounded up or down to a whole number, in sum `total`: by largest remainder."""
    ideal = [share * total for share in shares]
    counts = [int(each) for each in ideal]
    by_rest = sorted(range(len(ideal)), key=lambda part: counts[part] - ideal[part])
    for part in by_rest[: total - sum(counts)]:
        counts[part] += 1
    return tuple(counts)


@functools.lru_cache(maxsize=8)
def _dealt(key: tuple[int, ...], counts: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Of each sample of a period, its part, and the how-many-eth of that part in the period it is.

    The j-th of a part's n samples is somewhere in [j / n, (j + 1) / n) of the period, so at each of its samples every
    part has had its share but for a few, and what is next to what is random.
    """
    places = []
    for part, count in enumerate(counts):
        digest = hashlib.blake2b(",".join(map(str, (*key, part))).encode(), digest_size=8).digest()
        start = np.uint64(int.from_bytes(digest, "little"))
        words = mix(start + np.arange(count, dtype=np.uint64)) >> np.uint64(32)
        places.append((np.arange(count) + words / 2**32) / max(1, count))
    order = np.argsort(np.concatenate(places), kind="stable")
    parts = np.repeat(np.arange(len(counts)), counts)[order]
    turns = np.concatenate([np.arange(count) for count in counts])[order]
    return parts, turns


def _alike(one: Ints, other: Ints) -> Iterator[tuple[int, int, npt.NDArray[np.bool_]]]:
    """Each pair of values that come together, and where."""
    for first in np.unique(one).tolist():
        here = one == first
        for second in np.unique(other[here]).tolist():
            yield first, second, here & (other == second)


class Deal:
    """Which part each sample of a run is of, and the how-many-eth of that part: a function of seed and sample number.

    No sample is reached through those before it. The last stretch never ends.
    """

    def __init__(self, seed: int, stretches: Sequence[Stretch]) -> None:
        self._seed, self._stretches = seed, stretches
        self._firsts = np.array([stretch.first for stretch in stretches])
        self._before = [np.zeros(len(stretches[0].shares), dtype=np.int64)]
        for place, (stretch, after) in enumerate(pairwise(stretches)):
            self._before.append(self._before[-1] + self._within(place, after.first - stretch.first))

    def taken(self, samples: int) -> Ints:
        """How many of the first `samples` samples are of each part."""
        place = self._place(samples)
        return self._before[place] + self._within(place, samples - self._stretches[place].first)

    def at(self, samples: Ints) -> tuple[Ints, Ints]:
        """Part of each sample, and the number (from 0, over the run) that it is among those of its part."""
        places = np.searchsorted(self._firsts, samples, side="right") - 1
        periods, rests = np.divmod(samples - self._firsts[places], PERIOD)
        parts, turns = np.empty_like(samples), np.empty_like(samples)
        for place, period, mine in _alike(places, periods):
            had, part, turn = self._period(place, period)
            parts[mine] = part[rests[mine]]
            turns[mine] = (self._before[place] + had)[parts[mine]] + turn[rests[mine]]
        return parts, turns

    def _place(self, sample: int) -> int:
        return int(np.searchsorted(self._firsts, sample, side="right")) - 1

    def _period(self, place: int, period: int) -> tuple[Ints, Ints, Ints]:
        """How many of each part come before a period of a stretch; part and turn of each of its samples.

        What is rounded off in one period is made up in the next ones. A count never falls, as no share is below one in
        PERIOD.
        """
        shares = self._stretches[place].shares
        had, after = (np.array(apportioned(shares, count * PERIOD)) for count in (period, period + 1))
        return had, *_dealt((self._seed, place, period), tuple((after - had).tolist()))

    def _within(self, place: int, samples: int) -> Ints:
        """Of each part among a stretch's first samples."""
        period, rest = divmod(samples, PERIOD)
        had, part, _ = self._period(place, period)
        return had + np.bincount(part[:rest], minlength=had.size)


class Mixture:
    """The sources of `data.parts` as one: a source like any other, with an order of its own.

    A window's number is its number in its part, after those of the parts before it. A sample of a run is of the part
    that `Deal` says, the k-th of part c is window permute(k mod length) of it, and all of its windows come once before
    one comes again. The validation split has the parts' in the weights of the last phase, and each part's as a set.
    ConfigError for parts that can't be opened, a weight below one window a period, a limit of epochs that is too low.
    """

    def __init__(self, run: Run, split: Split) -> None:
        windows.check_split(split)
        windows.options(run, {}, "Mixture")
        windows.check_no_path(run, "Mixture")
        self.names = [part.name for part in run.data.parts]
        self.parts = {part.name: opened(run, part, split) for part in run.data.parts}
        self._lengths: Ints = np.array([source.length for source in self.parts.values()], dtype=np.int64)
        self._ends: Ints = np.cumsum(self._lengths)
        self._sources, self._bounds = list(self.parts.values()), [0, *self._ends.tolist()]
        # Shards that are local have none.
        self._from_afar: dict[int, Callable[[Sequence[int]], None]] = {
            part: expect
            for part, source in enumerate(self._sources)
            if (expect := getattr(source, "expect", None)) is not None
        }
        #: As Shards have it, where all parts tell documents apart.
        told = all(told_apart(source) for source in self._sources)
        self.documents: Callable[[int, int], Ints] | None = self._documents if told else None
        self._stretches = stretches(run, run.tokens)
        self.length, self.sha256 = int(self._ends[-1]), self._sha256(run)
        self._held: Ints | None = None
        self.bytes_per_token: float | None = None
        if split == "validation":
            self._held = self._chosen(run)
            self.length = len(self._held)
            self.bytes_per_token = self._bytes_per_token(run, self.parts_of(self._held))
        else:
            self._check_epochs(run)

    def _sha256(self, run: Run) -> str:
        parts = [[name, source.sha256] for name, source in self.parts.items()]
        shares = [[str(share) for share in table.values()] for table in run.data.shares]
        starts = [[phase.from_tokens, phase.from_share] for phase in run.data.phases]
        return hashlib.sha256(json.dumps([parts, shares, starts]).encode()).hexdigest()

    def _bytes_per_token(self, run: Run, counts: Mapping[str, int]) -> float | None:
        """Of so many windows of each part, which are equally long; None unless all of these parts say theirs."""
        total = 0.0
        for part in run.data.parts:
            with named(part):
                known = api.bytes_per_token(on_part(run, part), self.parts[part.name])
            if known is None and counts.get(part.name):
                return None
            total += counts.get(part.name, 0) * (known or 0)
        return total / sum(counts.values())

    def read(self, first: int, n: int) -> Ints:
        """Windows first … first + n − 1 as int64 [n, context + 1]; ValueError outside the source."""
        return self._ask("read", first, n)

    def _documents(self, first: int, n: int) -> Ints:
        return self._ask("documents", first, n)

    def _ask(self, what: str, first: int, n: int) -> Ints:
        if not 0 <= first <= first + n <= self.length:
            raise ValueError(f"windows must lie in [0, {self.length}), but got first={first}, n={n}")
        if self._held is None:
            return self._of_parts(what, first, n)
        rows = [self._of_parts(what, number, 1) for number in self._held[first : first + n].tolist()]
        return np.concatenate(rows) if rows else self._of_parts(what, 0, 0)

    def _of_parts(self, what: str, first: int, n: int) -> Ints:
        part = min(bisect.bisect_right(self._bounds, first) - 1, len(self.names) - 1)
        rows = []
        while True:
            count = min(n, self._bounds[part + 1] - first)
            ask = getattr(self._sources[part], what)
            rows.append(ask(first - self._bounds[part], count).astype(np.int64))
            first, n, part = first + count, n - count, part + 1
            if not n:
                return rows[0] if len(rows) == 1 else np.concatenate(rows)

    def numbers(self, seed: int, samples: Ints) -> Ints:
        """Windows that samples of a run are, counted from its start; of the training split."""
        parts, turns = _deal(seed, self._stretches).at(np.asarray(samples, dtype=np.int64))
        found = np.empty_like(parts)
        epochs, places = np.divmod(turns, self._lengths[parts])
        for part, epoch, mine in _alike(parts, epochs):
            length = int(self._lengths[part])
            found[mine] = permute(places[mine], length, (seed, epoch, part)) + (self._ends[part] - length)
        return found

    def expect(self, numbers: Sequence[int]) -> None:
        """Let the parts that read from afar begin to fetch these windows."""
        if not self._from_afar:
            return
        if self._held is not None:
            numbers = self._held[list(numbers)].tolist()
        wanted: dict[int, list[int]] = {}
        for number in numbers:
            part = bisect.bisect_right(self._bounds, number) - 1
            wanted.setdefault(part, []).append(number - self._bounds[part])
        for part in wanted.keys() & self._from_afar.keys():
            self._from_afar[part](wanted[part])

    def parts_of(self, numbers: Ints) -> dict[str, int]:
        """How many of these windows are of which part."""
        counts = np.bincount(np.searchsorted(self._ends, numbers, side="right"), minlength=len(self.names))
        return {name: int(count) for name, count in zip(self.names, counts, strict=True) if count}

    def sets(self) -> dict[str, Source]:
        """Each part's validation split by its name."""
        return dict(self.parts)

    def epochs(self, run: Run, tokens: int = 0) -> dict[str, float]:
        """How many times such a run uses each part's windows, of so many tokens in place of its own."""
        tokens = tokens or run.tokens
        taken = _deal(run.seed, stretches(run, tokens)).taken(tokens // run.model.context)
        return dict(zip(self.names, (taken / self._lengths).tolist(), strict=True))

    def _check_epochs(self, run: Run) -> None:
        for part in run.data.parts:
            if not part.epochs or (used := self.epochs(run)[part.name]) <= part.epochs:
                continue
            fits, over = 0, run.tokens // run.batch
            while over - fits > 1:
                half = (fits + over) // 2
                enough = self.epochs(run, half * run.batch)[part.name] <= part.epochs
                fits, over = (half, over) if enough else (fits, half)
            most = f"`tokens` to at most {fits * run.batch:,}, or " if fits else ""
            raise ConfigError(
                f"`data.parts` {part.name!r} may be used {part.epochs:g} times (`epochs`), but a run of {run.tokens:,} "
                f"tokens uses its {self.parts[part.name].length:,} windows {used:.4g} times; lower {most}its weight, "
                "or raise `epochs`"
            )

    def _chosen(self, run: Run) -> Ints:
        """Windows of the parts, evenly spread over each, as many as evaluations use and shares allow, in one order."""
        shares = self._stretches[-1].shares
        lengths = self._lengths.tolist()
        most = min(int(length / share) for length, share in zip(lengths, shares, strict=True) if share)
        counts = apportioned(shares, min(run.eval_windows, most))
        parts, turns = _dealt((0,), counts)
        places = turns * self._lengths[parts] // np.array(counts)[parts]
        return np.asarray(self._ends[parts] - self._lengths[parts] + places)


def opened(run: Run, part: Part, split: Split) -> Source:
    """The source of a part."""
    with named(part):
        source = api.build_source(on_part(run, part), split)
    if source.length < 1:
        raise ConfigError(
            f"a part must hold at least one window, but the {split} split of {part.name!r} has length {source.length}; "
            "use a longer corpus or a shorter `model.context`"
        )
    return source


@contextmanager
def named(part: Part) -> Iterator[None]:
    """What is wrong with a part is said with its name."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"part {part.name!r} of the mixture: {error}") from error


def on_part(run: Run, part: Part) -> Run:
    """The run on a part alone."""
    return run.replace(data=part.table)


def stretches(run: Run, tokens: int) -> tuple[Stretch, ...]:
    """The phases of a run of so many tokens in samples; each begins with the first at or past its token."""
    starts = [0, *(-(-phase.tokens(tokens) // run.model.context) for phase in run.data.phases)]
    for name, share in (pair for table in run.data.shares for pair in table.items()):
        if 0 < share * PERIOD < 1:
            raise ConfigError(
                f"a part's weight must be 0 or at least one in {PERIOD:,} of the mixture, but that of {name!r} is "
                f"{float(share):.3g} of it; raise it, or leave the part out"
            )
    return tuple(
        Stretch(start, tuple(table.values())) for start, table in zip(starts, run.data.shares, strict=True)
    )


@functools.lru_cache(maxsize=16)
def _deal(seed: int, stretches: tuple[Stretch, ...]) -> Deal:
    return Deal(seed, stretches)
