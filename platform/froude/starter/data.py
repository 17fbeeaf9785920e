"""What a new project's search space says of its data: which source reads them where they lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from froude.config import ConfigError
from froude.corpora import listing, record
from froude.corpora.files import File
from froude.corpora.formats import format_of
from froude.corpora.listing import with_companions
from froude.corpora.prepare import inputs
from froude.starter.tokenizer import Progress, Words, named, of_texts, quiet
from froude.store import Location, reported
from froude.train.data.text_tokens import texts_at


@dataclass(frozen=True)
class Corpus:
    """A source with its options, and the tokenizer of texts; a vocabulary of 0 is unknown."""

    source: str = "froude.train.data.kjv:KingJames"
    path: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    vocab: int = 256
    words: Words | None = None


def corpus(
    data: str,
    tokenizer: str,
    *,
    column: str = "text",
    model: Path | None = None,
    vocab: int = 0,
    progress: Progress = quiet,
) -> Corpus:
    """Of `--data`, `--tokenizer` and `--column`; ConfigError for what no source reads.

    Texts without a tokenizer go through that of the folder `model`, else through one of `vocab` tokens, trained here.
    """
    if tokenizer and (not data or data == "own"):
        raise ConfigError(
            f"--tokenizer is for texts, but --data is {data or 'not given'}; name texts, or leave it out"
        )
    if column != "text" and data in ("", "own"):
        raise ConfigError(
            f"--column is for JSON lines and Parquet, but --data is {data or 'not given'}; name some, or drop it"
        )
    if not data:
        return Corpus()
    if data == "own":
        return Corpus("my_data:MyData")
    options = {} if column == "text" else {"column": column}
    path = Location.parse(data).url
    listed = listing.find(path, "--data")
    whole = listed.folder if listed.folder == path else ""
    files = with_companions([each.open() for each in listed.files], whole)
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
        return Corpus("froude.train.data.shards:Shards", path, options, _vocab(Location(shards[0])))
    if not documents:
        raise ConfigError(
            f"--data must have token shards or texts ({inputs.KNOWN}), but {path} has neither; name others"
        )
    if not Location.parse(path).exists():
        raise ConfigError(
            f"texts must be a file or a folder, but --data is the pattern {path}; name its folder"
        )
    if not tokenizer and documents[0].endswith(".txt") and len(files) == 1:
        if model is not None and (model / record.TOKENIZER).is_file():
            raise ConfigError(
                f"a text for the {record.TOKENIZER} beside the model must have several documents, some of them to hold "
                f"out, but {path} is one plain text; write JSON lines, a document a line, or a file each"
            )
        return Corpus("froude.train.data.text:TextFile", path)
    found = texts_at(path)
    words = named(tokenizer) if tokenizer else of_texts(found, column, model, vocab, progress)
    options |= {"eod": words.eod} if words.eod else {}
    return Corpus("froude.train.data.text_tokens:TextTokens", path, options, words.vocab, words)


def _is_text(url: str, file: File, path: str) -> bool:
    if url.endswith(inputs.PARQUET):
        return _strings(file)
    return inputs.known(url) and (url == path or not url.endswith(".json"))


def _strings(file: File) -> bool:
    """Whether a Parquet file has a column of strings and none of token ids."""
    where = Location.parse(file.url)
    filesystem, path = where.arrow()
    with reported(where, "--data must be readable"):
        types = pq.read_schema(path, filesystem=filesystem).types
    ids = any(pa.types.is_list(each) or pa.types.is_large_list(each) for each in types)
    return not ids and any(pa.types.is_string(each) or pa.types.is_large_string(each) for each in types)


def _vocab(shard: Location) -> int:
    """Of the tokenizer that a data.json beside a shard names."""
    made = record.read(shard.parent)
    return int(made.tokenizer.get("vocab", 0)) if made else 0
