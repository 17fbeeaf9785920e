"""froude promote."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from froude.cli.common import Debug, Json, Trust, emit, verb

if TYPE_CHECKING:
    from froude.promote.forecast import Forecast


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
    witness: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Second store, a folder or s3:// URL, that is given the seal, once, and dates it by its own clock.",
            show_default=False,
        ),
    ] = "",
    trust: Trust = False,
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Write the recipe of the target run with a sealed forecast, or refuse with every reason (exit code 3).

    Example: froude promote runs/study --override lr_points --reason "five rates suffice for a joint fit"
    """
    from froude.config import ConfigError
    from froude.promote.fits import fit
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
    fits = fit(found)
    recipe = write_recipe(
        found,
        profile=profile,
        overrides=dict(zip(names, reasons, strict=True)),
        trust=trust,
        witnessed_by=witness,
        fits=fits,
        cost=lambda: proxies_over_target(found, fits.target),
    )
    witnessed = remembered(found.location)
    if as_json:
        seen = {"witness": witnessed.to_dict()} if witnessed else {}
        emit({**recipe.content(), "seal": {"sha256": recipe.sha256}, **seen})
        return None
    forecast = recipe.forecast
    print(f"recipe    {study.rstrip('/')}/recipe.toml, sealed {recipe.sha256[:12]}…")
    print(f"seal      {recipe.sha256}: publish it before the run begins")
    if witnessed:
        print(f"witness   {witnessed.line()}")
    print(
        f"run       {recipe.run.name}: {recipe.run.steps} steps of {recipe.run.phases}, "
        f"peak lr {recipe.run.optimizer.lr:.3g}"
    )
    print(
        f"forecast  {forecast.loss:.3f} nats per token, {100 * forecast.level:.0f}% in [{forecast.low:.3f}, "
        f"{forecast.high:.3f}], {'certified' if forecast.certified else 'not certified'} ({forecast.status})"
    )
    print("\n".join(beside(forecast, recipe.extrapolation)))
    for name, each in forecast.sets.items():
        trust_in = "certified" if each.certified else "not certified"
        print(f"on set    {name}: {each.loss:.3f} in [{each.low:.3f}, {each.high:.3f}], {trust_in}")
    for check in recipe.checks:
        if check.overridden:
            print(f"override  {check.name} ({check.value}): {check.reason}")
        elif not check.passed:
            mark = "warning " if check.kind == "warn" else "unknown "
            print(f"{mark}  {check.name}: {check.value}; {check.remedy}")
    return None


def beside(forecast: Forecast, ratios: Mapping[str, float]) -> list[str]:
    """What has to be told beside a forecast: its reach, its cost, what others would say, and its floor."""
    reach = ", ".join(f"{axis} {ratio:.3g}×" for axis, ratio in ratios.items())
    cost = forecast.proxies_over_target
    paid = f"; all proxies cost {cost:.3g}× the target's compute" if math.isfinite(cost) else ""
    others = ", ".join(f"{words} {loss:.3f}" for words, loss in forecast.others.items())
    return [
        f"reach     {reach} the largest proxy{paid}",
        f"others    {others}",
        *(
            [
                f"noise     {100 * forecast.noise:.2g}% of a run's loss by the law: the floor under a forecast's error"
            ]
            * (forecast.noise > 0)
        ),
    ]
