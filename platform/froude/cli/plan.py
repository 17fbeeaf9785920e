"""froude plan."""

from __future__ import annotations

from typing import Annotated

import typer

from froude.cli.common import Debug, Json, Trust, emit, verb


@verb
def plan(
    space: Annotated[str, typer.Argument(metavar="SPACE", help="Python file that defines space().")],
    seed: Annotated[int, typer.Option(min=0, help="Of every run.")] = 0,
    trust: Trust = False,
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Print what a sweep and the large run would take, and start nothing.

    Example: froude plan search_spaces/quickstart.py
    """
    from froude.launch.plan import plan as plan_of
    from froude.space import load_space

    found = plan_of(load_space(space, seed=seed), trust=trust)
    if as_json:
        emit(found.to_dict())
    else:
        print("\n".join(found.lines()))
    return None
