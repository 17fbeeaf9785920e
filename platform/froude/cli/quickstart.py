"""froude quickstart."""

from __future__ import annotations

from typing import Annotated

import typer

from froude.cli.common import Debug, Json, emit, verb


@verb
def quickstart(
    out: Annotated[
        str, typer.Option(metavar="STUDY", help="Path or s3:// URL of the study.")
    ] = "runs/quickstart",
    seed: Annotated[int, typer.Option(min=0, help="Seed of every run and every choice.")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete the study and start over.")] = False,
    space: Annotated[
        str,
        typer.Option(metavar="FILE", help="Search space; without this option, search_spaces/quickstart.py."),
    ] = "",
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Run the whole loop on this machine: sweep, fit, promote, elastic run through a failure, report.

    Example: froude quickstart --seed 7 --out runs/seed7
    """
    from froude.launch.display import Display
    from froude.quickstart.whole import quickstart as loop

    content = loop(out, seed=seed, fresh=fresh, space=space, display=Display(quiet=as_json))
    if as_json:
        emit(content)
    return None
