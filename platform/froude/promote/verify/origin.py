"""Is a recipe's forecast the one that its study's trials give, and was its run trained on what the trials had?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from froude.config import ConfigError
from froude.material import Material
from froude.promote.choice.worth import with_batch
from froude.promote.fits import fit
from froude.promote.ladder.trial_rows import contradictions
from froude.promote.promotion import chosen, parameters, predict
from froude.promote.recipe import Recipe
from froude.promote.verify.verdict import Verdict
from froude.runlog import Record
from froude.section import flat
from froude.study import Study

FORECAST = "the forecast is that of the study's trials"
#: Relative, of a forecast computed again: by two commits of one day the quickstart's losses differed by 2e-4.
TOLERANCE = 1e-3


def origin(study: Study, recipe: Recipe) -> Iterator[Verdict]:
    """Whether the stored trials, fitted again here, give the recipe's settings and its forecast.

    Unknown where there are none, where some were added or changed since, and where numbers or settings differ no more
    than versions of the laws do. One whose interval does not hold the other's loss is not of these trials.
    """
    if not recipe.fingerprints:  # it claims no trials
        return
    if not study.exists or not study.trials().head(1).collect().height:
        yield Verdict(FORECAST, None, "no trials are beside the run")
        return
    # Such a preference was decided by a clock that runs otherwise here, so its batch is taken as it is.
    by_hours = recipe.prefer in ("time", "price")
    try:
        if odd := contradictions(study):
            yield Verdict(FORECAST, False, odd[0] + (f"; so have {len(odd) - 1} more" if odd[1:] else ""))
            return
        fits = fit(study)
        if not fits.of_rows(recipe.fingerprints):
            yield Verdict(
                FORECAST,
                None,
                "trials were added, changed or removed since: the recipe names other rows than these",
            )
            return
        if by_hours:
            fits = replace(fits, large=with_batch(fits.target, recipe.run.phases.mean))
        choice = chosen(study, fits, trust=True, prefer="loss" if recipe.prefer == "loss" else None)
        params = parameters(recipe.run, trust=True)
        found = predict(choice.fits, params)
    except ConfigError as error:
        yield Verdict(FORECAST, False, f"the trials can't be fitted: {error}")
        return
    if found is None or choice.run is None:
        yield Verdict(FORECAST, False, "the trials give no forecast")
        return
    sealed = recipe.forecast
    ends = [(found.loss, sealed.loss), (found.low, sealed.low), (found.high, sealed.high)]
    same = all(math.isclose(a, b, rel_tol=TOLERANCE) for a, b in ends) and found.certified == sealed.certified
    apart = not (found.low <= sealed.loss <= found.high and sealed.low <= found.loss <= sealed.high)
    other = [] if by_hours else _other_settings(recipe, flat(choice.run.to_dict()))
    seen = f"{found.loss:.4f} [{found.low:.4f}, {found.high:.4f}] by the trials"
    if not same:
        seen += f", {sealed.loss:.4f} [{sealed.low:.4f}, {sealed.high:.4f}] sealed"
    if not same or other:
        seen += "; " + "".join(f"{each}; " for each in other[:1])
        seen += (
            "what is sealed is not of these trials"
            if apart
            else "another version of froude may have promoted it"
        )
    yield Verdict(FORECAST, False if apart else (same and not other) or None, seen)


def _other_settings(recipe: Recipe, now: dict[str, object]) -> list[str]:
    """The run's settings that are not those of the recipe that the trials give now."""

    def alike(one: object, other: object) -> bool:
        numbers = isinstance(one, float) and isinstance(other, float)
        return math.isclose(one, other, rel_tol=TOLERANCE) if numbers else one == other  # type: ignore[arg-type]

    sealed = flat(recipe.run.to_dict())
    return [
        f"`{key}` is {sealed.get(key)!r}, where the trials give {now.get(key)!r}"
        for key in sorted(sealed.keys() | now.keys())
        if not alike(sealed.get(key), now.get(key))
    ]


def trained_on(recipe: Recipe, records: list[Record]) -> Iterator[Verdict]:
    """Whether corpus and code of every attempt are those of the recipe's study."""
    recorded = [record.meta["material"] for record in records if record.meta.get("material")]
    if recipe.material and recorded:
        due = Material.from_dict(recipe.material)
        changes = [change for each in recorded for change in due.changes(Material.from_dict(each))]
        yield Verdict(
            "the run had the study's corpus and code",
            not changes,
            changes[0] if changes else "by every attempt's record",
        )
