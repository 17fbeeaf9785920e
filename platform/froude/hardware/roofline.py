"""How long a step takes on a device: a roofline over products, memory and what workers send (Williams et al. 2009).

What it leaves out: launches of small kernels, stragglers, evaluations, checkpoints, restarts. `ERROR` is what it was
off by against published speeds.
"""

from __future__ import annotations

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
class Step:
    """Seconds of a step of one worker by what takes them; FLOPs of the model alone."""

    products: float
    traffic: float
    sending: float
    updating: float
    overlaps: bool
    tokens: int
    model_flops: float
    peak_flops: float
    how: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """Sending hides behind computing on a GPU, where it has a stream of its own."""
        computing = self.products + self.traffic
        both = max(computing, self.sending) if self.overlaps else computing + self.sending
        return both + self.updating

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
        parts = {"products": self.products, "memory": self.traffic, "network": self.sending}
        return max(parts, key=lambda name: parts[name])


def step(run: Run, sizes: Sizes, place: Place, device: Device) -> Step:
    """A step of the run's `batch`, before any ramp; ConfigError if the device does not have the run's precision."""
    precision: str = run.precision
    peak = device.peak(precision)
    plain = run.schedule.model_copy(update={"ramp": ()})
    layout = Layout(run.model_copy(update={"schedule": plain}), sizes, place)
    tokens = layout.busiest
    flops = sizes.flops_per_token * sizes.passes * tokens
    forward = (sizes.flops_per_token - 6.0 * sizes.readout) / 3
    again = AGAIN[run.compute.checkpointing] * forward * tokens
    rate = peak * device.sustained * (FP8_GAIN if precision == "fp8" else 1.0)
    moved = _moved(run, sizes, tokens, layout.passes, gpu=device.is_gpu)
    update = (
        2 * (weight_bytes(run) * sizes.parameters + sizes.state_bytes) + 4 * sizes.parameters
    ) / layout.groups.shards
    sent, sending, words = _sending(run, layout, device)
    brought = 2 * sizes.state_bytes / layout.groups.shards if run.compute.offload and device.is_gpu else 0.0
    bus = f" + {brought:.3g} bytes between GPU and host over {HOST_LINK:.3g}" if brought else ""
    how = (
        f"products   {flops:.3g} FLOPs of the model + {again:.3g} again, over {rate:.3g} a second, of a peak of "
        f"{peak:.4g}",
        f"memory     {moved:.3g} bytes over {device.bandwidth * 1e9:.3g} a second",
        f"sending    {words}: {sent:.3g} bytes",
        f"update     {update:.3g} bytes of weights, gradients and state over {device.bandwidth * 1e9:.3g} a second"
        + bus,
    )
    return Step(
        (flops + again) / rate,
        moved / (device.bandwidth * 1e9),
        sending,
        update / (device.bandwidth * 1e9) + brought / HOST_LINK,
        device.is_gpu,
        run.batch,
        sizes.flops_per_token * sizes.passes * run.batch / place.workers,
        peak,
        how,
    )


def _moved(run: Run, sizes: Sizes, tokens: float, passes: int, *, gpu: bool) -> float:
    """Bytes between memory and the cores for activations, logits, and copies of weights."""
    block = bytes_of_a_block(run, sizes, fused=gpu)
    again = 0 if run.compute.checkpointing == "none" else 1
    kept = sizes.depth * block * (MOVES + again)
    words = MOVES * 4.0 * run.model.vocab
    copies = 3 * 6.0 * sizes.products if is_autocast(run) else 0.0
    return tokens * (kept + words) + passes * copies


def _sending(run: Run, layout: Layout, device: Device) -> tuple[float, float, str]:
    """Bytes that a worker sends in a step, seconds, and how they come about.

    With S workers that share P parameters, each time that weights are gathered or gradients shared out a worker sends
    (S - 1) / S of them (1910.02054, section 7); R replicas add their shards up, 2 (R - 1) / R of each.
    """
    groups, place = layout.groups, layout.place
    whole = float(weight_bytes(run)) * layout.sizes.parameters
    within, across = device.link * 1e9 * COLLECTIVES, device.network * 1e9 * COLLECTIVES
    ring = min(within, place.per_node * across)
    times = layout.gathers + layout.reductions
    shared = times * whole * (groups.shards - 1) / groups.shards
    seconds = shared / (ring if groups.shards > place.per_node else within)
    words = [f"{times} x {whole:.3g} bytes x {groups.shards - 1}/{groups.shards}"] if shared else []
    added = 2 * whole / groups.shards * (groups.replicas - 1) / groups.replicas
    if added:
        apart = place.nodes > 1
        rate = (ring if groups.shards == 1 else across) if apart else within
        seconds += added / rate
        words.append(f"2 x {whole / groups.shards:.3g} bytes x {groups.replicas - 1}/{groups.replicas}")
    return shared + added, seconds, " + ".join(words) or "nothing"
