"""How many bytes a worker takes, and when: weights, gradients, optimizer state, activations, logits, buffers.

What is shared out by which strategy is ZeRO's arithmetic (Rajbhandari et al. 1910.02054, section 5): with P parameters
and S workers that share, zero1 keeps K P / S bytes of state, zero2 of gradients too, fsdp (ZeRO-3) of weights too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from froude.config import Run
from froude.hardware.activations import (
    COPIES_EVALUATED,
    between_passes,
    is_autocast,
    logits,
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
    evaluated_windows,
)

#: Set aside on a GPU, by convention: the CUDA context and NCCL's buffers, and a part of what tensors take for what the
#: caching allocator can't use. torch's reserved exceeds its allocated memory by 2 to 6% in long runs of one shape.
CONTEXT_BYTES = 1.0e9
NCCL_BYTES = 1.0e9
FRAGMENTATION = 0.05


@dataclass(frozen=True)
class Item:
    """A part of a worker's bytes, and the arithmetic behind it."""

    name: str
    bytes: float
    how: str


@dataclass(frozen=True)
class Memory:
    """A worker's tensors by item, their sum at each moment of a step, and what is set aside beside them."""

    items: Mapping[str, Item]
    moments: Mapping[str, tuple[str, ...]]
    reserve: float
    host: float
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
    def columns(self) -> dict[str, float]:
        """Bytes by kind: what weights, gradients, state, activations, logits and buffers take at their largest."""
        kinds = {
            "weights": ("weights", "gathered", "copies"),
            "gradients": ("gradients",),
            "state": ("state",),
            "activations": ("activations", "a block again"),
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
        "forward ends": (*always, "gathered", "copies", "waiting", "activations", "half of the logits"),
        "backward begins": (*always, "gathered", "copies", "waiting", "activations", "logits"),
        "a block again": (*always, "gathered", "copies", "waiting", "activations", "a block again"),
        "backward ends": (*always, "gathered", "gradients", "reducing"),
        "update": (*always, "kept gradients", "updating"),
        "evaluation": (*always, "gathered", "evaluation"),
    }
    reserve = float(PROCESS_BYTES)
    found = Memory(items, moments, 0.0, 0.0, layout.tokens, layout.passes)
    if gpu:
        reserve = CONTEXT_BYTES + NCCL_BYTES * (place.workers > 1) + FRAGMENTATION * found.peak
    # A checkpoint leaves in the background from a copy in the host's memory.
    host = items["weights"].bytes + layout.state
    if run.compute.offload and gpu:
        host += layout.state
    return Memory(items, moments, reserve, host, layout.tokens, layout.passes)


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
        w, parameters = weight_bytes(run), sizes.parameters
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
                f"{self.layout.tokens:,} tokens a pass x ({kept.how} + {outside:,.0f} outside the blocks) bytes",
            ),
            Item("logits", taken, words),
            Item(
                "a block again",
                kept.again * self.layout.tokens,
                f"{self.layout.tokens:,} tokens x {kept.again:,.0f} bytes" if kept.again else "nothing is",
            ),
            Item("half of the logits", taken / 2, "before their gradients are there"),
            self._reducing(),
            self._updating(),
            self._evaluation(),
        ]

    def _state_words(self, state: float, on: str) -> str:
        settings, total = self.run.optimizer, self.sizes.state_bytes
        each = total / self.sizes.parameters
        words = f"{settings.name}: {each:.3g} bytes x {self.sizes.parameters:,} parameters{on}"
        return words if state or not total else f"{words}, in the host's memory"

    def _gathered(self) -> Item:
        """Weights that come from other workers while they are used (FSDP2: a unit's before and in each pass)."""
        sizes, w = self.sizes, weight_bytes(self.run)
        if self.layout.groups.shards == 1:
            return Item("gathered", 0.0, "weights are whole")
        if self.layout.is_small:
            return Item(
                "gathered",
                2.0 * w * sizes.parameters,
                f"{w} bytes x {sizes.parameters:,} parameters, and the buffer that they came in",
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
            f"{w} bytes x ({sizes.outside:,} outside the blocks + 2 blocks x {sizes.block:,}: one in use, one coming)",
        )

    def _copies(self) -> Item:
        """16-bit copies that autocast makes of matrices; backward reads them, so they stay with what is kept for it."""
        sizes = self.sizes
        if not is_autocast(self.run):
            return Item("copies", 0.0, "products read the weights themselves")
        if self.run.compute.checkpointing == "none":
            return Item("copies", 2.0 * sizes.products, f"2 bytes x {sizes.products:,} entries of matrices")
        held = sizes.block + sizes.readout
        return Item(
            "copies", 2.0 * held, f"2 bytes x {held:,} entries: the matrices of one block and the readout"
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
            waiting = Item(
                "waiting", count * each, f"{count} sums of slots wait, {of if self.layout.whole else on}"
            )
            ends = count * each + (whole if self.layout.whole else mine)
            end = Item("gradients", ends, f"{count} sums of slots and that of the last, {on}")
            return [waiting, end, Item("kept gradients", whole if shards == 1 else mine, on)]
        kept = Item("kept gradients", mine, on)
        if self.layout.passes == 1:
            return [Item("waiting", 0.0, "one pass a step: none yet"), self._last(mine, whole, on), kept]
        wait = mine if self.layout.shares_each_pass else whole
        waiting = Item("waiting", wait, on if wait == mine else f"{of}: whole until the last pass")
        return [waiting, self._last(wait, whole, waiting.how), kept]

    def _last(self, held: float, whole: float, how: str) -> Item:
        """At the end of a step's last backward pass: a unit's are whole until they are shared out."""
        w, sizes = weight_bytes(self.run), self.sizes
        if self.layout.groups.shards == 1:
            return Item("gradients", whole, how)
        if self.layout.is_small:
            return Item(
                "gradients", whole + whole / self.layout.groups.shards, f"{how}, and all of them whole"
            )
        unit = float(w) * sizes.outside
        return Item("gradients", held + unit, f"{how} + {w} x {sizes.outside:,} outside the blocks, whole")

    def _reducing(self) -> Item:
        """Buffers in which gradients travel."""
        w, sizes, groups = weight_bytes(self.run), self.sizes, self.layout.groups
        if groups.shards == 1 and groups.replicas == 1:
            return Item("reducing", 0.0, "nobody to send to")
        if groups.shards == 1:
            size = BUCKET + float(w) * sizes.largest
            return Item("reducing", size, f"a bucket of {BUCKET / 2**20:.0f} MiB and one tensor more")
        unit = (
            sizes.parameters if self.layout.is_small or self.layout.whole else max(sizes.outside, sizes.block)
        )
        twice = 2 if self.run.reduction == "exact" else 1
        return Item(
            "reducing",
            float(w) * twice * unit,
            f"{w} bytes x {unit:,} parameters of a unit" + " sent and received" * (twice == 2),
        )

    def _updating(self) -> Item:
        """What the optimizer makes for its update, beside its state."""
        sizes, shards = self.sizes, self.layout.groups.shards
        plain = shards > 1 or self.run.reduction == "exact"
        parts: list[tuple[float, float, str]] = []  # bytes of each, how many, of what
        if sizes.update == "matrices":
            parts.append((16, sizes.largest, "entries of the largest matrix, four copies"))
        elif sizes.update == "rows" and plain:
            parts.append((4, self._at_once(), "parameters: one tensor like the state"))
        if self.run.precision == "bf16_stochastic":
            parts.append((8, self._at_once(), "weights and gradients in fp32"))
        if self.run.compute.offload and self.gpu:
            each = sizes.state_bytes / sizes.parameters
            parts.append((each, self._at_once(), "parameters' state, brought"))
        return Item(
            "updating",
            sum(each * count for each, count, _ in parts),
            " + ".join(f"{each:.3g} bytes x {count:,.0f} {of}" for each, count, of in parts) or "in place",
        )

    def _at_once(self) -> float:
        """Parameters of a worker that are updated at once, where the optimizer takes a bucket at a time."""
        shards, unit = self.layout.groups.shards, self.run.optimizer.spec.unit
        mine, largest = self.sizes.parameters / shards, self.sizes.largest / shards
        if self.run.precision == "bf16_stochastic" and unit != "model":
            return min(mine, max(STOOD_IN, largest))
        if self.run.compute.offload and self.gpu and unit != "model":
            return min(mine, max(OFFLOADED, largest))
        return mine

    def _evaluation(self) -> Item:
        """Logits of a pass of an evaluation, and one block's tensors."""
        run = self.run
        windows = min(evaluated_windows(run, gpu=self.gpu), run.eval_windows)
        tokens = windows * run.model.context
        at_once = min(run.compute.loss_chunk or tokens, tokens)
        size = 4.0 * COPIES_EVALUATED * at_once * run.model.vocab
        size += 3 * weight_bytes(run) * tokens * run.model.width
        return Item(
            "evaluation",
            size,
            f"4 bytes x {COPIES_EVALUATED} copies x {at_once:,} tokens x {run.model.vocab:,} words, and the stream",
        )


def _waiting(layout: Layout) -> int:
    """The most sums of an exact run's tree that wait for a sibling while a worker computes its next slot."""
    slots, workers = layout.slots, layout.place.workers
    if layout.whole:
        return max(slot.bit_count() for slot in range(-(-slots // layout.groups.shards)))
    return max(slot.bit_count() for slot in range(0, slots, workers))
