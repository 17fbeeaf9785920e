"""froude data prepare | stats | verify | train-tokenizer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from froude.cli.common import FAILED, Debug, Json, counted, emit, verb

if TYPE_CHECKING:
    from froude.corpora.prepare.whole import Workers
    from froude.corpora.record import Record
    from froude.launch.display import Display
    from froude.store import Location

app = typer.Typer(
    name="data",
    help="Make shards of tokens from texts, look into them, and verify them. TEXTS are plain text (a document a file), "
    "JSON lines or Parquet, files or folders; all paths may be s3:// URLs.",
    no_args_is_help=True,
)

Texts = Annotated[list[str], typer.Argument(metavar="TEXTS...", help="Files or folders of texts.")]
Place = Annotated[str, typer.Argument(metavar="DIR|SHARD", help="A folder of shards, or one of them.")]
Column = Annotated[str, typer.Option(metavar="NAME", help="Key or column that holds the text.")]


@verb
def prepare(
    texts: Texts,
    tokenizer: Annotated[str, typer.Option(metavar="FILE", help="A tokenizer.json.")],
    out: Annotated[str, typer.Option(metavar="DIR", help="A new folder, or one where this was interrupted.")],
    held_out: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Share of the documents to validate on, chosen by their hash."),
    ] = 0.01,
    eod: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help='Ends each document; "" for none.',
            show_default="<|endoftext|>, </s> or the like, if the tokenizer has it",
        ),
    ] = None,
    column: Column = "text",
    shard_tokens: Annotated[int, typer.Option(metavar="N", help="Most tokens of a shard.")] = 1 << 28,
    drop_duplicates: Annotated[
        bool, typer.Option("--drop-duplicates", help="Leave out documents that were there before.")
    ] = False,
    address: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Address of a Ray cluster, e.g. auto; without it RAY_ADDRESS, else here."
        ),
    ] = "",
    shared: Annotated[
        bool, typer.Option("--shared", help="Say that local paths are on a file system that all hosts share.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Tokenise texts into Megatron shards (.bin, .idx) with hashes: on all cores here, or on a Ray cluster.

    The same command goes on where it was interrupted. Which documents validate depends on their text alone.

    Example: froude data prepare texts/ --tokenizer tokenizer.json --out data/tokens
    """
    from froude.corpora.prepare.whole import Options
    from froude.corpora.prepare.whole import prepare as make
    from froude.launch.display import Display
    from froude.store import Location

    options = Options(tokenizer, eod, column, held_out, drop_duplicates, shard_tokens)
    display, folder = Display(quiet=as_json), Location.parse(out)
    with _workers(address, folder, shared=shared) as workers:
        found = make(texts, folder, options, workers=workers, progress=_stages(display))
    if as_json:
        emit({"folder": folder.url, **found.content})
    else:
        for line in _made(found):
            display.line(line)
    return None


@contextmanager
def _workers(address: str, folder: Location, *, shared: bool) -> Iterator[Workers]:
    if not (address or os.environ.get("RAY_ADDRESS")):
        yield map
        return
    from froude.cli.common import cluster
    from froude.launch.tasks import over_cluster

    with cluster(address, 0, folder, shared=shared, what="a corpus"):
        yield over_cluster


def _stages(display: Display) -> Any:
    """Shows a stage's progress under its name."""
    now = ""

    def show(stage: str, share: float, what: str) -> None:
        nonlocal now
        if stage != now:
            now = stage
            display.stage(stage)
        display.update(share, what)

    return show


def _made(corpus: Record) -> Iterator[str]:
    content = corpus.content
    read = sum(each["size"] for each in content["inputs"]) / 2**20
    yield f"texts       {counted(len(content['inputs']), 'file')}, {read:.1f} MiB"
    for split, counts in corpus.splits.items():
        each = corpus.bytes_per_token(split)
        told = f", {each:.3f} bytes a token" if each else ""
        yield f"{split:<11} {counted(counts['documents'], 'document')}, {counted(counts['tokens'], 'token')}{told}"
    if content["held_out"] and not corpus.splits["validation"]["documents"]:
        yield "            no document is held out: all are one (a plain text file is one, equal documents are one)"
    repeats = sum(counts["duplicates"] for counts in corpus.splits.values())
    what = "dropped" if content["drop_duplicates"] else "kept; --drop-duplicates leaves them out"
    yield f"duplicates  {f'{repeats:,}, {what}' if repeats else 'none'}"
    if content["empty"]:
        yield f"empty       {counted(content['empty'], 'document')} left out"
    end = corpus.tokenizer["eod"]
    yield f"tokenizer   {corpus.tokenizer['vocab']:,} tokens, documents end with {end['token'] if end else 'none'}"
    yield f"shards      {sum('tokens' in row for row in corpus.shards)} in {corpus.folder} ({content['dtype']})"


@verb
def stats(
    place: Place,
    tokenizer: Annotated[
        str, typer.Option(metavar="FILE", help="The tokenizer.json of shards whose folder has no data.json.")
    ] = "",
    format: Annotated[
        str,
        typer.Option("--format", metavar="NAME", help="Format of the shards, where their names do not tell."),
    ] = "auto",
    dtype: Annotated[
        str,
        typer.Option(metavar="TYPE", help="Type of ids in files that don't say it: uint16, uint32 or int32."),
    ] = "uint16",
    column: Annotated[
        str, typer.Option(metavar="NAME", help="Parquet's or Arrow's column of token ids.")
    ] = "",
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Show documents, tokens, bytes a token, lengths, the use of the vocabulary, and duplicates of each split.

    Example: froude data stats data/tokens
    """
    from froude.corpora.corpus import Options
    from froude.corpora.stats import stats as count
    from froude.launch.display import Display

    display = Display(quiet=as_json)
    display.stage("read")
    found = count(place, tokenizer, Options(format, dtype, column), progress=display.update)
    if as_json:
        emit({"splits": {name: each.to_dict() for name, each in found.items()}})
        return None
    for name, each in found.items():
        display.line(name)
        for line in each.lines():
            display.line(f"  {line}")
    return None


@verb
def verify(
    place: Place,
    write: Annotated[
        bool, typer.Option("--write", help="Make the data.json of a folder that has none, from its shards.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Read every byte of every shard and compare SHA-256 with data.json; exit code 1 if one differs.

    Example: froude data verify data/tokens
    """
    from froude.corpora import verify as checking
    from froude.launch.display import Display

    display = Display(quiet=as_json)
    display.stage("verify")
    if write:
        made = checking.write(place, display.update)
        if as_json:
            emit({"folder": made.folder.url, "shards": made.shards, "differing": []})
        else:
            display.line(
                f"{made.folder / 'data.json'}: written, with the SHA-256 of {counted(len(made.shards), 'file')}"
            )
        return None
    found = list(checking.verify(place, display.update))
    bad = [each for each in found if each.wrong]
    if as_json:
        emit({"shards": len(found), "differing": [vars(each) for each in bad]})
    else:
        for each in bad:
            display.line(f"{each.name} {each.wrong}")
        they = "are what they were" if len(found) != 1 else "is what it was"
        remedy = "; restore the others, or prepare the data again" if bad else ""
        display.line(f"{len(found) - len(bad)} of {counted(len(found), 'file')} {they}{remedy}")
    return FAILED if bad else None


@verb
def train_tokenizer(
    texts: Texts,
    vocab: Annotated[int, typer.Option(metavar="N", help="Tokens, with the 256 bytes and <|endoftext|>.")],
    out: Annotated[str, typer.Option(metavar="FILE", help="Where the tokenizer.json is written.")],
    column: Column = "text",
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Train a byte-level BPE tokenizer with the library `tokenizers`: the same texts give the same file.

    Example: froude data train-tokenizer texts/ --vocab 4096 --out tokenizer.json
    """
    from froude.config import ConfigError
    from froude.corpora.prepare.inputs import inputs
    from froude.corpora.prepare.texts import all_documents
    from froude.corpora.tokenizer import Tokenizer, trained
    from froude.launch.display import Display
    from froude.store import Location, reported

    found, target = inputs(texts), Location.parse(out)
    with reported(target, "the tokenizer must be writable"):
        if target.exists():
            raise ConfigError(f"--out must be a new file, but {target} is there; name another, or remove it")
    display = Display(quiet=as_json)
    display.stage("tokenizer")
    content = trained(all_documents(found, column, display.update), vocab)
    with reported(target, "the tokenizer must be writable"):
        target.replace(content)
    made = Tokenizer(content, target.name)
    if as_json:
        emit({"file": target.url, "vocab": made.size, "sha256": made.sha256})
        return None
    fewer = f": the texts hold no more pairs than that, {vocab:,} were asked for" if made.size < vocab else ""
    display.line(f"{target}: {made.size:,} tokens{fewer}")
    return None


for command in (prepare, stats, verify, train_tokenizer):
    app.command(command.__name__.replace("_", "-"))(command)
