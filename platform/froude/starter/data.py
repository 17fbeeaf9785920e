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
from froude.corpora.prepare import inputs
from froude.store import Location, reported


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
    texts = [url for url, file in files.items() if _is_text(url, file, path)]
    shards = [url for url in files if url not in texts and format_of(files[url], files)]
    # Plain text beside shards or other texts is about them, as `froude data prepare` has it.
    documents = [url for url in texts if not inputs.is_plain(url)] or ([] if shards else texts)
    if shards and documents:
        raise ConfigError(
            f"--data must be token shards or texts, but {path} has both ({shards[0]}, {documents[0]}); name one of the "
            "two by a folder, a file or a pattern"
        )
    if shards:
        if tokenizer:
            raise ConfigError(
                f"--tokenizer is for texts, but {path} has token shards; leave it out, and name the size of their "
                "vocabulary with --vocab"
            )
        return Corpus("froude.train.data.shards:Shards", path, {}, _vocab(Location(shards[0])))
    if not documents:
        raise ConfigError(
            f"--data must have token shards or texts ({inputs.KNOWN}), but {path} has neither; name others"
        )
    if not Location.parse(path).exists():
        raise ConfigError(
            f"texts must be a file or a folder, but --data is the pattern {path}; name its folder"
        )
    if not tokenizer:
        if documents[0].endswith(".txt") and len(files) == 1:
            return Corpus("froude.train.data.text:TextFile", path)
        raise ConfigError(
            f"texts need --tokenizer FILE, but {documents[0]} came without; `froude data train-tokenizer` makes one"
        )
    from froude.corpora.tokenizer import load

    words = load(tokenizer)
    return Corpus(
        "froude.train.data.text_tokens:TextTokens",
        path,
        {"tokenizer": str(Location.parse(tokenizer).url)},
        words.size,
    )


def _is_text(url: str, file: File, path: str) -> bool:
    if url.endswith(inputs.PARQUET):
        return _strings(file)
    return inputs.known(url) and (url == path or not url.endswith(".json"))


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
