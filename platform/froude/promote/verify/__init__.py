"""Is a run what its recipe says? Its log, tokens, seal and checkpoint, checked again from what is stored."""

from __future__ import annotations

from collections.abc import Iterator

from froude.config import ConfigError
from froude.promote import recipe as recipes
from froude.promote.ladder.regret import Corrected
from froude.promote.recipe import Recipe
from froude.promote.verify.course import COURSE, course
from froude.promote.verify.origin import FORECAST, origin, trained_on
from froude.promote.verify.rerun import again, device_for
from froude.promote.verify.seal import SEALED, beside, sealed
from froude.promote.verify.state import MATERIAL, checkpoint, material
from froude.promote.verify.tokens import TRAINED, ledger
from froude.promote.verify.verdict import Progress, Verdict, judged
from froude.promote.witness import compared
from froude.runlog import LogReader, disorder, lineage, record_name
from froude.store import Location, reported
from froude.study import Study
from froude.user_code import load

__all__ = ["Verdict", "locate", "verify_run"]


def verify_run(
    study: Study,
    recipe: Recipe,
    *,
    rerun: bool = False,
    other_build: bool = False,
    progress: Progress = lambda what, share: None,
) -> Iterator[Verdict]:
    """Each check of the recipe's run, as it is made; `rerun` also trains it undisturbed here and compares the bits.

    ConfigError if the run has not begun, is of another recipe, or can't be trained again here.
    """
    from froude.checkpoint.tools import verify

    if rerun and recipe.trainer:
        raise ConfigError(
            f"--rerun needs a run that froude has trained, but {recipe.run.name} has an external trainer; verify it "
            "without --rerun"
        )
    run = study.location / "runs" / recipe.run.name
    log = LogReader(run)
    if log.head_under(recipe.sha256) is None:
        raise ConfigError(f"a run must have begun to be verified, but {run} has no log; train it first")
    for path in () if recipe.trainer else recipe.run.foreign:
        load(path)  # what can't be imported is the user's to correct, before anything is said of the run
    # All that follows is said of these records: a run that goes on commits more meanwhile.
    records = log.records()
    head, line = records[-1], lineage(records)
    device = device_for(recipe, line or records, other_build=other_build) if rerun else None
    odd = disorder(records)
    whole = f"{len(records)} records, {head.attempt} attempts"
    yield Verdict("the log is one chain", not odd, odd or whole)
    yield from judged(SEALED, sealed(log, recipe, records))
    yield beside(study.location, recipe)
    first = (run / "commits" / record_name(0)).modified()
    if (witness := compared(study.location, recipe, first)) is not None:
        yield Verdict("the witness has the seal", *witness)
    yield from judged(FORECAST, origin(study, recipe))
    yield from judged("the forecast says what its proxies' rates cost", _corrected(recipe))
    over = head.kind == "finished" and head.step == recipe.run.steps
    yield Verdict("the run is finished", over, f"step {head.step} of {recipe.run.steps}")
    if not recipe.trainer:
        yield from judged(MATERIAL, trained_on(recipe, records))
        yield from judged(MATERIAL, material(recipe.run, head))
    damages = {record.seq: damage for record, damage in verify(run, records)}
    # What a restart left behind may be damaged: the run did not come through it.
    damaged = [damages[record.seq] for record in line if damages[record.seq]]
    yield Verdict(
        "what the run's commits keep is whole", not damaged, damaged[0] if damaged else f"{len(line)} commits"
    )
    if recipe.trainer:
        yield Verdict(TRAINED, None, "external trainer: no ledger, so no claim")
        return
    yield from judged(TRAINED, ledger(study, recipe, line, progress))
    yield from judged(COURSE, course(study, recipe.run, line))
    bits = ""
    if line:
        state, bits = checkpoint(recipe.run, log, records, line[-1], damages[line[-1].seq])
        yield state
    if device is not None:
        yield from again(study, recipe, line, bits, device, progress)


def _corrected(recipe: Recipe) -> Iterator[Verdict]:
    rows = recipe.fits.get("loss_law", {}).get("corrected")
    if rows is not None:  # recipes before 0.2 took nothing off
        yield Verdict("the forecast says what its proxies' rates cost", True, str(Corrected(**rows)))


def locate(place: str) -> tuple[Study, Recipe]:
    """The study and recipe that a recipe.toml, a study or a run's directory stands for."""
    location = Location.parse(place)
    if location.name.endswith(".toml"):
        return Study(location.parent), recipes.read(location)
    with reported(location, "a run must be readable to be verified"):
        of_run = "commits" in location.children()
    study = location.parent.parent if of_run else location
    recipe = recipes.read(study / recipes.FILE)
    if of_run and location.name != recipe.run.name:
        raise ConfigError(
            f"only the run of a recipe can be verified, {recipe.run.name}, but {place} is another's; name {study}"
        )
    return Study(study), recipe
