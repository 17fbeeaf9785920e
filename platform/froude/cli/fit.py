"""froude fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from froude.cli.common import Debug, Json, Trust, emit, verb

if TYPE_CHECKING:
    from froude.config import Run
    from froude.promote.diagnosis import Diagnosis
    from froude.promote.fits import Fits
    from froude.store import Location
    from froude.study import Study
    from froude.train.branches import Branched


@verb
def fit(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="Path or s3:// URL of a study.")],
    diagnose: Annotated[
        bool, typer.Option("--diagnose", help="Say why learning rates do not transfer: trains a few steps.")
    ] = False,
    branches: Annotated[
        bool,
        typer.Option(
            "--branches", help="Measure the large run's critical batch on branches of its checkpoint."
        ),
    ] = False,
    trust: Trust = False,
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Fit the laws to a study: learning-rate transfer, critical batch, loss.

    Example: froude fit runs/quickstart
    """
    from froude.promote.fits import fit as fit_study
    from froude.study import Study

    found = Study(study)
    fits = fit_study(found)
    diagnoses = _diagnoses(found.location, fits, trust=trust, quiet=as_json) if diagnose else []
    branched = _branched(found, fits.target, trust=trust, quiet=as_json) if branches else None
    if as_json:
        content = fits.summary() | {"fingerprints": dict(fits.fingerprints)}
        content |= {"diagnosis": [each.to_dict() for each in diagnoses]} if diagnose else {}
        emit(content | ({"branches": branched.to_dict()} if branched else {}))
    else:
        print("\n".join(fits.lines()))
        for each in diagnoses:
            print("\n".join(["", *each.lines()]))
        if branched:
            print("\n".join(["", *branched.lines()]))
    return None


def _diagnoses(study: Location, fits: Fits, *, trust: bool, quiet: bool) -> list[Diagnosis]:
    """One of each parametrization that the study has a transfer curve of, from the runs of its trials."""
    from froude.launch.display import Display
    from froude.launch.parts import read_all
    from froude.promote.diagnosis import diagnose
    from froude.train.api import check_trust

    runs = {run.name: run for stored in read_all(study).values() for run in stored.trial.runs}
    display, found = Display(quiet=quiet), []
    for name in fits.transfer:
        rows = fits.rows[f"lr_transfer_{name}"]
        chosen = [runs[run].replace(parametrization=name) for run in rows["run"] if run in runs]
        for run in chosen:
            check_trust(run, trust)
        display.stage("diagnose")
        found.append(diagnose(chosen, rows, progress=display.update))
    return found


def _branched(study: Study, run: Run, *, trust: bool, quiet: bool) -> Branched:
    """The critical batch of the study's large run, where its newest checkpoint stands."""
    from froude.checkpoint.run_store import RunStore
    from froude.launch.display import Display
    from froude.train.api import check_trust
    from froude.train.branches import branch

    check_trust(run, trust)
    display = Display(quiet=quiet)
    display.stage("branches")
    store = RunStore(study.location / "runs" / run.name, run.name)
    return branch(run, store, progress=display.update)
