"""The most that a device computes, for the share of it that a step makes use of (MFU, PaLM 2204.02311, appendix B)."""

from __future__ import annotations

import re

import torch

from froude.config import ConfigError
from froude.hardware import tables

#: Devices of the table that compute as much, by words of the names that torch has; the first that fits counts.
NAMES = (
    ({"B200"}, "b200"),
    ({"H200", "NVL"}, "h100-nvl"),
    ({"H200"}, "h200"),
    ({"GH200"}, "h200"),
    ({"H100", "NVL"}, "h100-nvl"),
    ({"H100", "PCIe"}, "h100-pcie"),
    ({"H100"}, "h100-80gb"),
    ({"A100"}, "a100-80gb"),
    ({"L40S"}, "l40s"),
    ({"4090"}, "rtx-4090"),
    ({"MI300X"}, "mi300x"),
)
#: Of a slice of a device, and of GeForce cards that compute less than their namesakes.
LESS = {"MIG", "D", "Laptop"}


def peak_flops(device: torch.device, precision: str) -> float | None:
    """FLOPs a second of one device at the run's precision; None for a device, or a precision, that is not known."""
    if device.type != "cuda":
        return None
    name = set(re.split(r"[ -]", torch.cuda.get_device_name(device)))
    known = next((entry for words, entry in NAMES if words <= name and not LESS & name), None)
    try:
        return tables.device(known).peak(precision) if known else None
    except ConfigError:
        return None
