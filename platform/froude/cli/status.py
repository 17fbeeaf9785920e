"""froude status."""

from __future__ import annotations

from typing import Annotated

import typer

from froude.cli.common import Debug, Json, emit, verb


@verb
def status(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="Path or s3:// URL of a study.")],
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Show how far a study is: trials by stage, the recipe, the run's progress.

    Example: froude status runs/quickstart
    """
    from froude.launch.status import status as status_of

    found = status_of(study)
    if as_json:
        emit(found.to_dict())
    else:
        print("\n".join(found.lines()))
    return None
