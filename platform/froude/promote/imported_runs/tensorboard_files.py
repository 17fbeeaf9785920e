"""The events in TensorBoard's files (`events.out.tfevents.*`): records of length, CRC, data and CRC."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from froude.config import ConfigError

FILES = "events.out.tfevents.*"
LENGTH = struct.Struct("<Q")  # of a record; a CRC follows it, and one its data
CRC = struct.Struct("<I")
#: Scalars of TensorFlow 2 are tensors: their types' numbers, the field of each, and how its bytes are packed.
TENSORS = {1: ("float_val", "<f"), 2: ("double_val", "<d")}


def events(file: Path) -> Iterator[Any]:
    """The events of a file, up to one that was cut short; ConfigError for what is none."""
    try:
        from google.protobuf.message import DecodeError
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import masked_crc32c
    except ImportError:
        raise ConfigError(
            "TensorBoard's files need the package tensorboardX, which is not installed here; "
            "pip install -e '.[tensorboard]' in froude's checkout"
        ) from None
    content, at = file.read_bytes(), 0
    while at + LENGTH.size <= len(content):
        (size,) = LENGTH.unpack_from(content, at)
        begin, end = at + LENGTH.size + 4, at + LENGTH.size + 4 + size + 4
        head, data = content[at : at + LENGTH.size], content[begin : end - 4]
        whole = content[begin - 4 : begin] == CRC.pack(masked_crc32c(head))
        cut = begin > len(content) or (whole and end > len(content))
        if cut or not (whole or any(content[at:])):  # zeros are what a power cut leaves
            return
        try:
            if not whole or content[end - 4 : end] != CRC.pack(masked_crc32c(data)):
                raise DecodeError
            yield Event.FromString(data)
        except DecodeError:
            raise ConfigError(
                f"a TensorBoard file must be whole, but {file} is damaged at byte {at}; restore it, or remove it"
            ) from None
        at = end


def scalars(file: Path) -> Iterator[tuple[int, str, float]]:
    """Step, tag and value of each number in a file, in the order in which they were written."""
    for event in events(file):
        for value in event.summary.value:
            if value.HasField("simple_value"):
                yield event.step, value.tag, value.simple_value
            elif value.HasField("tensor") and value.tensor.dtype in TENSORS:
                name, packed = TENSORS[value.tensor.dtype]
                numbers = list(getattr(value.tensor, name))
                if not numbers and len(value.tensor.tensor_content) == struct.calcsize(packed):
                    numbers = list(struct.unpack(packed, value.tensor.tensor_content))
                if len(numbers) == 1:
                    yield event.step, value.tag, numbers[0]
