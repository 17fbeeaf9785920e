"""froude coordcheck."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from froude.cli.common import FAILED, Debug, Json, Trust, emit, verb

if TYPE_CHECKING:
    from froude.config import Run
    from froude.promote.diagnosis.causes import Cause
    from froude.study import Study


@verb
def coordcheck(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="Search space (.py), recipe.toml, a run as TOML, or a study, which keeps the verdict for the gate.",
        ),
    ],
    widths: Annotated[
        str,
        typer.Option(
            help="Three or more widths, separated by commas; without this option, five doublings from 64."
        ),
    ] = "",
    depths: Annotated[
        str, typer.Option(help="Three or more depths: check over depth instead, at the run's own width.")
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Initialisations and batches to average over.")] = 3,
    times: Annotated[str, typer.Option(help="After how many updates to measure.")] = "1,3,10",
    plot: Annotated[
        str, typer.Option(metavar="FILE", help="Where to write a plot (.svg, .png or .pdf).")
    ] = "coordcheck.svg",
    device: Annotated[str, typer.Option(help="Device: auto, cpu or cuda.")] = "auto",
    trust: Trust = False,
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Check that updates move a run's blocks equally far at every width; exit code 1 if not, or if that is unclear.

    A check that fails names the rules of muP that the code breaks, as measured at the narrowest widths.

    The model, optimizer and rate are those of the run, or of a space's target run; SP is the control that must fail.

    Example: froude coordcheck search_spaces/quickstart.py --widths 64,128,256
    """
    from dataclasses import asdict

    import polars as pl
    import torch

    from froude.cli.options import check_plot
    from froude.config import ConfigError
    from froude.launch.display import Display
    from froude.laws.drawing.coordinates import draw
    from froude.promote.checks import coordinates
    from froude.promote.diagnosis.causes import causes
    from froude.promote.diagnosis.diagnose import WIDTHS, examine
    from froude.sweep.plan import worker_bytes
    from froude.sweep.preflight import check_memory
    from froude.train.api import check_trust
    from froude.train.probe.coordcheck import check, checked, short, sizes_of
    from froude.train.probe.slopes import DOWNHILL

    if depths and widths:
        raise ConfigError("a check is over width or depth, but got --widths and --depths; drop one")
    check_plot(plot, (".svg", ".png", ".pdf"))
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device must be auto, cpu or cuda, but got {device!r}; name one")
    torch.set_num_threads(1)  # models are small: threads would only wait for each other
    run = coordinates.from_seed(load_run(path))
    check_trust(run, trust)
    run.check_optimizer()
    over: Literal["depth", "width"] = "depth" if depths else "width"
    sizes = integers(f"--{over}s", depths or widths) if depths or widths else sizes_of(run)
    largest = short(run.replace({f"model.{over}": max(sizes)}), 1)
    check_memory(worker_bytes(largest), what=f"a coordinate check up to {over} {max(sizes)}")
    display = Display(quiet=as_json)
    display.stage("coordcheck")
    found = check(
        run,
        over,
        sizes,
        seeds=seeds,
        times=integers("--times", times),
        device=device,
        progress=display.update,
    )
    if (study := study_at(path)) is not None and over == "width":
        coordinates.keep(study, run, found.verdict, sizes)
    moves = pl.DataFrame([row for row in found.rows if row["name"] != DOWNHILL])
    figure = draw(moves, over, found.verdict, reasons=found.reasons)
    figure.savefig(plot)
    if not as_json:
        display.done(f"{len(sizes)} sizes, {seeds} seeds, drawn in {plot}")
        print("\n".join(found.lines()), flush=True)
    broken: list[Cause] = []
    if found.verdict == "failed" and over == "width":
        narrow = sorted(set(sizes))[:WIDTHS]
        changes = {"parametrization": checked(run).name}
        broken = causes(examine([run.replace({"model.width": width, **changes}) for width in narrow]))
        if not as_json:
            print("\n".join(_rules(broken, narrow)))
    if as_json:
        emit({**found.to_dict(), "causes": [asdict(cause) for cause in broken], "plot": plot})
    return None if found.passed else FAILED


def _rules(broken: list[Cause], widths: list[int]) -> list[str]:
    """The rules that the code breaks, each with its remedy; or a line that says that none was found."""
    from froude.promote.diagnosis.causes import REMEDIES

    where = f"by what real updates do at widths {', '.join(map(str, widths))}"
    if not broken:
        none = "rates, decay, initialisation and multipliers scale with width as they must"
        return [f"{where}: {none}; look for instability, and try a lower rate"]
    lines = [f"{i}. {cause.line()}; {REMEDIES[cause.name]}" for i, cause in enumerate(broken, 1)]
    return [f"rules that the code breaks, {where}:", *lines]


def load_run(path: str) -> Run:
    """The run of a recipe or a TOML file, a space's target, or what FILE.py:FUNCTION returns; ConfigError for none."""
    import tomllib

    from froude.config import ConfigError, Run
    from froude.promote.recipe import read
    from froude.space import load_space, space
    from froude.store import Location, reported

    if path.endswith(".py"):
        return load_space(path).target
    if ".py:" in path:
        return space.load_run(path)
    if (study := study_at(path)) is not None:
        return Run.from_dict(study.meta["target"])
    place = Location.parse(path)
    try:
        with reported(place, "a run must be readable"):
            text = place.read().decode()
        content = tomllib.loads(text)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"a run must be valid TOML, but {path} is not: {error}") from None
    return read(place).run if "froude" in content else Run.from_dict(content)


def study_at(path: str) -> Study | None:
    """The study with a target at this place, None if there is none."""
    from froude.store import Location
    from froude.study import Study

    if path.endswith((".py", ".toml")) or not (Location.parse(path) / "study.json").exists():
        return None
    study = Study(path)
    return study if "target" in study.meta else None


def integers(option: str, text: str) -> list[int]:
    """Whole numbers separated by commas; ConfigError for anything else."""
    from froude.config import ConfigError

    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"{option} must be whole numbers separated by commas, e.g. 64,128,256, but got {text!r}"
        ) from None
