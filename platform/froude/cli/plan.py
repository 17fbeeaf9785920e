"""froude plan."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from froude.cli.common import FAILED, Debug, Json, SkipProbe, Trust, emit, verb

if TYPE_CHECKING:
    from froude.config import Run
    from froude.promote.fits import Fits
    from froude.study import Study


@verb
def plan(
    space: Annotated[
        str,
        typer.Argument(
            metavar="[SPACE]",
            help="Python file that defines space(); with --device also a run's TOML file, or FILE.py:FUNCTION.",
            show_default=False,
        ),
    ] = "",
    device: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Plan the target run for this device, e.g. h100-80gb.", show_default=False
        ),
    ] = "",
    nodes: Annotated[
        str,
        typer.Option(
            metavar="NODESxDEVICES",
            help="Nodes, and devices of each, for --device; one number is the devices of one node.",
        ),
    ] = "1x1",
    devices: Annotated[
        str,
        typer.Option(metavar="FILE.toml", help="Table of devices over the package's.", show_default=False),
    ] = "",
    prices: Annotated[
        str, typer.Option(metavar="FILE.toml", help="Table of prices over the package's.", show_default=False)
    ] = "",
    explain: Annotated[
        bool, typer.Option("--explain", help="With --device: print the arithmetic number by number.")
    ] = False,
    next_of: Annotated[
        str, typer.Option("--next", metavar="STUDY", help="Plan what to run next in this study.")
    ] = "",
    target: Annotated[
        str,
        typer.Option(
            metavar="params=N,tokens=D",
            help="Target run whose forecast the next runs are for; without it the study's own.",
        ),
    ] = "",
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="TOKENS",
            help="Choose a set of next runs that costs no more than this.",
            show_default="the best run alone",
        ),
    ] = None,
    until: Annotated[
        float | None,
        typer.Option(
            metavar="PART",
            help="Choose no more next runs than bring the forecast's interval to ± this part of the loss.",
            show_default=False,
        ),
    ] = None,
    per: Annotated[
        Literal["tokens", "flops"], typer.Option(help="Unit of costs and of --budget.")
    ] = "tokens",
    top: Annotated[int, typer.Option(min=1, help="How many candidates to list.")] = 8,
    write: Annotated[
        str, typer.Option(metavar="FILE.py", help="Write the set (or the best run) as a search space.")
    ] = "",
    plot: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Draw the target's rate, batch, beta2 and weight decay over the run (.svg or .html).",
        ),
    ] = "",
    profile: Annotated[str, typer.Option(help="Profile with the bounds of promotion's gate.")] = "production",
    seed: Annotated[int, typer.Option(min=0, help="Seed of every run.")] = 0,
    trust: Trust = False,
    skip_probe: SkipProbe = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Print what a sweep and the target run would take, or which proxies a study should run next; start nothing.

    With --device, exit code 1 if the run fits on it in no way.

    Example: froude plan search_spaces/quickstart.py --plot schedule.svg

    Example: froude plan search_spaces/published_recipes.py:llama2_7b --device h100-80gb --nodes 4x8 --explain

    Example: froude plan --next runs/study --target params=7e9,tokens=1.4e11 --budget 2e10 --until .01 --write next.py
    """
    from froude.config import ConfigError
    from froude.promote.gate import profile_named
    from froude.space import load_space
    from froude.sweep.kernels import offer
    from froude.sweep.plan import plan as plan_of

    if plot:
        from froude.cli.options import check_plot
        from froude.report import schedule_plot

        if next_of:
            raise ConfigError("--plot draws the target run of a search space, but got --next; give SPACE")
        check_plot(plot, (".svg", ".html"))
    if bool(space) == bool(next_of):
        raise ConfigError(
            f"a plan is for a search space or for a study's next runs, but got {'both' if space else 'neither'}; "
            "give SPACE, or --next STUDY"
        )
    planned_for = {
        "--device": device,
        "--devices": devices,
        "--prices": prices,
        "--explain": explain,
        "--nodes": nodes != "1x1",
    }
    for_next = {
        "--target": target,
        "--budget": budget is not None,
        "--until": until is not None,
        "--write": write,
    }
    if next_of and (given := [name for name, value in planned_for.items() if value]):
        raise ConfigError(
            f"{given[0]} plans for a device, but got --next; give a search space, or leave it out"
        )
    if not next_of and (given := [name for name, value in for_next.items() if value]):
        raise ConfigError(f"{given[0]} plans the next runs of a study; give --next STUDY, too")
    if device and plot:
        raise ConfigError(
            "--plot draws the target run of a search space, but got --device; leave one of them out"
        )
    if next_of:
        _next(next_of, target, budget, until, per, top, write, profile, trust, as_json)
        return None
    if device:
        return _device(space, device, nodes, devices, prices, explain=explain, trust=trust, as_json=as_json)
    if given := [name for name, value in planned_for.items() if value]:
        raise ConfigError(f"{given[0]} plans for a device; give --device, too")
    if not space.endswith(".py"):
        raise ConfigError(
            f"without --device a plan is for a search space, a Python file that defines space(), but got {space}; name "
            "one, or the device that this run is planned for, e.g. --device h100-80gb"
        )
    loaded = load_space(space, seed=seed)
    found = plan_of(loaded, trust=trust, skip_probe=skip_probe or (), profile=profile_named(profile))
    fast = offer([trial.runs[-1] for trials in loaded.planned().values() for trial in trials])
    if plot:
        schedule_plot.write(loaded.target, plot)
    if as_json:
        kernels = {"kernels": fast.to_dict()} if fast else {}
        emit(found.to_dict() | kernels | ({"plot": plot} if plot else {}))
    else:
        print("\n".join([*found.lines(), *([fast.line()] if fast else [])]))
        if plot:
            print(f"schedule drawn in {plot}")
    return None


def _device(
    path: str,
    device: str,
    nodes: str,
    devices: str,
    prices: str,
    *,
    explain: bool,
    trust: bool,
    as_json: bool,
) -> int | None:
    from froude.cli.coordcheck import load_run
    from froude.hardware import lines, tables, ways
    from froude.hardware.sizes import Place
    from froude.sweep.sizes import sizes_of
    from froude.train.api import check_trust

    found, place = tables.device(device, devices), Place.parse(nodes)
    dollars = tables.price(device, prices, devices)
    run = load_run(path)
    check_trust(run, trust)
    plan = ways.plan(run, sizes_of(run), place, found, dollars, devices)
    one = (
        f"--nodes {nodes} is one node, whose {nodes} devices are linked with one another; for others write "
        "nodes x devices, such as 4x8"
    )
    more = [one] if "x" not in nodes and place.workers > 1 else []
    if as_json:
        found_notes = {"notes": [*lines.notes(plan), *more]}
        emit(plan.to_dict() | found_notes | ({"arithmetic": lines.explained(plan)} if explain else {}))
    else:
        print("\n".join([*lines.told(plan), *(lines.explained(plan) if explain else ()), *more]))
    return None if plan.chosen else FAILED


def _next(
    url: str,
    target: str,
    budget: float | None,
    until: float | None,
    per: Literal["tokens", "flops"],
    top: int,
    write: str,
    profile: str,
    trust: bool,
    as_json: bool,
) -> None:
    from froude.cli.options import point
    from froude.config import ConfigError
    from froude.promote.fits import fit
    from froude.promote.planner.next_runs import next_runs
    from froude.promote.planner.next_space import space_source
    from froude.promote.planner.words import LINE
    from froude.promote.promotion import parameters
    from froude.store import Location, reported
    from froude.study import Study
    from froude.sweep.spent import proxies_over_target, proxy_flops

    if budget is not None and not budget > 0:
        raise ConfigError(
            f"--budget must be above 0, but got {budget:g}; leave it out for the best run alone"
        )
    if until is not None and not 0 < until < 1:
        raise ConfigError(f"--until must be a part of the loss, such as 0.01, but got {until:g}")
    study = Study(url)
    fits = fit(study)
    if target:
        large = point("--target", target)
    elif fits.large is None:
        raise ConfigError(
            "the next runs are for the forecast of a target run, but this history has none; "
            "give --target params=N,tokens=D"
        )
    else:
        large = {"params": float(parameters(fits.target, trust=trust)), "tokens": float(fits.target.tokens)}
    if write and (not write.endswith(".py") or Path(write).exists()):
        raise ConfigError(f"--write must name a new Python file, but got {write}; choose another name")
    if write and not Path(write).resolve().parent.is_dir():
        raise ConfigError(
            f"--write must be in a folder that exists, but got {write}; create it, or name another"
        )
    own = fits.target if fits.large is not None and not target else None
    spent = (
        proxies_over_target(study, own)
        if own is not None
        else proxy_flops(study) / (6 * large["params"] * large["tokens"])
    )
    template = _template(study, fits)
    found = next_runs(
        fits,
        params=large["params"],
        tokens=large["tokens"],
        unit=per,
        budget=budget,
        profile=profile,
        enough=until or 0.0,
        template=template,
        trust=trust,
        run=own,
        paid=spent,
    )
    if write:
        text = space_source(found, template=template, fits=fits, meta=study.meta, study=url, file=write)
        with reported(Location.parse(write), "--write must be in a folder that can be written to"):
            Path(write).write_text(text)
    batch = _batch(study, fits, trust=trust) if own is not None else ""
    if as_json:
        emit(found.to_dict(top) | ({"space": write} if write else {}) | ({"batch": batch} if batch else {}))
        return
    print("\n".join(found.lines(top)))
    if batch:
        print("\n" + "\n".join(textwrap.wrap(batch, LINE)))
    if write:
        print(f"\n{write}: sweep it with `froude sweep {write} --out {url}`")


def _batch(study: Study, fits: Fits, *, trust: bool) -> str:
    """What the target's batch costs in loss and saves in hours, in a line."""
    from froude.promote.choice.batch import unknown
    from froude.promote.promotion import priced

    status = fits.critical.status if fits.critical is not None else ""
    size, found = fits.target.phases.mean, priced(study, fits, trust=trust, timed=True)
    return f"batch {fits.target.phases}: {found.words(size) if found is not None else unknown(status)}"


def _template(study: Study, fits: Fits) -> Run | None:
    """The run of the loss law's largest proxy, or the target where froude did not train the proxies.

    None without either, and where `trainer.params` tells a model's size: that of another width is not known then.
    """
    from froude.sweep import trial_store

    run = fits.large.replace(workers=1, name=fits.large.name) if fits.large is not None else None
    if fits.largest is not None and study.meta["stages"][fits.largest["stage"]]["role"] == "loss_law":
        run = trial_store.read(study.location, fits.largest["trial"]).trial.runs[-1]
    return None if run is None or run.trainer.params else run
