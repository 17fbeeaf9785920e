"""From figures to verdicts: what a machine must do, and what to do if it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from froude.doctor.finding import Finding
from froude.sweep.preflight import GIB

#: Relative errors of a product of 512 x 512 matrices: fp32's sums of 512 products; rounding of the inputs to 10 bits
#: (TF32) and of the output to 8 (bf16), all about four times what is seen.
ERRORS = {"fp32": 1e-6, "tf32": 1.5e-3, "bf16": 1e-2}
BUSY = 0.1  # share of a GPU's memory that others may have
#: Share by which a peak may differ from the plan, as benchmarks/plan_memory.py asks of its figures.
OFF = 0.1
LOW_MFU = 0.3


def devices(found: Sequence[Mapping[str, Any]]) -> Finding:
    """The GPUs: one kind, and free."""
    names = sorted({each["name"] for each in found})
    figures = {"gpus": list(found)}
    if not found:
        return Finding(
            "devices", "fail", "torch sees no GPU", "check the driver, CUDA_VISIBLE_DEVICES", figures
        )
    line = f"{len(found)} of {', '.join(names)}, {found[0]['total_bytes'] / GIB:.0f} GiB"
    line += f", capability {found[0]['capability']}"
    taken = max(1 - each["free_bytes"] / each["total_bytes"] for each in found)
    if len(names) > 1:
        return Finding(
            "devices", "warn", line, "exact runs need one kind: choose by CUDA_VISIBLE_DEVICES", figures
        )
    if taken > BUSY:
        return Finding(
            "devices", "warn", f"{line}, {taken:.0%} taken by others", "end them before timing", figures
        )
    if not all(each["bf16"] for each in found):
        return Finding("devices", "warn", f"{line}, no bf16", 'use precision "fp32" or "fp16"', figures)
    return Finding("devices", "ok", line, "", figures)


def matmul(found: Mapping[str, float]) -> Finding:
    """Errors that precisions really have here."""
    line = "error against fp64: " + ", ".join(f"{name} {error:.1e}" for name, error in found.items())
    high = [name for name, bound in ERRORS.items() if found.get(name, 0.0) > bound]
    if high:
        remedy = "look for variables that choose kernels, such as NVIDIA_TF32_OVERRIDE or ONEDNN_DEFAULT_FPMATH_MODE"
        line += (
            f"; too much for {', '.join(high)} (at most {', '.join(f'{ERRORS[name]:g}' for name in high)})"
        )
        return Finding("matrix products", "fail" if "fp32" in high else "warn", line, remedy, dict(found))
    return Finding("matrix products", "ok", line, "", dict(found))


def repeats(first: Mapping[str, str], second: Mapping[str, str]) -> Finding:
    """The same steps twice in one process."""
    if first != second:
        remedy = 'kernels here do not repeat: use reduction "fast", or another torch'
        return Finding("determinism", "fail", "the same steps twice gave other bits", remedy)
    return Finding("determinism", "ok", "the same steps twice gave the same bits")


def exactness(digests: Mapping[int, str], unlike: str = "") -> Finding:
    """An exact run at each number of workers."""
    sizes = ", ".join(map(str, digests))
    figures = {
        "workers": list(digests),
        "digests": {str(size): digest[:16] for size, digest in digests.items()},
    }
    if len(set(digests.values())) > 1:
        others = [size for size, digest in digests.items() if digest != digests[min(digests)]]
        line = f"{', '.join(map(str, others))} workers gave other bits than {min(digests)}"
        return Finding("exactness", "fail", line, 'use reduction "fast", and send the file', figures)
    return Finding("exactness", "ok", f"the same bits at {sizes} workers", "", figures)


def links(found: Mapping[int, Mapping[str, Any]]) -> Finding:
    """Copies between host and device, and sums over ranks."""
    figures = {str(world): dict(each) for world, each in found.items()}
    words = [
        f"{name.replace('_', ' ')} {each[name]:.1f} GB/s" + (f" at {world} ranks" if world > 1 else "")
        for world, each in found.items()
        for name in ("to_device", "from_device", "all_reduce")
        if name in each
    ]
    line = ", ".join(words) or "one worker, nothing to send"
    if any(not peer for each in found.values() for peer in each.get("peers", ())):
        return Finding(
            "links", "warn", line, "GPUs can't reach each other: sums go through the host", figures
        )
    return Finding("links", "ok", line, "", figures)


def step(name: str, found: Mapping[str, Any], planned_bytes: int) -> list[Finding]:
    """Time of a step, and its memory beside the plan's."""
    mfu, peak = found["mfu"], found["peak_bytes"]
    line = f"{1e3 * found['seconds']:.0f} ms, {found['tokens_per_second']:,.0f} tokens/s"
    line += f", MFU {mfu:.0%}" if mfu is not None else ", MFU not known of this device"
    slow = mfu is not None and mfu < LOW_MFU
    remedy = 'try compute.compile = "blocks", a larger micro_batch' if slow else ""
    timed = Finding(f"step, {name}", "warn" if slow else "ok", line, remedy, dict(found))
    off = peak / planned_bytes - 1
    line = f"tensors held {peak / GIB:.3f} GiB at most, planned {planned_bytes / GIB:.3f} ({off:+.0%})"
    figures = {"peak_bytes": peak, "planned_bytes": planned_bytes}
    remedy = ""
    if abs(off) > OFF:
        what = (
            "leave room beside what a plan says fits" if off > 0 else "what a plan says does not fit may fit"
        )
        line, remedy = f"{line}, more than {OFF:.0%} off", f"{what}; send the file"
    return [timed, Finding(f"memory, {name}", "warn" if remedy else "ok", line, remedy, figures)]
