"""The most that a device computes, for the share of it that a step makes use of (MFU, PaLM 2204.02311, appendix B)."""

from __future__ import annotations

import torch

#: Dense FLOPs a second of matrix products by words in the device's name, bf16 and TF32, from NVIDIA's data sheets. The
#: first that fits counts; half of TF32's is not fp32's, which runs on other units and is not listed.
PEAKS = {
    ("H200",): {"bf16": 989.4e12, "tf32": 494.7e12},
    ("H100", "PCIe"): {"bf16": 756e12, "tf32": 378e12},
    ("H100",): {"bf16": 989.4e12, "tf32": 494.7e12},
    ("A100",): {"bf16": 312e12, "tf32": 156e12},
}


def peak_flops(device: torch.device, precision: str) -> float | None:
    """FLOPs a second of one device at the run's precision; None for a device that is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    for words, peaks in PEAKS.items():
        if all(word in name for word in words):
            return peaks.get(precision)
    return None
