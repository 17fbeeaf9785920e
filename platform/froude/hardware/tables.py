"""The tables of devices and prices: the package's, and a user's files over them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from froude.section import ConfigError, Section, did_you_mean, listing

HERE = Path(__file__).parent
#: Of a figure: what is beyond them is a mistake of the unit, and times and prices stay numbers that can be printed.
LEAST, MOST = 1e-6, 1e6
RULE = f"dollars an hour, a number from 0 to {MOST:,.0f}"


class Device(Section):
    """One device; units as in devices.toml."""

    section: ClassVar[str] = "device"
    name: str
    memory_gb: float = Field(ge=LEAST, le=MOST)
    fp32: float = Field(ge=LEAST, le=MOST)
    tf32: float | None = Field(default=None, ge=LEAST, le=MOST)
    bf16: float | None = Field(default=None, ge=LEAST, le=MOST)
    fp8: float | None = Field(default=None, ge=LEAST, le=MOST)
    bandwidth: float = Field(ge=LEAST, le=MOST)
    link: float = Field(ge=LEAST, le=MOST)
    network: float = Field(ge=LEAST, le=MOST)
    sustained: float = Field(default=0.6, ge=0.001, le=1)

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
    for each, content in (_read(Path(file), "prices") if file else {}).items():
        _price(each, content, file)
    known = {*_merged("devices", devices_file), *_read(HERE / "prices.toml", "prices")}
    if odd := sorted(each for each in set(table) - set(known) if "dollars" in table[each]):
        raise ConfigError(
            f"--prices must name devices of the table, but has {odd[0]!r}{did_you_mean(odd[0], known)}; correct it"
        )
    if "dollars" not in table.get(name, {}):
        raise ConfigError(
            f"a device must have a price, {RULE}, but {name!r} has none; add [{name}] with `dollars = ...` to a file, "
            "and pass --prices FILE"
        )
    return float(table[name]["dollars"])


def _price(name: str, content: dict[str, Any], file: str) -> None:
    """ConfigError for what is no price; figures of a device may stand beside it, as one file may have both."""
    own = {key: value for key, value in content.items() if key not in Device.model_fields}
    if content and not own:
        return
    if odd := sorted(set(own) - {"dollars"}):
        near = did_you_mean(odd[0], ["dollars"])
        raise ConfigError(
            f"--prices must have `dollars` alone, but [{name}] of {file} has {odd[0]!r}{near}; rename it"
        )
    dollars = own.get("dollars")
    if isinstance(dollars, bool) or not isinstance(dollars, int | float) or not 0 <= dollars <= MOST:
        has = "none" if dollars is None else repr(dollars)
        raise ConfigError(f"a price must be {RULE}, but [{name}] of {file} has {has}; correct it")


def _merged(kind: str, file: str) -> dict[str, dict[str, Any]]:
    own = _read(HERE / f"{kind}.toml", kind)
    given = _read(Path(file), kind) if file else {}
    if kind == "devices":  # of a file that has prices, too, these are read elsewhere
        given = {
            name: {key: value for key, value in content.items() if key != "dollars"}
            for name, content in given.items()
            if set(content) != {"dollars"}
        }
    return own | given


def _read(file: Path, kind: str) -> dict[str, dict[str, Any]]:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--{kind} must name a TOML file, but {file} can't be read: {error}") from None
    for name, table in content.items():
        if not name.strip():
            raise ConfigError(f"--{kind} must name each device, but {file} has [{name!r}]; name it")
        if not isinstance(table, dict):
            raise ConfigError(
                f"--{kind} must hold a table for each device, such as [h100-80gb], but {file} has {name} = {table!r}"
            )
    # A whole number of a user's is as good as a fraction.
    return {
        name: {k: float(v) if type(v) is int else v for k, v in table.items()}
        for name, table in content.items()
    }
