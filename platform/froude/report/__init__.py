"""The report of a study: one HTML file that needs nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from froude.store import Location
    from froude.study import Study

FILE = "report.html"


def render(study: Study) -> str:
    """The study's report as one HTML document without outside links; ConfigError where there is no study."""
    from froude.report.document import document
    from froude.report.view import gather

    return document(gather(study))


def write(study: Study) -> Location:
    """Render the report into the study and return where it lies; it replaces an older one at once."""
    place = study.location / FILE
    place.replace(render(study).encode())
    return place
