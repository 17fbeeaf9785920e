"""The tables of devices and prices: the package's, and a user's files over them."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from froude.section import ConfigError, Section, did_you_mean, listing

HERE = Path(__file__).parent


class Device(Section):
    """One device; units as in devices.toml."""

    section: ClassVar[str] = "device"
    name: str
    memory_gb: float = Field(gt=0)
    fp32: float = Field(gt=0)
    tf32: float = Field(default=0.0, ge=0)
    bf16: float = Field(default=0.0, ge=0)
    fp8: float = Field(default=0.0, ge=0)
    bandwidth: float = Field(gt=0)
    link: float = Field(gt=0)
    network: float = Field(gt=0)
    sustained: float = Field(default=0.6, gt=0, le=1)

    @property
    def memory(self) -> float:
        """Bytes."""
        return self.memory_gb * 1e9

    @property
    def is_gpu(self) -> bool:
        return self.name != "cpu"

    def flops(self, precision: str) -> float:
        """Dense FLOP a second of matrix products in a run's precision; ConfigError where the device has none."""
        kind = self._kind(precision)
        if not self.has(precision):
            able = listing(f'"{each}"' for each in ("bf16", "fp32", "tf32", "fp8") if self.has(each))
            raise ConfigError(
                f"`precision` must be one that the device has, but {self.name} has no {kind}; use {able}"
            )
        return float(getattr(self, kind)) * 1e12

    def has(self, precision: str) -> bool:
        """Whether it makes products in a run's precision."""
        return bool(getattr(self, self._kind(precision)))

    def _kind(self, precision: str) -> str:
        return "bf16" if precision.startswith("bf16") or precision == "fp16" else precision

    def peak(self, precision: str) -> float:
        """Dense FLOP a second that a share of it (MFU) is of: bf16's for fp8, in which only a part of a step is."""
        self.flops(precision)
        return self.flops("bf16" if precision == "fp8" else precision)


def device(name: str, file: str = "") -> Device:
    """The device of this name, from the user's file if it has it; ConfigError if no table has it."""
    table = _merged("devices", file)
    if name not in table:
        begun = [each for each in table if name and each.startswith(name.lower())]
        near = f" (did you mean {listing(map(repr, begun))}?)" if begun else did_you_mean(name, table)
        raise ConfigError(
            f"a device must be in the table, but {name!r} is not{near}; known: "
            f"{', '.join(table)}; add yours to a file, and pass --devices FILE"
        )
    return _device(name, table[name], file)


def devices(file: str = "") -> list[Device]:
    """All devices, in the table's order."""
    return [_device(name, content, file) for name, content in _merged("devices", file).items()]


def _device(name: str, content: dict[str, Any], file: str) -> Device:
    try:
        return Device(**content | {"name": name})
    except ConfigError as error:
        raise ConfigError(f"[{name}] of {file}: {error}") from None


def price(name: str, file: str = "", devices_file: str = "") -> float:
    """Dollars for an hour of a device; ConfigError if no table has it."""
    table = _merged("prices", file)
    known = {*_merged("devices", devices_file), *_read(HERE / "prices.toml", "prices")}
    if odd := sorted(each for each in set(table) - set(known) if "dollars" in table[each]):
        raise ConfigError(
            f"--prices must name devices of the table, but has {odd[0]!r}{did_you_mean(odd[0], known)}; correct it"
        )
    dollars = table.get(name, {}).get("dollars")
    if isinstance(dollars, bool) or not isinstance(dollars, int | float) or not 0 <= dollars < math.inf:
        raise ConfigError(
            f"a device's price must be a number of dollars an hour, but {name!r} has {dollars!r}; add [{name}] with "
            "`dollars = ...` to a file, and pass --prices FILE"
        )
    return float(dollars)


def _merged(kind: str, file: str) -> dict[str, dict[str, Any]]:
    own = _read(HERE / f"{kind}.toml", kind)
    return own | _read(Path(file), kind) if file else own


def _read(file: Path, kind: str) -> dict[str, dict[str, Any]]:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--{kind} must name a TOML file, but {file} can't be read: {error}") from None
    for name, table in content.items():
        if not isinstance(table, dict):
            raise ConfigError(
                f"--{kind} must hold a table for each device, such as [h100-80gb], but {file} has {name} = {table!r}"
            )
    # A whole number of a user's is as good as a fraction.
    return {
        name: {k: float(v) if type(v) is int else v for k, v in table.items()}
        for name, table in content.items()
    }
