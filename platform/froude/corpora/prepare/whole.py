"""`froude data prepare`: texts become a folder of shards; the same call again goes on where one was interrupted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from froude.config import ConfigError
from froude.corpora import record
from froude.corpora import tokenizer as tokenizers
from froude.corpora.megatron_writer import dtype_for
from froude.corpora.prepare import inputs as texts
from froude.corpora.prepare import pieces as made
from froude.corpora.prepare import shards
from froude.corpora.record import Record
from froude.store import Location, reported

SHARD_TOKENS = 1 << 28
#: Results of a function over tasks, in any order: the built-in map, or a cluster.
Workers = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
#: Told the stage, the share of it that is done, and what there is to say.
Progress = Callable[[str, float, str], None]


@dataclass(frozen=True)
class Options:
    """What to make of texts; `end` is the token that ends a document (None: a well-known one, "": none)."""

    tokenizer: str
    end: str | None = None
    column: str = "text"
    held_out: float = 0.01
    drop_duplicates: bool = False
    shard_tokens: int = SHARD_TOKENS

    def check(self) -> None:
        """ConfigError for values that can't be."""
        if not 0 <= self.held_out < 1:
            raise ConfigError(
                f"--held-out must be a share from 0 to below 1, but got {self.held_out}; set it, or "
                "`data.options.held_out`, to e.g. 0.01"
            )
        if self.shard_tokens < 1:
            raise ConfigError(f"--shard-tokens must be at least 1, but got {self.shard_tokens}")


def _quiet(stage: str, share: float, what: str) -> None:
    """Says nothing."""


def prepare(
    places: Sequence[str],
    out: str | Location,
    options: Options,
    *,
    workers: Workers = map,
    progress: Progress = _quiet,
) -> Record:
    """Tokenise texts into `out` and return what its data.json says; the same bytes, whoever works.

    What an interrupted call has done is used, as far as texts and settings are the same. ConfigError for what can't be
    read or tokenised, and where `out` holds something else.
    """
    options.check()
    tokenizer = tokenizers.load(options.tokenizer)
    end = tokenizer.end(options.end)
    folder = Location.parse(out)
    found = texts.inputs(places)
    if not any(each.size for each in found):
        raise ConfigError(
            f"texts must hold text, but {found[0].url} and all others have 0 bytes; name others"
        )
    already = _already(folder)
    with reported(folder, "the folder of a corpus must be writable"):
        hashes = _hashes(found, folder, workers, progress, keep=already is None)
    dtype = dtype_for(tokenizer.size)
    content: dict[str, Any] = {
        "format": "megatron",
        "dtype": dtype.name,
        "inputs": [{"name": each.name, "size": each.size, "sha256": hashes[each.url]} for each in found],
        "column": options.column,
        "tokenizer": {
            "name": tokenizer.name,
            "sha256": tokenizer.sha256,
            "vocab": tokenizer.size,
            "eod": {"token": end[0], "id": end[1]} if end else None,
        },
        "held_out": options.held_out,
        "drop_duplicates": options.drop_duplicates,
        "shard_tokens": options.shard_tokens,
    }
    if already is not None:
        _check_same(already, content)
        _forget_pieces(folder)
        return already
    settings = made.Settings(
        Location.parse(options.tokenizer).url, tokenizer.sha256, end[1] if end else None, options.column
    )
    pieces = made.divide(found, hashes, settings, folder)
    _tokenise(pieces, workers, progress)
    _unchanged(places, found)
    plan = shards.Plan.of(
        pieces, [made.table(piece) for piece in pieces], options.held_out, drop=options.drop_duplicates
    )
    if not len(plan.lengths):
        raise ConfigError(
            f"texts must hold text, but all {plan.empty} documents are empty; name others, or another --column"
        )
    rows = _write(plan, folder, dtype, options.shard_tokens, workers, progress)
    with reported(folder, "the folder of a corpus must be writable"):
        (folder / record.TOKENIZER).replace(tokenizer.content)
    content["splits"] = {split: plan.counts(split) for split in shards.SPLITS}
    content["empty"] = plan.empty
    content["dropped"] = int((~plan.kept).sum())
    _forget_others(folder, {row["name"] for row in rows})
    corpus = record.write(folder, content | {"shards": rows})
    _forget_pieces(folder)
    return corpus


def _forget_pieces(folder: Location) -> None:
    """Delete what a finished corpus was made of; a call that was stopped here left some of it."""
    pieces = folder / record.PIECES
    if not folder.is_local:
        for leftover in pieces.walk():
            leftover.delete()
    elif pieces.path.exists():
        with reported(folder, "the folder of a corpus must be writable"):
            shutil.rmtree(pieces.path)  # with what a killed writer left, which `walk` does not show


def _forget_others(folder: Location, names: set[str]) -> None:
    """Delete shards that a call with other options left: a corpus is all shards of its folder."""
    for name in folder.children():
        if shards.FILE.fullmatch(name) and name not in names:
            (folder / name).delete()


def _already(folder: Location) -> Record | None:
    """The corpus that the folder holds; ConfigError if it holds anything but that or unfinished pieces."""
    found = record.read(folder)
    if found is not None:
        return found
    with reported(folder, "the folder of a corpus must be readable"):
        inside, unfinished = folder.children(), (folder / record.PIECES).children()
    begun = record.PIECES in inside and (not unfinished or record.INPUTS in unfinished)
    known = (record.PIECES, record.TOKENIZER)
    strange = [name for name in inside if not begun or not (name in known or shards.FILE.fullmatch(name))]
    if strange:
        raise ConfigError(
            f"--out must be a new folder, or one that `froude data prepare` began, but {folder} holds {strange[0]}; "
            "name another"
        )
    return None


def _check_same(already: Record, content: dict[str, Any]) -> None:
    """ConfigError if the finished corpus is of other texts or settings."""
    had, wanted = _nameless(already.content), _nameless(content)
    for key, value in wanted.items():
        if had.get(key) != value:
            what = {"inputs": "other texts", "tokenizer": "another tokenizer"}.get(
                key, f"{key} {had.get(key)}"
            )
            raise ConfigError(
                f"--out must hold no other corpus, but {already.folder} holds one of {what}; name another folder, or "
                "remove that one"
            )


def _nameless(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a corpus is made of, wherever its texts and tokenizer lie and whatever they are called."""
    found = dict(content)
    inputs = content.get("inputs", ())
    # A name still says how a text is read.
    found["inputs"] = [(each.get("sha256"), texts.is_plain(each.get("name", ""))) for each in inputs]
    found["tokenizer"] = {k: v for k, v in content.get("tokenizer", {}).items() if k != "name"}
    return found


def _hashes(
    found: Sequence[texts.Input], folder: Location, workers: Workers, progress: Progress, *, keep: bool
) -> dict[str, str]:
    """SHA-256 of each text, by URL; those known from before, where size and time of a file are what they were."""
    place = folder / record.PIECES / record.INPUTS
    known: dict[str, list[Any]] = json.loads(place.read()) if keep and place.exists() else {}
    todo = [each for each in found if known.get(each.url, [])[:2] != [each.size, each.stamp]]
    done, total = 0, max(1, sum(each.size for each in todo))
    for each, sha256 in workers(_hashed, todo):
        known[each.url] = [each.size, each.stamp, sha256]
        done += each.size
        progress("read", done / total, f"{done / 2**20:.1f} of {total / 2**20:.1f} MiB")
    if keep:
        place.replace(json.dumps(known).encode())
    return {each.url: known[each.url][2] for each in found}


def _hashed(input: texts.Input) -> tuple[texts.Input, str]:
    return input, texts.sha256(input)


def _tokenise(pieces: Sequence[made.Piece], workers: Workers, progress: Progress) -> None:
    todo = {piece.key: piece for piece in pieces if not piece.file("npz").exists()}
    total = sum(piece.weight for piece in pieces)
    done = total - sum(piece.weight for piece in todo.values())

    def tell() -> None:
        progress("tokenise", done / max(1, total), f"{done / 2**20:.1f} of {total / 2**20:.1f} MiB of text")

    tell()
    for weight in workers(made.tokenise, list(todo.values())):
        done += weight
        tell()


def _unchanged(places: Sequence[str], before: Sequence[texts.Input]) -> None:
    now = {each.url: each for each in texts.inputs(places)}
    for each in before:
        if now.get(each.url) != each:
            raise ConfigError(
                f"texts must stay as they are until they are tokenised, but {each.url} changed; start again"
            )


def _write(
    plan: shards.Plan, folder: Location, dtype: Any, most: int, workers: Workers, progress: Progress
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    done, total = 0, int(plan.lengths[plan.kept].sum())
    for pair in workers(shards.write, plan.shards(folder, dtype, most)):
        rows += pair
        done += pair[0]["tokens"]
        progress("write", done / total, f"{done:,} of {total:,} tokens")
    return sorted(rows, key=lambda row: str(row["name"]))
