"""Texts as documents: plain files, JSON lines and Parquet, whole or a part of a file."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from froude.config import ConfigError
from froude.corpora.prepare.inputs import LINES, PARQUET, Input
from froude.store import Location, reported

#: Bytes read at once; most of one document: the library keeps about 40 bytes of memory for each of its text.
BLOCK, DOCUMENT = 1 << 23, 1 << 26


@dataclass(frozen=True)
class Part:
    """Bytes (row groups of Parquet) `first` to before `last` of an input; lines count where they start.

    `weight` is its share of the file's bytes.
    """

    input: Input
    first: int
    last: int
    weight: int


def parts(input: Input, size: int) -> list[Part]:
    """The input in parts of about `size` bytes, as far as its format can be entered in the middle."""
    if input.kind is PARQUET:
        return _row_groups(input, size)
    if input.kind is LINES and not input.codec:
        cuts = range(0, input.size, size)
        return [Part(input, at, min(at + size, input.size), min(size, input.size - at)) for at in cuts]
    return [Part(input, 0, input.size, input.size)]


def documents(part: Part, column: str) -> Iterator[str]:
    """The part's documents in order, empty ones too; ConfigError for what is no text, with file and place."""
    with reported(Location(part.input.url), "texts must be readable"):
        if part.input.kind is PARQUET:
            yield from _rows(part, column)
        elif part.input.kind is LINES:
            yield from _lines(part, column)
        else:
            yield _whole(part.input)


def all_documents(
    found: Sequence[Input], column: str, progress: Callable[[float, str], None]
) -> Iterator[str]:
    """Documents of all inputs that are not empty; ConfigError if there are none."""
    total, done, any_text = sum(each.size for each in found), 0, False
    for each in found:
        for part in parts(each, BLOCK):
            for text in documents(part, column):
                any_text = any_text or bool(text)
                if text:
                    yield text
            done += part.weight
            progress(done / max(1, total), f"{done / 2**20:.1f} of {total / 2**20:.1f} MiB of text read")
    if not any_text:
        raise ConfigError(
            f"texts must hold text, but all documents of {found[0].url} and the others are empty"
        )


def begins_as_lines(input: Input) -> bool:
    """Whether the text begins as a JSON object does."""
    return next(_stream(input), b"").lstrip().startswith(b"{")


def _stream(input: Input) -> Iterator[bytes]:
    """The file's bytes in blocks, unpacked."""
    filesystem, path = Location(input.url).arrow()
    with filesystem.open_input_stream(path, compression=input.codec) as source:
        while block := _unpacked(source, input):
            yield block


def _unpacked(source: Any, input: Input) -> bytes:
    try:
        return bytes(source.read(BLOCK))
    except OSError as error:
        if input.codec is None or error.errno:
            raise
        cause = " ".join(str(error).split())
        raise ConfigError(
            f"texts must be whole {input.codec} files, but {input.url}: {cause}; restore it"
        ) from None


def _whole(input: Input) -> str:
    content = bytearray()
    for block in _stream(input):
        content += block
        _check_size(len(content), input.url)
    return _decoded(bytes(content), input, 0)


def _check_size(size: int, where: str) -> None:
    if size > DOCUMENT:
        raise ConfigError(
            f"a document must have at most {DOCUMENT >> 20} MiB, but {where} has more; a plain text file is one "
            "document: divide it, or write its documents as JSON lines"
        )


def _decoded(content: bytes, input: Input, start: int) -> str:
    try:
        return codecs.utf_8_decode(content, "strict", True)[0]
    except UnicodeDecodeError as error:
        unpacked = " of its content" if input.codec else ""
        raise ConfigError(
            f"texts must be UTF-8, but {input.url} has byte 0x{content[error.start]:02x} at offset "
            f"{start + error.start}{unpacked} ({error.reason}); convert it, e.g. iconv -f latin1 -t utf-8"
        ) from None


def _lines(part: Part, column: str) -> Iterator[str]:
    number = 0  # of lines before, where the part is the whole file
    for offset, line in _split(part):
        number += 1
        if not line.strip():
            continue
        text = _decoded(line, part.input, offset)
        try:
            row = json.loads(text)
            what = "" if isinstance(row, dict) else f"is a JSON {type(row).__name__}"
        except (ValueError, RecursionError) as error:
            row, what = {}, f"is no JSON ({error})"
        if what or column not in row:
            known = ", ".join(list(row)[:8]) if isinstance(row, dict) else ""
            what = what or f"has no {column!r} (it has {known or 'nothing'})"
            where = (
                f"line {number if not part.first else _line_number(part.input, offset)} of {part.input.url}"
            )
            raise ConfigError(
                f"each line must be a JSON object with a text as {column!r}, but {where} {what}; "
                "correct it, or name the text's key with --column (`data.options.column`)"
            )
        yield _text(
            row[column], column, lambda offset=offset: f"the line at offset {offset} of {part.input.url}"
        )


def _text(value: object, column: str, where: Any) -> str:
    """A value as a document: null is an empty one."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ConfigError(
            f"{column!r} must be a text, but in {where()} it is {type(value).__name__}; name another with "
            "--column (`data.options.column`)"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"texts must be UTF-8, but {where()} has half of a surrogate pair, which UTF-8 can't hold; write the "
            "whole character"
        ) from None
    return value


def _split(part: Part) -> Iterator[tuple[int, bytes]]:
    """Lines that start in the part, with their offsets."""
    if part.input.codec:
        blocks, at = _stream(part.input), 0
        last = 1 << 62
    else:
        blocks, at, last = _blocks(part), max(0, part.first - 1), part.last
    rest, skip = b"", part.first > 0  # the byte before: a line may start just at `first`
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if at >= last:
                return
            if not skip:
                yield at, line
            at, skip = at + len(line) + 1, False
        _check_size(len(rest), f"the line at offset {at} of {part.input.url}")
    if rest and at < last and not skip:
        yield at, rest


def _blocks(part: Part) -> Iterator[bytes]:
    """The file from one byte before the part on, as far as somebody reads."""
    with Location(part.input.url).reader() as source:
        at, size = max(0, part.first - 1), source.size()
        while at < size:
            block = source.read_at(min(BLOCK, max(1 << 16, part.last - at), size - at), at)
            yield block
            at += len(block)


def _line_number(input: Input, offset: int) -> int:
    """Which line, from 1, starts at an offset."""
    lines, at = 1, 0
    for block in _stream(input):
        lines += block[: max(0, offset - at)].count(b"\n")
        at += len(block)
        if at >= offset:
            break
    return lines


def _parquet(input: Input) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    filesystem, path = Location(input.url).arrow()
    try:
        return pq.ParquetFile(filesystem.open_input_file(path))
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"texts must be whole Parquet files, but {input.url}: {error}; restore it"
        ) from None


def _row_groups(input: Input, size: int) -> list[Part]:
    with _parquet(input) as file:
        sizes = [file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups)]
    found, first, held, total = [], 0, 0, max(1, sum(sizes))
    for i, each in enumerate(sizes):
        held += each
        if held >= size or i == len(sizes) - 1:
            found.append(Part(input, first, i + 1, input.size * held // total))
            first, held = i + 1, 0
    return found


def _rows(part: Part, column: str) -> Iterator[str]:
    import pyarrow as pa

    url = part.input.url
    with _parquet(part.input) as file:
        schema = file.schema_arrow
        if column not in schema.names:
            raise ConfigError(
                f"a Parquet file must have a column of texts {column!r}, but {url} has {', '.join(schema.names[:8])}; "
                "name one with --column (`data.options.column`)"
            )
        kind = schema.field(column).type
        inner = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_string(inner) or pa.types.is_large_string(inner)):
            raise ConfigError(
                f"a column of texts must hold strings, but {column!r} of {url} holds {kind}; name another"
            )
        for group in range(part.first, part.last):
            row = 0
            for batch in file.iter_batches(1024, row_groups=[group], columns=[column], use_threads=False):
                for value in batch.column(0):
                    place = f"row {row} of row group {group} of {url}"
                    try:
                        text = value.as_py()
                    except UnicodeDecodeError as error:
                        raise ConfigError(
                            f"texts must be UTF-8, but {place}: {error.reason}; convert it"
                        ) from None
                    _check_size(len(text or ""), place)
                    yield _text(text, column, lambda place=place: place)
                    row += 1
