"""The verbs, gathered."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from froude.cli import checkpoints, data
from froude.cli.chaos import chaos
from froude.cli.coordcheck import coordcheck
from froude.cli.doctor import doctor
from froude.cli.fit import fit
from froude.cli.follow import follow
from froude.cli.ingest import ingest
from froude.cli.init import init
from froude.cli.plan import plan
from froude.cli.profile import profile
from froude.cli.promote import promote
from froude.cli.quickstart import quickstart
from froude.cli.report import report
from froude.cli.status import status
from froude.cli.sweep import sweep
from froude.cli.train import train
from froude.cli.verify_run import verify_run

app = typer.Typer(
    name="froude",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or input, 3 refused, 4 no progress, 130 interrupted, "
    "143 terminated.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (
    *(init, plan, sweep, status, fit, promote, train, report, quickstart, verify_run, chaos, coordcheck),
    *(ingest, follow, doctor, profile),
):
    app.command(verb.__name__.replace("_", "-"))(verb)
app.add_typer(checkpoints.app)
app.add_typer(data.app)


def _version(asked: bool) -> None:
    if asked:
        print(version("froude"))
        raise typer.Exit


@app.callback()
def froude(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Sweep small proxies, fit the laws, forecast the large run (the target run), train it once through failures."""
