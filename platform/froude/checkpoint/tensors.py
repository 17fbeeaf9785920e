"""A checkpoint's tensors, whole and one at a time, without a model or other ranks; and how two checkpoints differ."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch

from froude.checkpoint.manifest import Block, Manifest, manifest_of
from froude.checkpoint.parts import Corrupt, read_part
from froude.checkpoint.reader import open_part, read_block
from froude.runlog import Record
from froude.store import Location


class Tensors(Mapping[str, torch.Tensor]):
    """What `record` commits below the run's directory, by name in order; every read is checked against its hash.

    Corrupt if a part is missing or damaged. Use it in a `with` statement: it keeps the parts open.
    """

    def __init__(self, run: Location, record: Record) -> None:
        self._run = run
        manifest = manifest_of(record.parts)
        self._parts = {part.path.rpartition("/")[2]: part for part in record.parts if part.kind == "data"}
        self._tensors = Manifest.from_bytes(read_part(run, manifest))
        self._tensors.check_within({name: part.size for name, part in self._parts.items()})
        self._blocks: dict[str, list[Block]] = defaultdict(list)
        for block in self._tensors.blocks:
            self._blocks[block.fqn].append(block)
        self._files: dict[str, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._tensors.tensors))

    def __len__(self) -> int:
        return len(self._tensors.tensors)

    def unlike(self, state: Mapping[str, torch.Tensor]) -> str:
        """The first tensor whose name, dtype or shape is not as in a state; "" if there is none. Reads none of them."""
        due = {name: form(tensor.dtype, tensor.shape) for name, tensor in state.items()}
        found = {name: form(*its) for name, its in self._tensors.tensors.items()}
        other = sorted(name for name in {*due, *found} if due.get(name) != found.get(name))
        said = (
            f"`{name}` must be {due.get(name, 'absent')}, but is {found.get(name, 'absent')}"
            for name in other
        )
        return next(said, "")

    def __getitem__(self, name: str) -> torch.Tensor:
        dtype, size = self._tensors.tensors[name]
        tensor = torch.empty(size, dtype=dtype)
        for block in self._blocks[name]:
            window = tuple(slice(o, o + n) for o, n in zip(block.offsets, block.sizes, strict=True))
            tensor[window] = read_block(self._file(block.file), block, dtype)
        return tensor

    def _file(self, name: str) -> Any:
        if name not in self._files:
            if name not in self._parts:
                raise Corrupt(f"{name} of {self._run} is missing: no record names it")
            self._files[name] = self._stack.enter_context(open_part(self._run, self._parts[name]))
        return self._files[name]


def digest(
    run: Location, record: Record, see: Callable[[str, torch.Tensor], None] = lambda name, tensor: None
) -> str:
    """SHA-256 over name, dtype, shape and bytes of every tensor that `record` commits, in order of names.

    Parameters and optimizer state, however they were sharded; each is shown to `see` as it is read. Corrupt if a part
    is missing or damaged.
    """
    found = hashlib.sha256()
    with Tensors(run, record) as tensors:
        for name, tensor in tensors.items():
            see(name, tensor)
            found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            found.update(raw(tensor).numpy().data)
    return found.hexdigest()


def form(dtype: torch.dtype, shape: torch.Size) -> str:
    """A tensor's dtype and shape in words."""
    return f"{dtype} {list(shape)}".removeprefix("torch.")


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@dataclass(frozen=True)
class Difference:
    """How a tensor differs between two checkpoints: `what` is values, shape, dtype, or only there.

    `elements` differ in their bits, by at most `largest` (absolute, NaN where one has no value to compare).
    """

    name: str
    what: str
    elements: int = 0
    largest: float = 0.0


def differences(a: Tensors, b: Tensors) -> Iterator[Difference]:
    """Every tensor that is not the same bits in both, in order of names."""
    for name in sorted({*a, *b}):
        if name not in a or name not in b:
            yield Difference(name, "only in the first" if name in a else "only in the second")
            continue
        one, other = a[name], b[name]
        if one.dtype != other.dtype or one.shape != other.shape:
            yield Difference(name, f"{one.dtype} {list(one.shape)} against {other.dtype} {list(other.shape)}")
        elif not torch.equal(raw(one), raw(other)):
            width = max(1, one.element_size())
            apart = (raw(one) != raw(other)).view(-1, width).any(1)
            gap = (one.double() - other.double()).abs().reshape(-1)[apart]
            yield Difference(name, "values", int(apart.sum()), float(gap.max()))
