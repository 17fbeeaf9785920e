"""Whole matrices on owners: each is gathered on one rank, which updates it and gives everyone their rows back.

An update that needs a whole matrix is made by one process, so its bits do not depend on how many there are. Which rank
owns a matrix does, and nothing else: states are kept by the matrix's name, and whoever owns it next reads them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from froude.config import Optimizer
from froude.train import parallel
from froude.train.optimizers.composed import begun, make, step
from froude.train.optimizers.offloaded import brought, put_away
from froude.train.parallel import World
from froude.train.precision.rounding import Rounding


@dataclass(frozen=True)
class Matrix:
    """Rows of a parameter, its other dimensions taken as columns; `name` is "parameter" or "parameter.part".

    One row of a tensor of three dimensions or more, as an expert is, is a matrix itself.
    """

    name: str
    parameter: nn.Parameter
    rows: range
    group: dict[str, Any]

    @property
    def shape(self) -> tuple[int, int]:
        sizes = (len(self.rows), *self.parameter.shape[1:])
        rows, *columns = sizes[1:] if sizes[0] == 1 and len(sizes) > 2 else sizes
        return rows, math.prod(columns)

    def at(self, rank: int, ranks: int) -> range:
        """The rows that a rank has, as numbered in the parameter."""
        theirs = parallel.rows_of(self.parameter, rank, ranks)
        start = max(theirs.start, self.rows.start)
        return range(start, max(start, min(theirs.stop, self.rows.stop)))

    def home(self, ranks: int) -> tuple[float, int]:
        """The largest share of the rows that a rank has, and the first such rank."""
        each = len(parallel.rows_of(self.parameter, 0, ranks))
        some = range(self.rows.start // each, (self.rows.stop - 1) // each + 1)
        rank = max(some, key=lambda rank: len(self.at(rank, ranks)))
        return len(self.at(rank, ranks)) / len(self.rows), rank

    @property
    def cost(self) -> int:
        """Of an update: products of the matrix with a square one of its shorter side."""
        return math.prod(self.shape) * min(self.shape)


class Owned:
    """A matrix that this rank owns, with an optimizer of its own; its weight is here during a step only."""

    def __init__(
        self, matrix: Matrix, settings: Optimizer, rounding: Rounding | None = None, *, offload: bool = False
    ) -> None:
        self.matrix, self.settings, self.rounding, self.offload = matrix, settings, rounding, offload
        # One number seen everywhere: what an optimizer is made with has a shape and no memory.
        one = parallel.local(matrix.parameter).detach().new_empty(1)
        self.nothing = (one if rounding is None else one.float()).expand(matrix.shape)
        self.weight = nn.Parameter(self.nothing)
        self.optimizer = make(settings, "auto", [{**matrix.group, "params": [self.weight]}])

    @torch.no_grad()
    def step(self, weight: Tensor, gradient: Tensor) -> None:
        """Update the weight in place; one in bf16 is updated in fp32, and rounded."""
        if self.rounding is not None:
            whole = weight.float()
            self._update(whole, gradient.float())
            self.rounding(whole, weight, self.matrix.name)
        else:
            self._update(weight, gradient)

    def _update(self, weight: Tensor, gradient: Tensor) -> None:
        self.weight.data = weight
        self.weight.grad = gradient
        with brought([self.state()], weight.device) if self.offload else nullcontext():
            step(self.settings, self.optimizer)
        if (
            self.weight.data_ptr() != weight.data_ptr()
        ):  # a class from outside may have put another in its place
            weight.copy_(self.weight)
        self.weight.grad = None
        self.weight.data = self.nothing

    def state(self) -> dict[str, Tensor]:
        state = begun(self.settings, self.optimizer, self.weight)
        return put_away(state) if self.offload else state


class Owners:
    """All matrices of a model, dealt out among those ranks that together hold it."""

    def __init__(
        self,
        matrices: Sequence[Matrix],
        world: World,
        settings: Optimizer,
        rounding: Rounding | None = None,
        *,
        offload: bool = False,
    ) -> None:
        self.world, self.settings = world, settings
        dealt = deal(matrices, world.size)
        self.owned = [Owned(matrix, settings, rounding, offload=offload) for matrix in dealt[world.rank]]
        #: In each round every rank makes at most one update, so that few matrices are in memory at once.
        self.rounds = list(zip_longest(*dealt))

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for each in self.owned for group in each.optimizer.param_groups]

    def state(self) -> dict[str, Tensor]:
        return {
            f"{each.matrix.name}.{key}": tensor for each in self.owned for key, tensor in each.state().items()
        }

    def averaged(self) -> AbstractContextManager[None]:
        """Nothing is averaged: a spec does not allow it of whole matrices."""
        return nullcontext()

    @torch.no_grad()
    def step(self) -> None:
        for each, matrices in zip_longest(self.owned, self.rounds):
            weight = self._gather(matrices, lambda matrix: parallel.local(matrix.parameter))
            gradient = self._gather(matrices, _gradient)
            if each:
                each.step(weight, gradient)
            del gradient
            self._give_back(matrices, weight)

    def _gather(self, matrices: Sequence[Matrix | None], local: Callable[[Matrix], Tensor]) -> Tensor:
        """The whole of this rank's matrix, from what `local` has of each parameter; fresh memory at any world size."""
        mine = matrices[self.world.rank]
        if self.world.size == 1:
            assert mine is not None
            return local(mine)[mine.rows.start : mine.rows.stop].reshape(mine.shape).clone()
        sent = [
            local(matrix)[self._here(matrix)].flatten() if matrix else self._none(matrices)
            for matrix in matrices
        ]
        counts = self._counts(mine)
        found = sent[0].new_empty(sum(counts))
        lengths = [piece.numel() for piece in sent]
        dist.all_to_all_single(found, torch.cat(sent), counts, lengths, group=self.world.group)
        return found.view(mine.shape) if mine else found

    def _give_back(self, matrices: Sequence[Matrix | None], weight: Tensor) -> None:
        """Write this rank's rows of every updated matrix."""
        mine = matrices[self.world.rank]
        if self.world.size == 1:
            assert mine is not None
            place = parallel.local(mine.parameter)[mine.rows.start : mine.rows.stop]
            place.copy_(weight.view_as(place))
            return
        places = [parallel.local(m.parameter)[self._here(m)] if m else self._none(matrices) for m in matrices]
        counts = self._counts(mine)
        found = weight.new_empty(sum(place.numel() for place in places))
        sizes = [place.numel() for place in places]
        dist.all_to_all_single(found, weight.flatten(), sizes, counts, group=self.world.group)
        for place, rows in zip(places, found.split(sizes), strict=True):
            place.copy_(rows.view_as(place))

    def _counts(self, matrix: Matrix | None) -> list[int]:
        """How many of a matrix's numbers each rank has."""
        if matrix is None:
            return [0] * self.world.size
        width = math.prod(matrix.parameter.shape[1:])
        return [width * len(matrix.at(rank, self.world.size)) for rank in range(self.world.size)]

    def _here(self, matrix: Matrix) -> slice:
        """The rows of a matrix in this rank's part of its parameter."""
        rows = matrix.at(self.world.rank, self.world.size)
        first = parallel.rows_of(matrix.parameter, self.world.rank, self.world.size).start
        return slice(rows.start - first, rows.stop - first)

    def _none(self, matrices: Sequence[Matrix | None]) -> Tensor:
        some = next(matrix for matrix in matrices if matrix)
        return parallel.local(some.parameter).new_empty(0)


def deal(matrices: Sequence[Matrix], ranks: int) -> list[list[Matrix]]:
    """Each rank's matrices, the costliest first, each given to the rank that has least to do.

    Of those that cost the same it gets one of which it has more rows than others have, since these need not be sent;
    the parts of a fused tensor lie on few ranks. If there is none, it gets the one whose rows lie farthest apart.
    """
    dealt: list[list[Matrix]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for cost, group in groupby(sorted(matrices, key=lambda each: (-each.cost, each.name)), lambda m: m.cost):
        apart = sorted(((*each.home(ranks), each) for each in group), key=lambda home: home[0])
        at_home: defaultdict[int, list[Matrix]] = defaultdict(list)
        for _, rank, matrix in apart:
            at_home[rank].append(matrix)
        left, given = iter(apart), set[str]()
        for _ in apart:
            rank = load.index(min(load))
            own = at_home[rank]
            while own and own[-1].name in given:
                own.pop()
            chosen = own.pop() if own else next(each for *_, each in left if each.name not in given)
            given.add(chosen.name)
            dealt[rank].append(chosen)
            load[rank] += cost
    return dealt


def _gradient(matrix: Matrix) -> Tensor:
    gradient = matrix.parameter.grad
    return parallel.local(torch.zeros_like(matrix.parameter) if gradient is None else gradient)
