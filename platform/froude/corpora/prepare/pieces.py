"""Pieces of the texts: what is tokenised at once, and kept until all are. A function of the texts, not of who works."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from froude.config import ConfigError
from froude.corpora import record
from froude.corpora import tokenizer as tokenizers
from froude.corpora.megatron_writer import dtype_for
from froude.corpora.prepare.inputs import Input
from froude.corpora.prepare.texts import Part, documents, parts
from froude.store import Location, reported

#: Bytes of text in a piece, and characters that the library is given at once.
PIECE, BATCH = 1 << 23, 1 << 21


@dataclass(frozen=True)
class Settings:
    """What the tokens of a text depend on besides it: a tokenizer's file, the id of what ends a document, a column."""

    tokenizer: str
    sha256: str
    end: int | None
    column: str


@dataclass(frozen=True)
class Piece:
    """Parts of the texts, in order. `key` (hex digits) names what its tokens are made of; `folder` is the corpus's."""

    key: str
    parts: tuple[Part, ...]
    settings: Settings
    folder: str

    @property
    def weight(self) -> int:
        """Bytes of text, as they lie there."""
        return sum(part.weight for part in self.parts)

    def file(self, kind: str) -> Location:
        return Location(self.folder) / record.PIECES / f"{self.key}.{kind}"


@dataclass(frozen=True)
class Documents:
    """A piece's documents in order: 64-bit hash and bytes of the text, tokens; `empty` ones were left out."""

    hashes: npt.NDArray[np.uint64]
    nbytes: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    empty: int


def text_hash(text: bytes) -> int:
    """64-bit BLAKE2b of a document: it decides the split, so equal documents are on one side."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def divide(
    found: Iterable[Input], hashes: Mapping[str, str], settings: Settings, folder: Location
) -> list[Piece]:
    """The texts as pieces of about PIECE bytes: large files in several, small ones together.

    `hashes` are the texts' SHA-256, by URL.
    """
    gathered: list[list[Part]] = [[]]
    for part in (part for each in found for part in parts(each, PIECE)):
        if sum(held.weight for held in gathered[-1]) >= PIECE:
            gathered.append([])
        gathered[-1].append(part)
    pieces = []
    for group in filter(None, gathered):
        what = [
            [hashes[part.input.url], part.input.kind, part.input.codec, part.first, part.last]
            for part in group
        ]
        content = json.dumps([what, settings.sha256, settings.end, settings.column])
        key = hashlib.sha256(content.encode()).hexdigest()[:24]
        pieces.append(Piece(key, tuple(group), settings, folder.url))
    return pieces


def tokenise(piece: Piece) -> int:
    """Write a piece's tokens, then its table of documents, whose presence says that it is done; its weight."""
    settings = piece.settings
    tokenizer = tokenizers.load(settings.tokenizer)
    if tokenizer.sha256 != settings.sha256:
        raise ConfigError(
            f"all hosts must have one tokenizer, but {settings.tokenizer} has SHA-256 {tokenizer.sha256[:12]}… instead "
            f"of {settings.sha256[:12]}…; copy it there"
        )
    dtype = dtype_for(tokenizer.size)
    end = np.array([] if settings.end is None else [settings.end], dtype=dtype)
    rows: list[tuple[int, int, int]] = []
    empty, place = 0, piece.file("bin")
    with reported(place, "pieces must be written whole"):
        with place.output() as sink:
            for texts, dropped in _batches(piece):
                empty += dropped
                for text, ids in zip(texts, tokenizer.ids(texts, dtype), strict=True):
                    if not len(ids):  # a tokenizer may have no token for some text, such as blanks
                        empty += 1
                        continue
                    content = text.encode()
                    rows.append((text_hash(content), len(content), len(ids) + len(end)))
                    sink.write(ids.tobytes() + end.tobytes())
        hashes, nbytes, lengths = zip(*rows, strict=True) if rows else ((), (), ())
        packed = io.BytesIO()
        np.savez(
            packed,
            hashes=np.array(hashes, np.uint64),
            nbytes=np.array(nbytes, np.int64),
            lengths=np.array(lengths, np.int64),
            empty=np.array(empty),
        )
        piece.file("npz").replace(packed.getvalue())
    return piece.weight


def table(piece: Piece) -> Documents:
    """What `tokenise` found of a piece."""
    with np.load(io.BytesIO(piece.file("npz").read()), allow_pickle=False) as found:
        return Documents(found["hashes"], found["nbytes"], found["lengths"], int(found["empty"]))


def tokens(piece: Piece, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """A piece's tokens: mapped where they are local, else read."""
    place = piece.file("bin")
    if place.is_local:
        return np.memmap(place.path, dtype, "r") if place.size() else np.empty(0, dtype)
    return np.frombuffer(place.read(), dtype)


def _batches(piece: Piece) -> Iterator[tuple[list[str], int]]:
    """Texts that are not empty, about BATCH characters at a time, and how many empty ones were among them."""
    texts: list[str] = []
    held = empty = 0
    for part in piece.parts:
        for text in documents(part, piece.settings.column):
            if not text:
                empty += 1
                continue
            texts.append(text)
            held += len(text)
            if held >= BATCH:
                yield texts, empty
                texts, held, empty = [], 0, 0
    yield texts, empty
