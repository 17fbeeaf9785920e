"""Everything that a report shows, read from a study once; what is not there yet is None, with the reason in words."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from froude.attempts import Elastic, history
from froude.config import ConfigError, Run
from froude.laws.curve import Collapse
from froude.promote import gate
from froude.promote.case import Case
from froude.promote.checks import table
from froude.promote.choice.batch import Batches
from froude.promote.collapse import curves_apart
from froude.promote.fits import Fits, fit
from froude.promote.forecast import Score, score
from froude.promote.monitor import Alarm, alarms
from froude.promote.promotion import extrapolation, parameters, predict, priced
from froude.promote.recipe import FILE, Recipe, read
from froude.promote.token_audit import TokenAccount, token_account
from froude.register import scores
from froude.runlog import LogReader

if TYPE_CHECKING:
    from froude.store import Location
    from froude.study import Study

#: What a damaged file, or one that is gone, raises.
UNREADABLE = (ValueError, pl.exceptions.PolarsError, OSError)


@dataclass(frozen=True)
class View:
    """The content of one report. Losses in nats per token; `problems` are what kept a part of it from being read.

    `unread` says that the target run can't be read. `steps`, `evals` and what the spike policy did (`actions`) are
    the target run's. `checks` are the recipe's, or, before there is one, what the gate would say now. `scores` are what
    `register` keeps, of all studies; None without one. `batches` is what each batch would cost the target.
    """

    name: str
    url: str
    meta: dict[str, Any]
    trials: pl.DataFrame
    fits: Fits | None = None
    recipe: Recipe | None = None
    checks: tuple[gate.Check, ...] = ()
    elastic: Elastic | None = None
    steps: pl.DataFrame = field(default_factory=pl.DataFrame)
    evals: pl.DataFrame = field(default_factory=pl.DataFrame)
    actions: pl.DataFrame = field(default_factory=pl.DataFrame)
    actual: float | None = None
    score: Score | None = None
    alarms: tuple[Alarm, ...] = ()
    account: TokenAccount | None = None
    problems: tuple[str, ...] = ()
    collapses: tuple[Collapse, ...] = ()
    unread: bool = False
    register: str = ""
    scores: pl.DataFrame | None = None
    batches: Batches | None = None

    @property
    def run(self) -> Run | None:
        """The run that the study is for: the recipe's, else the target; None for a history without one."""
        if self.recipe is not None:
            return self.recipe.run
        return Run.from_dict(self.meta["target"]) if "target" in self.meta else None

    @property
    def target(self) -> tuple[float, float] | None:
        """Parameters and tokens of the target run, as the loss law counts them."""
        if self.recipe is None or self.fits is None or self.fits.largest is None:
            return None
        if self.recipe.fingerprints.get("loss_law") != self.fits.fingerprints.get("loss_law"):
            return None  # what was sealed is its ratio to the largest proxy that there was
        largest = self.fits.rows["loss_law"].filter(pl.col("status") == "finished")["params"].max()
        assert isinstance(largest, int)
        return self.recipe.extrapolation["params"] * largest, float(self.recipe.run.tokens)

    @property
    def resumed_at(self) -> list[int]:
        """Tokens seen when each attempt after the first began."""
        return [attempt.tokens for attempt in self.elastic.attempts[1:]] if self.elastic else []


def gather(
    study: Study, *, fits: Fits | None = None, trust: bool = False, register: Location | None = None
) -> View:
    """Read the study; ConfigError only where it, or the register, is none at all. `fits` saves fitting again."""
    problems: list[str] = []
    kept = scores(register) if register is not None else None
    trials = study.trials().collect()
    if fits is None and study.exists and trials.height:
        try:
            fits = fit(study)
        except ValueError as error:
            problems.append(f"The laws could not be fitted: {error}")
    recipe: Recipe | None = None
    if (study.location / FILE).exists():
        try:
            recipe = read(study.location / FILE)
        except ConfigError as error:
            problems.append(f"The recipe is not used here: {error}")
    parts: dict[str, Any] = {}
    if recipe is not None:
        try:
            parts = _run(study, recipe)
        except UNREADABLE as error:
            problems.append(f"The target run could not be read: {error}")
            parts = {"unread": True}
    checks: tuple[gate.Check, ...] = recipe.checks if recipe is not None else ()
    if recipe is None:
        try:
            checks = _present_checks(study, fits, trust=trust)
        except UNREADABLE as error:  # code of the user's counts its parameters, which needs trust
            problems.append(f"The gate's checks could not be made: {error}")
    collapses: tuple[Collapse, ...] = ()
    if fits is not None:
        try:
            collapses = tuple(curves_apart(study, fits))
        except UNREADABLE as error:
            problems.append(f"The proxies' loss curves could not be compared: {error}")
    batches: Batches | None = None
    if fits is not None and fits.large is not None and fits.critical is not None:
        try:
            batches = priced(study, fits, trust=trust)
        except ValueError as error:
            problems.append(f"What batches would cost could not be worked out: {error}")
    return View(
        name=study.location.name,
        url=study.location.url,
        meta=study.meta,
        trials=trials,
        fits=fits,
        recipe=recipe,
        checks=checks,
        problems=tuple(problems),
        register=register.url if register is not None else "",
        scores=kept,
        collapses=collapses,
        batches=batches,
        **parts,
    )


def _run(study: Study, recipe: Recipe) -> dict[str, Any]:
    run = recipe.run
    # Every record names the seal, so also the one before step 0: that makes it a forecast.
    LogReader(study.location / "runs" / run.name).head_under(recipe.sha256)
    steps = study.steps(trials=False).filter(pl.col("run") == run.name).sort("tokens").collect()
    evals = (
        study.evals()
        .filter(pl.col("run") == run.name, pl.col("split") == "validation")
        .sort("tokens")
        .collect()
    )
    elastic = history(study, run.name)
    loss = elastic.loss if elastic is not None else None
    actual = loss if loss is not None and math.isfinite(loss) else None
    return {
        "elastic": elastic,
        "steps": steps,
        "evals": evals,
        "actions": _actions(study, run.name),
        "actual": actual,
        "score": score(recipe.forecast, actual, steps) if actual is not None else None,
        "alarms": tuple(alarms(recipe.forecast, recipe.run, steps)),
        "account": token_account(study, run.name, run)
        if elastic and elastic.finished and not recipe.trainer
        else None,
    }


def _actions(study: Study, run: str) -> pl.DataFrame:
    """What the spike policy did, once each: an attempt may decide again what the one before it had decided."""
    acted = (pl.col("run") == run) & ~pl.col("action").is_in(["warn", "spike"])
    rows = study.events().filter(acted).sort("time")
    return rows.unique(["batch", "action"], keep="first", maintain_order=True).collect()


def _present_checks(study: Study, fits: Fits | None, *, trust: bool) -> tuple[gate.Check, ...]:
    if fits is None or fits.loss is None or fits.largest is None:
        return ()
    if fits.best is None or fits.target.parametrization not in fits.transfer:
        return ()
    params = parameters(fits.target, trust=trust)
    return table(Case(study, fits, predict(fits, params), extrapolation(fits, params)))
