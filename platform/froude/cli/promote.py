"""froude promote."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from froude.cli.common import Address, Debug, Json, Shared, Simulate, Trust, cluster, emit, verb

if TYPE_CHECKING:
    from froude.promote.fits import Fits
    from froude.study import Study


@verb
def promote(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="Path or s3:// URL of a study.")],
    profile: Annotated[str, typer.Option(help="Profile with the bounds of the gate.")] = "production",
    override: Annotated[
        list[str] | None,
        typer.Option("--override", metavar="CHECK", help="Override a failed check; needs --reason."),
    ] = None,
    reason: Annotated[
        list[str] | None,
        typer.Option("--reason", metavar="TEXT", help="Why the check may fail; one for each --override."),
    ] = None,
    prefer: Annotated[
        Literal["loss", "time", "price"] | None,
        typer.Option(
            help="Choose the batch: for the least loss at the target's tokens, or for the fewest hours, or hours times "
            "workers, to one loss; without it the target's own stays.",
            show_default=False,
        ),
    ] = None,
    time_steps: Annotated[
        bool,
        typer.Option(
            "--time-steps",
            help="First time a few of the target's steps on the cluster, by its fewest workers and by its most; the "
            "study keeps what was found.",
        ),
    ] = False,
    address: Address = "",
    simulate: Simulate = 0,
    shared: Shared = False,
    witness: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Second store, a folder or s3:// URL, that is given the seal, once, and dates it by its own clock.",
            show_default=False,
        ),
    ] = "",
    trainer: Annotated[
        Literal["external"] | None,
        typer.Option(
            "--for",
            help="external: another trainer trains the run, and `froude follow` watches it; so it is where the target "
            "has a `trainer.command`.",
            show_default=False,
        ),
    ] = None,
    trust: Trust = False,
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Write the recipe of the target run with a sealed forecast, or refuse with every reason (exit code 3).

    Example: froude promote runs/study --prefer time

    Example: froude promote runs/study --prefer price --time-steps --address auto

    Example: froude promote runs/study --override lr_points --reason "five rates suffice for a joint fit"
    """
    from froude.config import ConfigError
    from froude.external.follow import write_target
    from froude.promote.fits import fit
    from froude.promote.forecast import beside
    from froude.promote.gate import profile_named
    from froude.promote.imported_runs.history import unnamed_data
    from froude.promote.promotion import promote as write_recipe
    from froude.promote.witness import remembered
    from froude.store import probe_writable
    from froude.study import Study
    from froude.sweep.spent import proxies_over_target

    names, reasons = override or [], reason or []
    if len(names) != len(reasons):
        raise ConfigError(
            f"each --override must have its --reason, but got {len(names)} and {len(reasons)}; "
            "give them in pairs"
        )
    found = Study(study)
    if found.exists:
        probe_writable(found.location)
    if not time_steps and (address or simulate or shared):
        raise ConfigError(
            "a cluster is only used by --time-steps, which was not given; add it, or drop the cluster"
        )
    fits = fit(found)
    if time_steps:
        from froude.sweep.preflight import cpus

        profile_named(profile)
        reserved = cpus([fits.target])
        with cluster(address, simulate, found.location, shared=shared, cpus=reserved):
            _time_steps(found, fits, trust=trust, quiet=as_json)
    recipe = write_recipe(
        found,
        profile=profile,
        overrides=dict(zip(names, reasons, strict=True)),
        trust=trust,
        witnessed_by=witness,
        fits=fits,
        prefer=prefer,
        cost=lambda: proxies_over_target(found, fits.target),
        external=trainer is not None,
    )
    if recipe.trainer:
        write_target(found.location, recipe.run)
    witnessed = remembered(found.location)
    if as_json:
        seen = {"witness": witnessed.to_dict()} if witnessed else {}
        emit({**recipe.content(), "seal": {"sha256": recipe.sha256}, **seen})
        return None
    forecast = recipe.forecast
    print(f"recipe    {study.rstrip('/')}/recipe.toml, sealed {recipe.sha256[:12]}…")
    print(f"seal      {recipe.sha256}: publish it before the run begins")
    if recipe.trainer:
        where = study.rstrip("/")
        print(
            f"external  train what {where}/target.json (or .toml) says; froude follow {where} --metrics FILE"
        )
    if witnessed:
        print(f"witness   {witnessed.line()}")
    print(
        f"run       {recipe.run.name}: {recipe.run.steps} steps of {recipe.run.phases}, "
        f"peak lr {recipe.run.optimizer.lr:.3g}"
    )
    for knob in recipe.knobs:
        print(f"knob      {knob.line()}")
    print(
        f"forecast  {forecast.loss:.3f} nats per token, {100 * forecast.level:.0f}% in [{forecast.low:.3f}, "
        f"{forecast.high:.3f}], {'certified' if forecast.certified else 'not certified'}; loss law {forecast.status}"
    )
    told = beside(
        forecast.others, recipe.extrapolation, cost=forecast.proxies_over_target, noise=forecast.noise
    )
    print("\n".join(told))
    if not recipe.trainer and (note := unnamed_data(found.meta["stages"], recipe.run)):
        print(f"warning   data: {note}")
    if not recipe.run.schedule.warmup_tokens and not fits.tells(fits.best, "warmup_tokens"):
        print(
            "warning   warmup: none, since neither target nor table tells one; set schedule.warmup_tokens there"
        )
    for name, each in forecast.sets.items():
        print(f"on set    {name}: {each.words()}")
    for check in recipe.checks:
        if check.name in names and check.passed:
            print(f"override  {check.name}: not needed, since it passes")
        if check.overridden:
            print(f"override  {check.name} ({check.value}): {check.reason}")
        elif not check.passed:
            mark = "warning " if check.kind == "warn" else "unknown "
            print(f"{mark}  {check.name}: {check.value}; {check.remedy}")
    return None


def _time_steps(study: Study, fits: Fits, *, trust: bool, quiet: bool) -> None:
    """Time the target's steps at the least and the largest batch that it may get, and keep that in the study."""
    from froude.launch.display import Display
    from froude.launch.step_trial import time_steps
    from froude.promote.choice.batch import looked_at
    from froude.promote.choice.step_time import keep

    target = fits.target
    measured = fits.critical is not None and math.isfinite(fits.critical.b_crit)
    sizes = sorted({target.phases.mean, *(looked_at(fits) if measured else ())})
    batches = sizes if len(sizes) == 1 else [sizes[0], sizes[-1]]
    display = Display(quiet=quiet)
    display.stage("steps")
    timed = time_steps(target, batches, trust=trust, progress=display.line)
    keep(study, target, timed)
    for each in timed:
        display.line(f"workers {each.workers}, batch {each.batch:,}: {each.seconds:.3g} s a step")
    display.done(f"kept in {study.location}")
