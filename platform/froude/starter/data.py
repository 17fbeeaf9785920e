"""What a new project's search space says of its data: which source reads them where they lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from froude.config import ConfigError
from froude.corpora import listing, record
from froude.corpora.files import File
from froude.corpora.formats import format_of
from froude.corpora.listing import with_companions
from froude.store import Location, reported

TEXTS = (".txt", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".json.gz")


@dataclass(frozen=True)
class Corpus:
    """A source with its options; a vocabulary of 0 is unknown."""

    source: str = "froude.train.data.kjv:KingJames"
    path: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    vocab: int = 256


def corpus(data: str, tokenizer: str) -> Corpus:
    """Of `--data` and `--tokenizer`; ConfigError for what no source reads."""
    if tokenizer and (not data or data == "own"):
        raise ConfigError(
            f"--tokenizer is for texts, but --data is {data or 'not given'}; name texts, or leave it out"
        )
    if not data:
        return Corpus()
    if data == "own":
        return Corpus("my_data:MyData")
    path = Location.parse(data).url
    files = with_companions([each.open() for each in listing.find(path, "--data").files])
    kinds = {name for file in files.values() if (name := format_of(file, files))}
    text = next((url for url, file in files.items() if _is_text(url, file)), "")
    if kinds and not text:
        return Corpus("froude.train.data.shards:Shards", path, {}, _vocab(Location(next(iter(files)))))
    if not text:
        raise ConfigError(
            f"--data must have token shards or texts ({', '.join(TEXTS)}, .parquet), but {path} has neither; name "
            "others"
        )
    if not tokenizer:
        if text.endswith(".txt") and len(files) == 1:
            return Corpus("froude.train.data.text:TextFile", path)
        raise ConfigError(
            f"texts need --tokenizer FILE, but {text} came without; `froude data train-tokenizer` makes one"
        )
    from froude.corpora.tokenizer import load

    words = load(tokenizer)
    return Corpus(
        "froude.train.data.text_tokens:TextTokens",
        path,
        {"tokenizer": str(Location.parse(tokenizer).url)},
        words.size,
    )


def _is_text(url: str, file: File) -> bool:
    if url.endswith(".parquet"):
        return _strings(file)
    return url.endswith(TEXTS)


def _strings(file: File) -> bool:
    """Whether a Parquet file has a column of strings and none of token ids."""
    where = Location.parse(file.url)
    with reported(where, "--data must be readable"), where.reader() as source:
        types = pq.read_schema(source).types
    ids = any(pa.types.is_list(each) or pa.types.is_large_list(each) for each in types)
    return not ids and any(pa.types.is_string(each) or pa.types.is_large_string(each) for each in types)


def _vocab(shard: Location) -> int:
    """Of the tokenizer that a data.json beside a shard names."""
    made = record.read(shard.parent)
    return int(made.tokenizer.get("vocab", 0)) if made else 0
