"""froude profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from froude.cli.common import INTERRUPTED, Debug, Json, Trust, emit, say, verb

if TYPE_CHECKING:
    from froude.config import Run


@verb
def profile(
    path: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="recipe.toml, a study with one, a run as TOML, a search space (.py), whose target run it is, or "
            "FILE.py:FUNCTION.",
        ),
    ],
    steps: Annotated[int, typer.Option(min=1, help="Steps to time, and as many more to trace.")] = 10,
    trace: Annotated[
        str,
        typer.Option(
            metavar="FILE.json", help="Where to write the trace.", show_default="runs/profile/NAME.json"
        ),
    ] = "",
    device: Annotated[str, typer.Option(help="Device: auto, cpu or cuda.")] = "auto",
    trust: Trust = False,
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Show where the time of a run's steps goes, by phase, and write a trace of them; on one worker, keeping nothing.

    Example: froude profile runs/quickstart
    """
    try:
        return _profile(path, steps, trace, device, trust=trust, as_json=as_json)
    except KeyboardInterrupt:
        return say("interrupted; no trace was written; the same command starts anew", INTERRUPTED)


def _profile(path: str, steps: int, trace: str, device: str, *, trust: bool, as_json: bool) -> int | None:
    from dataclasses import asdict

    import torch

    from froude.config import ConfigError
    from froude.launch.display import Display
    from froude.sweep.plan import worker_bytes
    from froude.sweep.preflight import check_memory
    from froude.train.api import check_trust
    from froude.train.parallel import resolve_device
    from froude.train.speed.profile import check_writable, measure

    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device must be auto, cpu or cuda, but got {device!r}; name one")
    run = _run(path)
    if run.trainer.command:
        raise ConfigError(
            f"froude can profile what it trains itself, but a command trains {run.name}; use that one's own profiler"
        )
    file = _trace(trace or f"runs/profile/{run.name}.json", path)
    check_writable(file)
    check_trust(run, trust)
    if resolve_device(device).type == "cpu":
        torch.set_num_threads(run.compute.threads or 1)
        check_memory(worker_bytes(run), what=f"a profile of {run.name}")
    display = Display(quiet=as_json)
    display.stage("profile")
    found = measure(run, file, steps=steps, device=device, progress=display.update)
    display.done(f"{2 * steps} steps")
    if as_json:
        emit(asdict(found) | {"covered": found.covered})
    else:
        print("\n".join(found.lines()))
    return None


def _trace(name: str, run: str) -> Path:
    """Where the trace is to be; ConfigError for what is no JSON file, or is the run's own."""
    from froude.config import ConfigError

    file = Path(name)
    if file.is_dir():
        raise ConfigError(
            f"--trace must be a file, but {file} is a folder; name a file in it, such as trace.json"
        )
    if file.suffix != ".json" or file.resolve() == Path(run).resolve():
        own = "" if file.suffix != ".json" else ", the run's own file"
        raise ConfigError(f"--trace must be a .json file of its own, but got {name}{own}; name another")
    return file


def _run(path: str) -> Run:
    """The run of a study's recipe where it has one, else as other verbs find it."""
    from froude.cli.coordcheck import load_run
    from froude.promote.recipe import FILE
    from froude.store import Location

    if not path.endswith((".py", ".toml")) and (Location.parse(path) / FILE).exists():
        path = (Location.parse(path) / FILE).url
    return load_run(path)
