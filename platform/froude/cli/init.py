"""froude init."""

from __future__ import annotations

from typing import Annotated

import typer

from froude.cli.common import Debug, Json, emit, verb


@verb
def init(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="New or empty folder.")],
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="hf:CONFIG, a config.json of transformers or its folder; own, for a class to fill in.",
            show_default="froude's transformer",
        ),
    ] = "",
    data: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help="Token shards or texts: a file, folder, pattern or s3:// URL; own, for a class to fill in.",
            show_default="the King James Bible",
        ),
    ] = "",
    tokenizer: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="tokenizer.json that texts go through.",
            show_default="the one beside the model's config.json, else one trained on them",
        ),
    ] = "",
    column: Annotated[str, typer.Option(metavar="NAME", help="Key or column that holds the text.")] = "text",
    trainer: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND", help="Your own trainer, which trains each run.", show_default="froude's"
        ),
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a window.", show_default="128")
    ] = None,
    vocab: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Size of the vocabulary, and of a tokenizer that is trained.",
            show_default="the data's, else the model's; of a new tokenizer 1024",
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a small project of your own: a search space, what it needs, and a README of five lines.

    Example: froude init towing --model hf:config.json --data s3://bucket/texts

    Example: froude init towing --trainer "python train.py"
    """
    from pathlib import Path

    from froude.config import ConfigError
    from froude.launch.display import Display
    from froude.starter.project import Wishes, write

    if trainer is not None and not trainer.strip():
        raise ConfigError("--trainer must be a command, but is empty; name one, or leave it out")
    display = Display(quiet=as_json)
    display.stage("tokenizer")
    wishes = Wishes(model, data, tokenizer, trainer or "", context or 0, vocab or 0, column)
    made = write(Path(folder).expanduser(), wishes, display.update)
    if as_json:
        emit({"files": [str(file) for file in made]})
        return
    for file in made:
        display.line(f"wrote     {file}")
    own = "own" in (model, data)
    trust = " --trust" if trainer or own else ""
    steps = [] if Path(folder).resolve() == Path.cwd() else [f"cd {folder}"]
    steps += ["export PYTHONPATH=$PWD"] if own else []
    display.line(f"next      {' && '.join([*steps, f'froude plan search_space.py{trust}'])}")
