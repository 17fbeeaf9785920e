"""froude fit."""

from __future__ import annotations

from typing import Annotated

import typer

from froude.cli.common import Debug, Json, emit, verb


@verb
def fit(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="Path or s3:// URL of a study.")],
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Fit the laws to a study: learning-rate transfer, critical batch, loss.

    Example: froude fit runs/quickstart
    """
    from froude.promote.fits import fit as fit_study
    from froude.study import Study

    fits = fit_study(Study(study))
    if as_json:
        emit(fits.summary() | {"fingerprints": dict(fits.fingerprints)})
    else:
        print("\n".join(fits.lines()))
    return None
