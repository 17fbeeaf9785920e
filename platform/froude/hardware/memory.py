"""How many bytes a worker takes, and when: weights, gradients, optimizer state, activations, logits, buffers.

What is shared out by which strategy is ZeRO's arithmetic (Rajbhandari et al. 1910.02054, section 5): with P parameters
and S workers that share, zero1 keeps K P / S bytes of state, zero2 of gradients too, fsdp (ZeRO-3) of weights too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from froude.config import Run
from froude.hardware.activations import (
    between_passes,
    evaluated,
    is_autocast,
    logits,
    masks,
    outside_blocks,
    weight_bytes,
)
from froude.hardware.layout import Layout
from froude.hardware.sizes import (
    BUCKET,
    OFFLOADED,
    PROCESS_BYTES,
    STOOD_IN,
    Place,
    Sizes,
)

#: Set aside on a GPU, by convention: the CUDA context and NCCL's buffers, and a part of what tensors take for what the
#: caching allocator can't use. torch's reserved exceeds its allocated memory by 2 to 6% in long runs of one shape.
CONTEXT_BYTES = 1.0e9
NCCL_BYTES = 1.0e9
FRAGMENTATION = 0.05


@dataclass(frozen=True)
class Item:
    """A part of a worker's bytes, and the arithmetic behind it: up to a semicolon, words aside, it gives the bytes."""

    name: str
    bytes: float
    how: str


@dataclass(frozen=True)
class Memory:
    """A worker's tensors by item, their sum at each moment of a step, and what is set aside beside them."""

    items: Mapping[str, Item]
    moments: Mapping[str, tuple[str, ...]]
    reserved: Item
    in_host: Item
    tokens: int
    passes: int

    def at(self, moment: str) -> float:
        """Bytes of tensors at a moment."""
        return sum(self.items[name].bytes for name in self.moments[moment])

    @property
    def worst(self) -> str:
        """The moment of the peak."""
        return max(self.moments, key=self.at)

    @property
    def peak(self) -> float:
        """Bytes of tensors at most."""
        return self.at(self.worst)

    @property
    def needed(self) -> float:
        """Bytes that a device must have."""
        return self.peak + self.reserve

    @property
    def reserve(self) -> float:
        """Bytes that are set aside."""
        return self.reserved.bytes

    @property
    def host(self) -> float:
        """Bytes in the memory of the worker's host."""
        return self.in_host.bytes

    @property
    def columns(self) -> dict[str, float]:
        """Bytes by kind: what weights, gradients, state, activations, logits and buffers take at their largest."""
        kinds = {
            "weights": ("weights", "gathered", "copies"),
            "gradients": ("gradients",),
            "state": ("state",),
            "activations": ("activations", "masks", "a block again"),
            "logits": ("logits",),
            "buffers": ("reducing", "updating"),
        }
        return {kind: sum(self.items[name].bytes for name in names) for kind, names in kinds.items()}


def memory(run: Run, sizes: Sizes, place: Place, *, gpu: bool) -> Memory:
    """The bytes of one worker of a run whose workers are placed so."""
    layout = Layout(run, sizes, place)
    items = {item.name: item for item in _Told(layout, gpu).items()}
    always = ("weights", "state")
    moments = {
        "forward ends": (
            *always,
            "gathered",
            "copies",
            "waiting",
            "activations",
            "masks",
            "half of the logits",
        ),
        "backward begins": (*always, "gathered", "copies", "waiting", "activations", "masks", "logits"),
        "a block again": (*always, "gathered", "copies", "waiting", "activations", "masks", "a block again"),
        "backward ends": (*always, "gathered", "gradients", "reducing"),
        "update": (*always, "kept gradients", "updating"),
        "evaluation": (*always, "gathered", "evaluation"),
    }
    peak = max(sum(items[name].bytes for name in names) for names in moments.values())
    nccl = NCCL_BYTES * (place.workers > 1)
    reserved = Item("reserved", float(PROCESS_BYTES), f"{PROCESS_BYTES:,} of a process")
    if gpu:
        words = f"{CONTEXT_BYTES:,.0f} of the context" + f" + {NCCL_BYTES:,.0f} of NCCL" * bool(nccl)
        reserve = CONTEXT_BYTES + nccl + FRAGMENTATION * peak
        reserved = Item("reserved", reserve, f"{words} + {FRAGMENTATION:g} x {peak:,.0f} of tensors")
    # A checkpoint leaves in the background from a copy in the host's memory.
    there, state = 1 + bool(run.compute.offload and gpu), layout.state
    words = f"{items['weights'].bytes:,.0f} of weights + {there} x {state:,.0f} of state"
    in_host = Item("in the host", items["weights"].bytes + there * state, f"{words}; a checkpoint's source")
    if sizes.built_whole and (whole := 4.0 * sizes.parameters) > in_host.bytes:
        words = (
            f"4 bytes x {sizes.parameters:,} parameters; a worker builds the model before they share it out"
        )
        in_host = replace(in_host, bytes=whole, how=words)
    return Memory(items, moments, reserved, in_host, layout.tokens, layout.passes)


@dataclass(frozen=True)
class _Told:
    """The items of a layout."""

    layout: Layout
    gpu: bool

    @property
    def run(self) -> Run:
        return self.layout.run

    @property
    def sizes(self) -> Sizes:
        return self.layout.sizes

    def items(self) -> list[Item]:
        """All of them, in the order in which they are told."""
        run, sizes, shards = self.run, self.sizes, self.layout.groups.shards
        w, parameters, width = weight_bytes(run), sizes.parameters, run.model.width
        on = f" / {shards} workers that share" if shards > 1 else ""
        kept = between_passes(run, sizes, fused=self.gpu)
        outside = outside_blocks(run, fused=self.gpu)
        taken, words = logits(run, sizes, self.layout.tokens)
        state = 0.0 if run.compute.offload and self.gpu else self.layout.state
        return [
            Item("weights", w * parameters / shards, f"{w} bytes x {parameters:,} parameters{on}"),
            self._gathered(),
            self._copies(),
            *self._gradients(),
            Item("state", state, self._state_words(state, on)),
            Item(
                "activations",
                (kept.kept + outside) * self.layout.tokens,
                f"{self.layout.tokens:,} tokens a pass x ({kept.how} + {width:,} x {(outside - 8) / width:g} + 8 "
                "outside the blocks)",
            ),
            Item("masks", *masks(run, sizes, self.layout.windows, fused=self.gpu)),
            Item("logits", taken, words),
            Item(
                "a block again",
                kept.again * self.layout.tokens,
                f"{self.layout.tokens:,} tokens x ({kept.again_how})" if kept.again else "nothing is",
            ),
            Item("half of the logits", taken / 2, f"({words}) / 2; before their gradients are there"),
            self._reducing(),
            self._updating(),
            Item("evaluation", *evaluated(run, sizes, fused=self.gpu)),
        ]

    def _state_words(self, state: float, on: str) -> str:
        total = self.sizes.state_bytes
        words = (
            f"{total:,} bytes{on}; {self.run.optimizer.name}, {total / self.sizes.parameters:.3g} a parameter"
        )
        return words if state or not total else f"in the host's memory are {words}"

    def _gathered(self) -> Item:
        """Weights that come from other workers while they are used (FSDP2: a unit's before and in each pass)."""
        sizes, w = self.sizes, weight_bytes(self.run)
        if self.layout.groups.shards == 1:
            return Item("gathered", 0.0, "nothing, weights are whole")
        if self.layout.is_small:
            return Item(
                "gathered",
                2.0 * w * sizes.parameters,
                f"2 x {w} bytes x {sizes.parameters:,} parameters; they, and the buffer that they came in",
            )
        if self.layout.keeps_gathered:
            return Item(
                "gathered",
                float(w) * (sizes.parameters + sizes.block),
                f"{w} bytes x ({sizes.parameters:,} parameters + {sizes.block:,} of the last buffer)",
            )
        return Item(
            "gathered",
            float(w) * (sizes.outside + 2 * sizes.block),
            f"{w} bytes x ({sizes.outside:,} outside the blocks + 2 blocks x {sizes.block:,}); one in use, one coming",
        )

    def _copies(self) -> Item:
        """16-bit copies that autocast makes of matrices; backward reads them, so they stay with what is kept for it."""
        sizes = self.sizes
        if not is_autocast(self.run):
            return Item("copies", 0.0, "none, products read the weights themselves")
        if self.run.compute.checkpointing == "none":
            return Item("copies", 2.0 * sizes.products, f"2 bytes x {sizes.products:,} entries of matrices")
        held = sizes.block + sizes.readout
        return Item(
            "copies",
            2.0 * held,
            f"2 bytes x ({sizes.block:,} entries of a block + {sizes.readout:,} of the readout)",
        )

    def _gradients(self) -> list[Item]:
        """Those that wait when a pass's backward begins, those at its end, those that the update reads."""
        sizes, shards = self.sizes, self.layout.groups.shards
        w, whole = weight_bytes(self.run), float(weight_bytes(self.run)) * sizes.parameters
        if self.run.reduction == "exact":  # slots are added in fp32, whatever the weights are in
            w, whole = 4, 4.0 * sizes.parameters
        mine = whole / shards
        of = f"{w} bytes x {sizes.parameters:,} parameters"
        on = f"{of} / {shards} workers that share" if shards > 1 else of
        if self.run.reduction == "exact":
            count = _waiting(self.layout)
            each = whole if self.layout.whole else mine
            how = of if self.layout.whole else on
            waiting = Item("waiting", count * each, f"{count} sums of slots x {how}")
            ends = Item(
                "gradients", (count + 1) * each, f"({count} sums of slots + the last slot's 1) x {how}"
            )
            return [waiting, ends, Item("kept gradients", mine, on)]
        kept = Item("kept gradients", mine, on)
        if self.layout.passes == 1:
            return [Item("waiting", 0.0, "none yet in a step's only pass"), self._last(kept, of), kept]
        whole_ones = Item("waiting", whole, f"{of}; whole until the last pass")
        waiting = replace(kept, name="waiting") if self.layout.shares_each_pass else whole_ones
        return [waiting, self._last(waiting, of), kept]

    def _last(self, held: Item, of: str) -> Item:
        """At the end of a step's last backward pass: a unit's are whole until they are shared out."""
        w, sizes, shards = weight_bytes(self.run), self.sizes, self.layout.groups.shards
        whole = float(w) * sizes.parameters
        if shards == 1:
            return Item("gradients", whole, of)
        if self.layout.is_small:
            return Item("gradients", whole + whole / shards, f"{of} + {of} / {shards}; whole, and shared out")
        how, unit = held.how.partition(";")[0], float(w) * sizes.outside
        return Item(
            "gradients", held.bytes + unit, f"{how} + {w} bytes x {sizes.outside:,} outside the blocks"
        )

    def _reducing(self) -> Item:
        """Buffers in which gradients travel."""
        w, sizes, groups = weight_bytes(self.run), self.sizes, self.layout.groups
        if groups.shards == 1 and groups.replicas == 1:
            return Item("reducing", 0.0, "nothing, there is nobody to send to")
        if groups.shards == 1:
            size = BUCKET + float(w) * sizes.largest
            how = f"{BUCKET:,} bytes of a bucket + {w} bytes x {sizes.largest:,} of one tensor more"
            return Item("reducing", size, how)
        unit = (
            sizes.parameters if self.layout.is_small or self.layout.whole else max(sizes.outside, sizes.block)
        )
        twice = 2 if self.run.reduction == "exact" else 1
        return Item(
            "reducing",
            float(w) * twice * unit,
            f"{w} bytes x {unit:,} parameters of a unit" + " x 2; sent, and received" * (twice == 2),
        )

    def _updating(self) -> Item:
        """What the optimizer makes for its update, beside its state."""
        sizes, shards = self.sizes, self.layout.groups.shards
        plain = shards > 1 or self.run.reduction == "exact"
        at_once, how = self._at_once()
        parts: list[tuple[float, str]] = []
        if sizes.update == "matrices":
            parts.append((16.0 * sizes.largest, f"4 bytes x 4 copies x {sizes.largest:,} entries"))
        elif sizes.update == "rows" and plain:
            parts.append((4.0 * at_once, f"4 bytes x {how} of one tensor like the state"))
        if self.run.precision == "bf16_stochastic":
            parts.append((8.0 * at_once, f"8 bytes x {how} of wide copies of weights and gradients"))
        if self.run.compute.offload and self.gpu:
            each = sizes.state_bytes / sizes.parameters
            parts.append((each * at_once, f"{each:.6g} bytes x {how} of state that is brought"))
        words = " + ".join(words for _, words in parts)
        return Item("updating", sum(size for size, _ in parts), words or "nothing, the update is in place")

    def _at_once(self) -> tuple[float, str]:
        """Parameters of a worker that are updated at once, where the optimizer takes a bucket at a time."""
        shards, parameters = self.layout.groups.shards, self.sizes.parameters
        bucket = math.inf
        if self.run.optimizer.spec.unit != "model":
            if self.run.precision == "bf16_stochastic":
                bucket = STOOD_IN
            elif self.run.compute.offload and self.gpu:
                bucket = OFFLOADED
        most = max(bucket, self.sizes.largest / shards)
        if most < parameters / shards:
            return most, f"{most:,.0f} parameters of a bucket"
        on = f" / {shards} workers that share" if shards > 1 else ""
        return parameters / shards, f"{parameters:,} parameters{on}"


def _waiting(layout: Layout) -> int:
    """The most sums of an exact run's tree that wait for a sibling while a worker computes its next slot."""
    slots, workers = layout.slots, layout.place.workers
    if not layout.whole:
        return max(slot.bit_count() for slot in range(0, slots, workers))
    ends = [-(-rank * slots // workers) for rank in range(workers + 1)]
    return max(_nodes(begin, slot) for begin, end in pairwise(ends) for slot in range(begin, end))


def _nodes(begin: int, end: int) -> int:
    """The fewest nodes of a binary tree that cover these leaves."""
    count = 0
    while begin < end:
        widest = 1 << ((end - begin).bit_length() - 1)
        begin += min(widest, begin & -begin) if begin else widest
        count += 1
    return count
