"""Slots, the fixed parts of a batch: which rank computes which, and the one tree in which what they yield is added.

Floating-point addition is not associative, so a sum over ranks depends on their number. Here every sum is one of slots:
leaf v of a binary tree is what slot v yields, and a node is its left child plus its right (or its left child where
there is no right one). Who computes a leaf, and in which order they come, then changes no bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

#: (level, index): covers those of the slots index << level … ((index + 1) << level) - 1 that exist.
Node = tuple[int, int]


@dataclass
class Rounds:
    """The slots of a step in rounds, each rank computing one slot a round, or none where there are too few.

    cyclic: rank r has slots r, r + world, …; block: it has a stretch of neighbours, whose subtrees it can add by
    itself. `now` is the round in progress.
    """

    slots: int
    rank: int
    world: int
    schedule: Literal["cyclic", "block"] = "cyclic"
    now: int = 0

    def __len__(self) -> int:
        return -(-self.slots // self.world)

    @property
    def is_last(self) -> bool:
        return self.now == len(self) - 1

    def of(self, rank: int) -> range:
        """The slots of a rank, in the order of its rounds."""
        if self.schedule == "cyclic":
            return range(rank, self.slots, self.world)
        return range(-(-rank * self.slots // self.world), -(-(rank + 1) * self.slots // self.world))

    @property
    def mine(self) -> range:
        return self.of(self.rank)

    def slot(self, rank: int) -> int | None:
        """What a rank computes in this round."""
        slots = self.of(rank)
        return slots[self.now] if self.now < len(slots) else None


class SlotTree:
    """Adds the tensors of all slots in the fixed tree, whatever the order in which they are handed in.

    A value is a list of tensors, added one by one. Of values that wait for their sibling at most one a level is kept.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.nodes: dict[Node, list[Tensor]] = {}

    def add(self, node: Node, value: list[Tensor], *, owned: bool = False) -> None:
        """Hand in a node; its tensors are copied if they must wait, unless the tree may keep and change them."""
        level, index = node
        while (1 << level) < self.slots:
            if ((index ^ 1) << level) < self.slots:  # else there is no sibling: promoted as it is
                sibling = self.nodes.pop((level, index ^ 1), None)
                if sibling is None:
                    break
                if value:
                    torch._foreach_add_(sibling, value)
                value, owned = sibling, True
            level, index = level + 1, index >> 1
        self.nodes[level, index] = value if owned else [tensor.clone() for tensor in value]

    def leave_buffers(self) -> None:
        """Copy what waits out of larger buffers of which it is a part, so that those can be freed."""
        for node, value in self.nodes.items():
            self.nodes[node] = [t.clone() if t.untyped_storage().nbytes() > t.nbytes else t for t in value]

    def take(self) -> list[tuple[Node, list[Tensor]]]:
        """The nodes that could not be added to one another, leftmost first; the tree is empty again."""
        found = sorted(self.nodes.items(), key=lambda item: item[0][1] << item[0][0])
        self.nodes = {}
        return found

    def root(self) -> list[Tensor]:
        """The sum over all slots; the tree is empty again."""
        ((_, value),) = self.take()
        return value


def wide(gradient: Tensor) -> Tensor:
    """A slot's gradient as slots are added: in fp32 where it is of bf16 weights."""
    return gradient.float() if gradient.dtype == torch.bfloat16 else gradient


def subtrees(slots: int, leaves: range) -> list[Node]:
    """The fewest nodes that cover a stretch of leaves, leftmost first."""
    tree = SlotTree(slots)
    for leaf in leaves:
        tree.add((0, leaf), [])
    return [node for node, _ in tree.take()]


#: Elements of fp64 worked on at once: half a core's cache, and on a GPU enough to make the launches worth while.
CHUNK, CHUNK_CUDA = 1 << 17, 1 << 24
#: From here on columns are summed as rows: elementwise either way, and quicker on long slabs.
NARROW = 16


def halved_sum(values: Tensor) -> Tensor:
    """Sums [rows] of fp64 values [rows, n], overwriting them: the second half is added to the first until one is left.

    Only elementwise additions, so a row's sum doesn't depend on which other rows are there; torch's own sums do, in the
    last bits.
    """
    n = values.shape[1]
    while n > NARROW:
        half = (n + 1) // 2
        values[:, : n - half] += values[:, half:n]
        n = half
    slab = values[:, :n].t().contiguous()
    while n > 1:
        half = (n + 1) // 2
        slab[: n - half] += slab[half:n]
        n = half
    return slab[0] if n else values.new_zeros(values.shape[0])


def row_squares(tensor: Tensor) -> Tensor:
    """Sum of squares of each row (first index) in fp64; a scalar is one row."""
    rows = tensor.detach().reshape(tensor.shape[0] if tensor.ndim else 1, math.prod(tensor.shape[1:]))
    found = torch.empty(rows.shape[0], dtype=torch.float64, device=tensor.device)
    step = max(1, (CHUNK_CUDA if tensor.is_cuda else CHUNK) // max(1, rows.shape[1]))
    for start in range(0, rows.shape[0], step):
        part = rows[start : start + step].double()
        found[start : start + step] = halved_sum(part.mul_(part))
    return found


def norm(tensor: Tensor) -> Tensor:
    """L2 norm in fp64 of a whole tensor, which one rank has: in the order in which torch adds, so at each length alike.

    A shard's is not for this: `row_squares`.
    """
    found: Tensor = torch.linalg.vector_norm(tensor.detach().flatten(), dtype=torch.float64)
    return found
