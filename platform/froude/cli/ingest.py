"""froude ingest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from froude.cli.common import FAILED, Debug, Json, Trust, emit, verb


@verb
def ingest(
    jobs: Annotated[str, typer.Argument(metavar="DIR", help="Folder of `froude sweep --write-jobs`.")],
    study: Annotated[
        str,
        typer.Option(metavar="STUDY", help="The study, if it is not where it was.", show_default=False),
    ] = "",
    trust: Trust = False,
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Take in what came of jobs that a sweep wrote: what has ended goes into the study, what failed is listed again.

    Example: froude ingest jobs/study
    """
    from froude.external.jobs import ingest as take_in
    from froude.store import Location

    place = Path(jobs).resolve()
    state = take_in(place, Location.parse(study) if study else None, trust=trust)
    if as_json:
        emit(state.to_dict())
    else:
        print("\n".join([*state.lines(), next_step(state.waiting, place)]))
    return FAILED if state.failed else None


def next_step(waiting: list[str], place: Path) -> str:
    """What to do now."""
    if waiting:
        return f"next: sh {place}/jobs.txt, or sbatch {place}/jobs.sbatch; then froude ingest {place}"
    return f"next: the same `froude sweep … --write-jobs {place}` writes the trials that these rows lead to, if any"
