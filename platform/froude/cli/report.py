"""froude report."""

from __future__ import annotations

from typing import Annotated

import typer

from froude.cli.common import Debug, Json, Register, Trust, emit, verb


@verb
def report(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="Path or s3:// URL of a study.")],
    register: Register = "",
    trust: Trust = False,
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Write the study's report, one HTML file without outside links, into the study.

    With --register it keeps the score of a finished run there, and shows all scores that are.

    Example: froude report runs/quickstart
    """
    from froude.report import write
    from froude.store import probe_writable
    from froude.study import Study

    found = Study(study)
    if not found.exists:
        raise found.missing()
    probe_writable(found.location)
    kept = None
    if register:
        from froude.register import keep, opened

        kept = opened(register, found.location)
        keep(kept, found, trust=trust)
    place = write(found, trust=trust, register=kept)
    if as_json:
        emit({"report": place.url})
    else:
        print(place.url)
    return None
