"""How long a step takes on a device: a roofline over products, memory and what workers send (Williams et al. 2009).

What it leaves out: launches of small kernels, stragglers, evaluations, checkpoints, restarts. `ERROR` is what it was
off by against published speeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from froude.config import Run
from froude.hardware.activations import bytes_of_a_block, is_autocast, weight_bytes
from froude.hardware.layout import Layout
from froude.hardware.sizes import Place, Sizes
from froude.hardware.tables import Device

#: Factor within which all 18 published speeds lie that benchmarks/plan_memory.md compares.
ERROR = 1.5
#: Part of a link's bandwidth that NCCL's collectives reach with large messages, by convention.
COLLECTIVES = 0.8
#: Bytes a second that pinned copies between a GPU and its host reach: about 25 of the 31.5 GB/s of PCIe 4.0 x16.
HOST_LINK = 25e9
#: Times that a pass moves what it keeps: written, read by the next kernel, read by backward, its gradient both.
MOVES = 5
#: How much faster a step of an 8B model is in fp8 than in bf16, compiled (torchtitan, benchmarks/llama3_h100_202412).
FP8_GAIN = 1.28
#: Forward passes of all blocks that backward makes again.
AGAIN = {"none": 0, "blocks": 1, "sqrt": 2, "selective": 0}
SECONDS_A_DAY = 86_400


@dataclass(frozen=True)
class Sent:
    """Seconds of sending that come `times` a step, each beside so many seconds of computing, in which they hide."""

    seconds: float
    beside: float = 0.0
    times: int = 1

    @property
    def waited(self) -> float:
        """Seconds of a step in which nothing is computed meanwhile."""
        return self.times * max(self.seconds - self.beside, 0.0)


@dataclass(frozen=True)
class Step:
    """Seconds of a step of one worker by what takes them, each with the arithmetic behind it; the model's own FLOPs.

    `sending` is all of it; `sent` says how much of that is waited for.
    """

    products: float
    traffic: float
    sending: float
    sent: Sequence[Sent]
    updating: float
    tokens: int
    model_flops: float
    peak_flops: float
    how: Mapping[str, str]

    @property
    def seconds(self) -> float:
        """Computing, what of sending is waited for, and the update."""
        return self.products + self.traffic + sum(each.waited for each in self.sent) + self.updating

    @property
    def tokens_per_second(self) -> float:
        """Of all workers."""
        return self.tokens / self.seconds

    @property
    def mfu(self) -> float:
        """The model's FLOPs, without what is computed again, over the dense peak (2204.02311, appendix B)."""
        return self.model_flops / self.seconds / self.peak_flops

    @property
    def bound(self) -> str:
        """What takes the most time."""
        parts = {
            "products": self.products,
            "memory": self.traffic,
            "network": self.sending,
            "update": self.updating,
        }
        return max(parts, key=lambda name: parts[name])


def step(run: Run, sizes: Sizes, place: Place, device: Device) -> Step:
    """A step of the run's `batch`, before any ramp; ConfigError if the device does not have the run's precision."""
    precision: str = run.precision
    peak = device.peak(precision)
    plain = run.schedule.model_copy(update={"ramp": ()})
    layout = Layout(run.model_copy(update={"schedule": plain}), sizes, place)
    tokens = layout.busiest
    each, shards = sizes.flops_per_token * sizes.passes, layout.groups.shards
    forward, passes = (sizes.flops_per_token - 6.0 * sizes.readout) / 3, AGAIN[run.compute.checkpointing]
    gain = FP8_GAIN if precision == "fp8" else 1.0
    rate, bandwidth = peak * device.sustained * gain, device.bandwidth * 1e9
    moved, moved_how = _moved(run, sizes, layout, gpu=device.is_gpu)
    update = (2 * (weight_bytes(run) * sizes.parameters + sizes.state_bytes) + 4 * sizes.parameters) / shards
    products = (each + passes * forward) * tokens / rate
    shared, added, sending_how = _sending(run, layout, device)
    sent = _sent(layout, shared, added, products + moved / bandwidth, passes, gpu=device.is_gpu)
    brought = 2 * sizes.state_bytes / shards if run.compute.offload and device.is_gpu else 0.0
    on = f" / {shards} workers that share" if shards > 1 else ""
    bus = f" + 2 x {sizes.state_bytes:,} of state{on} / {HOST_LINK:.5g} between GPU and host" * bool(brought)
    again_how = f" + {tokens:,} x {passes} x {forward:.5g} of blocks again" * bool(passes)
    how = {
        "products": f"({tokens:,} tokens x {each:.5g} FLOPs of the model{again_how}) / ({peak:.5g} a second x "
        f"{device.sustained:g}{f' x {gain:g}' if gain > 1 else ''}); of the peak it sustains a part"
        + ", and gains by the narrow products"
        * (gain > 1),
        "memory": f"({moved_how}) / {bandwidth:.5g} bytes a second",
        "sending": sending_how,
        "update": f"(2 x ({weight_bytes(run)} bytes x {sizes.parameters:,} of weights + {sizes.state_bytes:,} of "
        f"state) + 4 x {sizes.parameters:,} of gradients){on} / {bandwidth:.5g} a second{bus}",
    }
    return Step(
        products,
        moved / bandwidth,
        shared + added,
        sent,
        update / bandwidth + brought / HOST_LINK,
        run.batch,
        each * run.batch / place.workers,
        peak,
        how,
    )


def _moved(run: Run, sizes: Sizes, layout: Layout, *, gpu: bool) -> tuple[float, str]:
    """Bytes between memory and the cores for activations, logits, and copies of weights; and how they come about.

    Each chunk of the logits adds a gradient like the readout to the sum so far: two are read, one is written.
    """
    tokens, passes = layout.busiest, layout.passes
    block = bytes_of_a_block(run, sizes, fused=gpu)
    moves = MOVES if run.compute.checkpointing == "none" else MOVES + 1
    kept = sizes.depth * block * moves
    words = MOVES * 4.0 * run.model.vocab
    moved = tokens * (kept + words)
    how = f"{tokens:,} tokens x ({sizes.depth} blocks x {block:,.0f} bytes x {moves} times + {run.model.vocab:,} words "
    how += f"x 4 bytes x {MOVES})"
    if is_autocast(run):
        moved += passes * 3 * 6.0 * sizes.products
        how += f" + {passes} passes x 18 x {sizes.products:,} of copies"
    if 0 < run.compute.loss_chunk < layout.tokens:
        chunks, each = -(-layout.tokens // run.compute.loss_chunk), 3 * weight_bytes(run)
        moved += float(passes * chunks * each * sizes.readout)
        how += f" + {passes} passes x {chunks:,} chunks x {each} bytes x {sizes.readout:,} of the readout's gradient"
    return moved, how


def _sending(run: Run, layout: Layout, device: Device) -> tuple[float, float, str]:
    """Seconds in which a worker sends, within what shares a model and between replicas, and how they come about.

    With S workers that share P parameters, each time that weights are gathered or gradients shared out a worker sends
    (S - 1) / S of them (1910.02054, section 7); R replicas add their shards up, 2 (R - 1) / R of each.
    """
    groups, place = layout.groups, layout.place
    whole = float(weight_bytes(run)) * layout.sizes.parameters
    within = device.link * 1e9 * COLLECTIVES, f"({device.link * 1e9:.5g} a second x {COLLECTIVES})"
    across = device.network * 1e9 * COLLECTIVES, f"{device.network * 1e9:.5g} a second x {COLLECTIVES})"
    ring = min(within, (place.per_node * across[0], f"({place.per_node} adapters x {across[1]}"))
    times, shared, added, words = layout.gathers + layout.reductions, 0.0, 0.0, []
    if times:
        rate, how = ring if groups.shards > place.per_node else within
        shared = times * whole * (groups.shards - 1) / groups.shards / rate
        words.append(f"{times} times x {whole:,.0f} bytes x {groups.shards - 1} / {groups.shards} / {how}")
    if groups.replicas > 1:
        alone = across[0], f"({across[1]}"
        rate, how = within if place.nodes == 1 else ring if groups.shards == 1 else alone
        added = 2 * whole / groups.shards * (groups.replicas - 1) / groups.replicas / rate
        of = f" / {groups.shards} that share" if groups.shards > 1 else ""
        words.append(f"2 x {whole:,.0f} bytes{of} x {groups.replicas - 1} / {groups.replicas} / {how}")
    links = f"; collectives reach {COLLECTIVES} of a link" if words else ""
    return shared, added, " + ".join(words) + links if words else "nothing, there is nobody to send to"


def _sent(
    layout: Layout, shared: float, added: float, computing: float, again: int, *, gpu: bool
) -> Sequence[Sent]:
    """What is sent beside what: as train/parallel.py has it, on a GPU, where sending has a stream of its own.

    Replicas of one worker add gradients up after the backward pass, and a model in one unit of FSDP2 is gathered before
    the forward pass and shared out after backward, so nothing hides. Of larger ones FSDP2 sends a block while it
    computes another: in all passes, or, where weights stay gathered, in the first forward pass, and gradients in the
    last backward pass (zero1) or in each (zero2).
    """
    times = layout.gathers + layout.reductions
    if not gpu or not times or layout.is_small:
        return [Sent(each) for each in (shared, added) if each]
    passes = layout.passes
    each = computing / passes
    if not layout.keeps_gathered:
        last = [Sent((shared / passes) + added, each)]
        return [*([Sent(shared / passes, each, passes - 1)] if passes > 1 else []), *last]
    forward = each / (
        3 + again
    )  # of a pass three are forward's length, and one more for each that is made again
    gathered, rest = shared * layout.gathers / times, shared * layout.reductions / times
    if layout.whole:  # an exact run in blocks sends sums of slots once, at the end
        return [Sent(gathered, forward), Sent(rest)]
    share = layout.reductions
    return [Sent(gathered, forward), Sent(rest / share, each - forward, share)]
