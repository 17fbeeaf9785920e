"""The report of a study: one HTML file that needs nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from froude.promote.fits import Fits
    from froude.store import Location
    from froude.study import Study

FILE = "report.html"


def render(
    study: Study, *, fits: Fits | None = None, trust: bool = False, register: Location | None = None
) -> str:
    """The study's report as one HTML document without outside links; `fits` saves fitting again.

    `trust` lets a model from outside the package count its parameters, which the gate's table of a study needs.
    `register` adds a section with the scores that are kept there (`froude.register`).

    ConfigError for a folder that is no study, or a register that can't be read. What a study lacks yet, or what of it
    cannot be read, the report says in words.
    """
    from froude.report.document import document
    from froude.report.view import gather

    return document(gather(study, fits=fits, trust=trust, register=register))


def write(
    study: Study, *, fits: Fits | None = None, trust: bool = False, register: Location | None = None
) -> Location:
    """Render the report into the study and return where it lies; it replaces an older one in one piece."""
    place = study.location / FILE
    place.replace(render(study, fits=fits, trust=trust, register=register).encode())
    return place
