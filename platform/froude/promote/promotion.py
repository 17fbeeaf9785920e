"""From a finished sweep to a sealed recipe, or to a refusal with every reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import polars as pl

from froude.config import ConfigError, Run
from froude.material.commands import EXTERNAL
from froude.promote import gate, witness
from froude.promote.band import with_band
from froude.promote.case import Case, beyond
from froude.promote.checks import table
from froude.promote.choice.batch import Batches, batches, check
from froude.promote.choice.choose import Choice, choose
from froude.promote.choice.recipe_run import searched_run
from froude.promote.choice.step_time import StepTime, estimated, of_study
from froude.promote.choice.target_loss import target_loss, widened
from froude.promote.choice.worth import trade
from froude.promote.counted import counted_alike, counted_otherwise
from froude.promote.fits import Fits, fit
from froude.promote.forecast import Forecast
from froude.promote.imported_runs import history
from froude.promote.ladder.trial_rows import contradictions
from froude.promote.ladder.validation_sets import SetForecast
from froude.promote.recipe import FILE, Recipe, read, seal
from froude.runlog import LogReader
from froude.study import Study


def promote(
    study: Study,
    *,
    profile: str = "production",
    overrides: Mapping[str, str] | None = None,
    trust: bool = False,
    fits: Fits | None = None,
    witnessed_by: str = "",
    prefer: str | None = None,
    time: StepTime | None = None,
    cost: Callable[[], float] = lambda: math.nan,
    external: bool = False,
) -> Recipe:
    """Write the study's recipe.toml and return it; raise `gate.Refused`, having written nothing, if a check fails.

    A recipe of the same rows and settings that is there already stays, with its seal. ConfigError if the study lacks
    a stage, or if another recipe's run has begun.

    `overrides` maps the names of checks that may fail to the reasons why. `trust` lets a model from outside the
    package be built, to count its parameters. `fits` saves fitting again. `witnessed_by` is a second store's folder, a
    path or s3:// URL, that is given the seal before the recipe is there to be trained (`froude.promote.witness`).
    `prefer` (loss, time or price) chooses the batch (`froude.promote.choice.batch`), without it the target's stays;
    `time` is how long its steps take, without it what the study's trials tell, else as a few steps take here.
    `cost` returns the FLOPs of all proxies over the target's, to be told beside the forecast. `external`: another
    trainer is to train the run, as where the target has a command of its own.
    """
    bounds = gate.profile_named(profile)
    second = witness.folder_of(witnessed_by, study.location) if witnessed_by else None
    fits = fits or fit(study)
    have = {"search": fits.best, "lr_transfer": fits.transfer.get(fits.target.parametrization)}
    missing = [role for role, found in {**have, "loss_law": fits.largest}.items() if found is None]
    if missing:
        ended = {role: _unfinished(study, role) for role in missing}
        lacks = ", ".join(role + (f" ({how})" if how else "") for role, how in ended.items())
        remedy = (
            "`froude status` says why they did not finish; correct that and sweep again"
            if any(ended.values())
            else "run `froude sweep` to its end"
            if {stage["role"] for stage in study.meta.get("stages", {}).values()}.issuperset(missing)
            else "add such stages to the search space, or sweep another space into the same study"
        )
        others = fits.rows["search"].filter(status="finished")["schedule"].drop_nulls().unique().sort()
        if missing == ["search"] and fits.target.schedule.name in others:
            lacks = f"search (its trials of {fits.target.schedule.name} tell no batch, or ramp it otherwise)"
            remedy = "sweep trials of the target's batch there, or map the table's column `batch`"
        elif missing == ["search"] and others.len():
            lacks = f"search (it has {', '.join(others)} where the target has {fits.target.schedule.name})"
            remedy = "sweep trials of the target's schedule in that stage"
        if set(study.meta.get("stages", {})) == {history.ROLE}:
            remedy = history.remedy(study.trials().collect(), fits.target, missing)
        raise ConfigError(
            "a study must have finished trials of the roles search (of the target's schedule), lr_transfer "
            f"and loss_law to be promoted, but lacks {lacks}; {remedy}"
        )
    external = external or bool(fits.target.trainer.command)
    counted_alike(fits, lambda run: parameters(run, trust=trust))
    if odd := contradictions(study, judged=()):
        more = f" (and {len(odd) - 1} more)" if odd[1:] else ""
        raise ConfigError(
            f"trials must have the losses that they were evaluated to, but {odd[0]}{more}; restore the study's trials, "
            "or delete that one and sweep again"
        )
    choice = chosen(study, fits, trust=trust, prefer=prefer, time=time)
    run, params, name = choice.run, parameters(fits.target, trust=trust), fits.target.name
    fits = choice.fits
    forecast, ratios = predict(fits, params), extrapolation(fits, params)
    checks = gate.override(table(Case(study, fits, forecast, ratios), bounds), overrides or {})
    place = study.location / FILE
    kept = read(place) if place.exists() else None
    stays = kept is not None and same(kept, run, profile, fits, overrides or {})
    if kept is not None and not kept.knobs and prefer is None:  # a version that chose neither batch nor rate
        stays = same(kept, searched_run(fits), profile, fits, overrides or {})
    begun = LogReader(study.location / "runs" / (kept.run.name if kept else name)).head() is not None
    # Once a run has begun, the same run under another preference is the same.
    stays = stays and kept is not None and (begun or kept.prefer == (prefer or ""))
    stays = stays and kept is not None and bool(kept.trainer) == external
    if kept is not None and stays:
        recipe = kept
    else:
        if run is None or forecast is None:
            raise gate.Refused(checks, beyond=_beyond(fits, has_rate=run is not None))
        if any(check.refuses for check in checks):
            raise gate.Refused(checks)
        forecast = replace(with_band(forecast, study, fits, run, params), proxies_over_target=cost())
        recipe = seal(
            run=run,
            profile=profile,
            fits=fits.summary(),
            fingerprints=fits.fingerprints,
            extrapolation=ratios,
            checks=checks,
            forecast=forecast,
            knobs=choice.knobs,
            prefer=prefer or "",
            material=study.meta.get("material"),
            trainer=EXTERNAL if external else "",
        )
    if begun and not stays:
        raise ConfigError(
            f"a recipe must stay as it was sealed once its run has begun, but these fits or settings give another than "
            f"that of the run below {study.location}; train that run, or promote in a new study"
        )
    note = None
    if second is not None:
        there = witness.place_of(second, study.location, recipe)
        recipe = recipe if stays else witness.as_sealed_before(recipe, there)
        note = witness.attest(recipe, there, study.location, begun=begun)
    # The recipe is what `froude train` reads, so it comes last: whatever ends this before, the same call goes on.
    if note is not None:
        witness.remember(study.location, note)
    elif not stays:
        witness.forget(study.location)
    if not stays:
        recipe.write(place)
    elif not begun:
        recipe.restore_forecast(place)
    return recipe


def _unfinished(study: Study, role: str) -> str:
    """How the trials of a role ended, if some have and none of them finished."""
    stages = [name for name, stage in study.meta["stages"].items() if stage["role"] == role]
    ended = study.trials().filter(pl.col("stage").is_in(stages)).collect()["status"].value_counts()
    counts = {status: n for status, n in ended.sort("status").iter_rows() if status in ("diverged", "failed")}
    if not counts or "finished" in ended["status"]:
        return ""
    return f"its trials: {', '.join(f'{n} {status}' for status, n in counts.items())}"


def _beyond(fits: Fits, *, has_rate: bool) -> str:
    """What the study lacks, so that no override helps, and what to add to it."""
    if has_rate:
        assert fits.loss is not None
        why = "; ".join(fits.loss.reasons) or fits.loss.status
        return f"no override helps: there is no forecast, since the loss law has no fit ({why}); add proxies"
    parametrization = fits.target.parametrization
    law, rows = fits.transfer[parametrization], fits.rows[f"lr_transfer_{parametrization}"]
    sides = []
    for size in law.curves.filter(pl.col("status") == "edge")[law.over]:
        own = rows.filter((pl.col(law.over) == size) & (pl.col("status") == "finished"))
        # Where the losses fall on the whole, not where the least one happens to be.
        falls = own.select(pl.cov(pl.col("lr").log(), "loss")).item() < 0
        rates: list[float] = own["lr"].to_list()
        side = f"above {max(rates):.3g}" if falls else f"below {min(rates):.3g}"
        sides.append(f"{side} at {law.over} {size:g}")
    if sides:
        return (
            "no override helps: no rate can be promoted, since the best lies at an edge of those tried; add rates "
            f"{', '.join(sides)} to stage `lr_transfer`, then sweep again"
        )
    return f"no override helps: no rate can be promoted ({'; '.join(law.reasons) or law.status}); add rates or seeds"


def same(kept: Recipe, run: Run | None, profile: str, fits: Fits, overrides: Mapping[str, str]) -> bool:
    """Whether a sealed recipe is of the same rows, settings and overrides, whenever it was sealed.

    What an earlier version's gate let pass is not refused by a check that asks more today.
    """
    return (
        kept.run == run
        and kept.profile == profile
        and fits.of_rows(kept.fingerprints)
        and all(overrides.get(name, "").strip() == reason for name, reason in kept.overrides.items())
    )


def predict(fits: Fits, params: int) -> Forecast | None:
    """The forecast of the final loss of the target, of `params` parameters; None if the loss law has no fit."""
    law, largest = fits.loss, fits.largest
    assert law is not None
    assert largest is not None
    if not math.isfinite(law.E):
        return None
    found, free = target_loss(fits, params), law.free
    prediction = found.prediction
    # Where the precision costs something, nobody has measured what it costs on other sets.
    sets = fits.predict_sets(params=params, tokens=found.tokens) if fits.cost is None else {}
    return Forecast(
        loss=prediction.loss,
        low=prediction.low,
        high=prediction.high,
        level=prediction.level,
        certified=prediction.certified,
        status=law.status,
        reasons=prediction.reasons,
        naive=largest["loss"],
        comparator=prediction.comparator,
        compute_line=prediction.compute_line,
        noise=prediction.noise,
        sets={
            name: SetForecast.of(widened(each, found.apart.get("batch", 0.0))) for name, each in sets.items()
        },
        free_loss=math.nan
        if free is None
        else free.E
        + free.A / params**free.alpha
        + free.B / found.tokens**free.beta
        + (fits.cost.loss if fits.cost is not None else 0.0),
    )


def extrapolation(fits: Fits, params: int) -> dict[str, float]:
    """Target, of `params` parameters, over largest finished proxy of the loss law, by axis as `beyond` has them."""
    rows = fits.rows["loss_law"].filter(pl.col("status") == "finished")
    return beyond(rows, fits.target, params)


def chosen(
    study: Study, fits: Fits, *, trust: bool = False, prefer: str | None = None, time: StepTime | None = None
) -> Choice:
    """What a recipe of this study would be; as `promote`."""
    params = parameters(fits.target, trust=trust)
    if doubt := counted_otherwise(fits, lambda run: parameters(run, trust=trust)):
        fits = replace(fits, doubts=(*fits.doubts, doubt))
    if time is None and trade(fits, params) is not None:
        time = _time(study, fits, trust=trust, needed=prefer in ("time", "price"))
    return choose(
        fits,
        params,
        flops_per_token=token_flops(fits.target, trust=trust),
        prefer=check(prefer),
        time=time,
    )


def _time(study: Study, fits: Fits, *, trust: bool, needed: bool) -> StepTime | None:
    """How long the target's steps take: measured, or by the study's trials, else as a plan estimates it here.

    None, unless it is `needed`, for a run that can't be timed here.
    """
    from froude.train.api import check_trust

    if (found := of_study(study, fits.target)) is not None:
        return found
    try:
        check_trust(fits.target, trust)
        return estimated(fits.target)
    except ConfigError:
        if needed:
            raise
        return None  # a recipe that keeps its batch needs no hours


def priced(study: Study, fits: Fits, *, trust: bool = False, timed: bool = False) -> Batches | None:
    """What each batch would cost the study's target; None without a critical batch or a loss law.

    `timed` has steps timed here, a second or two, where the study does not tell how long they take.
    """
    params = parameters(fits.target, trust=trust)
    found = timed and trade(fits, params) is not None
    return batches(
        fits,
        params,
        flops_per_token=token_flops(fits.target, trust=trust),
        time=_time(study, fits, trust=trust, needed=False) if found else of_study(study, fits.target),
    )


def token_flops(run: Run, *, trust: bool = False) -> float:
    """FLOPs of one token of the run, forward and backward, by the model itself."""
    from froude.train.api import check_imports
    from froude.train.size import size_of

    check_imports(run, trust)
    return size_of(run).flops_per_token


def parameters(run: Run, *, trust: bool = False) -> int:
    """Parameters of the run's model without embedding and readout, counted on the model itself."""
    from froude.train.api import check_imports
    from froude.train.size import size_of

    check_imports(run, trust)
    return size_of(run).params
