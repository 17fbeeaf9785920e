"""froude verify-run."""

from __future__ import annotations

from typing import Annotated

import typer

from froude.cli.common import FAILED, Debug, Json, Trust, emit, verb

MARKS = {True: "ok  ", False: "FAIL", None: "?   "}


@verb
def verify_run(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A recipe.toml, its study or its run's directory; a path or s3:// URL."
        ),
    ],
    rerun: Annotated[
        bool,
        typer.Option(
            "--rerun", help="Also train it again here, undisturbed, and compare every bit (exact runs only)."
        ),
    ] = False,
    other_build: Annotated[
        bool, typer.Option("--other-build", help="Rerun even if this machine's build is another.")
    ] = False,
    trust: Trust = False,
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Check a target run from what is stored: log, seal, trials, every token against the corpus, the final checkpoint.

    Exit code 1 if a check fails; what can't be told from here (?) is no failure.

    Example: froude verify-run runs/quickstart --rerun
    """
    from froude.launch.display import Display
    from froude.promote import verify
    from froude.train.api import check_trust

    study, recipe = verify.locate(run)
    if not recipe.trainer:
        check_trust(recipe.run, trust)
    display, found = Display(quiet=as_json), []
    display.stage("verify")

    def show(what: str, share: float) -> None:
        display.update(share, what)

    for check in verify.verify_run(study, recipe, rerun=rerun, other_build=other_build, progress=show):
        found.append(check)
        display.line(f"{MARKS[check.passed]}  {check.name}: {check.seen}")
    failed = sum(check.passed is False for check in found)
    unknown = sum(check.passed is None for check in found)
    if as_json:
        emit({"run": recipe.run.name, "failed": failed, "checks": [check.to_dict() for check in found]})
    else:
        passed = f"{len(found) - failed - unknown} of {len(found)} checks passed"
        display.line(f"{recipe.run.name}: {passed}{f', {unknown} unknown' if unknown else ''}")
    return FAILED if failed else None
