"""The report's words: the verdict, its numbers, and what must be known before they are trusted."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from froude.config import Run
from froude.laws import LossLaw
from froude.parametrizations import PARAMETRIZATIONS
from froude.promote.forecast import Forecast
from froude.promote.imported_runs.history import holds_table, unnamed_data
from froude.promote.recipe import Recipe
from froude.report import text
from froude.report.view import View

ERRED = {
    "law": " The whole curve missed its band by as much: the loss law erred.",
    "curve": " The run bent away from its band: look at its rate, batch and data, or at the curve law.",
}


@dataclass(frozen=True)
class Tile:
    """One number of the headline; `tone` is good, bad or empty."""

    label: str
    value: str
    note: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Note:
    """Something to know before trusting a number."""

    title: str
    words: str


def verdict(view: View) -> str:
    """The whole report in one or two sentences."""
    recipe, score = view.recipe, view.score
    if recipe is None:
        if view.trials.is_empty():
            return "An empty study: no trial has finished yet."
        done = text.plural(view.trials.height, "trial")
        return f"{done} so far, and no recipe: nothing has been forecast yet."
    forecast = recipe.forecast
    interval = f"{100 * forecast.level:.0f}% interval {text.loss(forecast.low)} to {text.loss(forecast.high)}"
    loss = text.loss(forecast.loss)
    sealed = f"Before its first step the run was forecast to end at {loss} nats per token ({interval})."
    if view.unread:
        return f"{sealed} Its outcome could not be read."
    if score is None:
        if view.elastic is None:
            return f"{sealed} It has not begun."
        share = 100 * view.elastic.step / recipe.run.steps
        return f"{sealed} It is at step {view.elastic.step} of {recipe.run.steps} ({share:.0f}%)."
    side = "high" if score.relative_error > 0 else "low"
    error = abs(100 * score.relative_error)
    off = f"{error:.1f}% too {side}" if error >= 0.05 else "off by less than 0.1%"
    where = "inside the interval" if score.inside else "outside the interval"
    erred = ERRED.get(score.erred, "")
    return f"{sealed} It ended at {text.loss(score.loss)}, {where}: the forecast was {off}.{erred}"


def tiles(view: View) -> list[Tile]:
    """The headline's numbers, forecast against actual first."""
    found: list[Tile] = []
    if (recipe := view.recipe) is not None:
        forecast = recipe.forecast
        interval = f"{text.loss(forecast.low)} – {text.loss(forecast.high)}"
        found.append(Tile("Forecast", text.loss(forecast.loss), f"{100 * forecast.level:.0f}%: {interval}"))
        found.append(_reach(recipe))
        if (score := view.score) is not None:
            tone = "good" if score.inside else "bad"
            found.append(Tile("Actual", text.loss(score.loss), "inside" if score.inside else "outside", tone))
            others = {"largest proxy": forecast.naive, "published exponents": forecast.comparator}
            note = ", ".join(
                f"{words}: {text.percent((loss - score.loss) / score.loss)}"
                for words, loss in others.items()
                if math.isfinite(loss)
            )
            found.append(
                Tile(
                    "Error",
                    text.percent(score.relative_error),
                    note,
                    "" if score.better_than_naive else "bad",
                )
            )
        else:
            found.append(Tile("Actual", text.NOTHING, "could not be read" if view.unread else "not finished"))
    if (elastic := view.elastic) is not None and elastic.world_sizes:
        sizes = " → ".join(str(size) for size in elastic.world_sizes)
        found.append(Tile("Workers", sizes, text.plural(elastic.restarts, "restart")))
    if elastic is not None and (recoveries := elastic.recovery_seconds):
        most = (
            f"{max(recoveries):.1f}"
            if len(recoveries) > 3
            else ", ".join(f"{value:.1f}" for value in recoveries)
        )
        note = "from the last step before a restart to the first after it"
        found.append(Tile("Recovery, s" if len(recoveries) <= 3 else "Slowest recovery, s", most, note))
    if (account := view.account) is not None:
        wrong = account.skipped + account.repeated
        note = f"of {text.whole(account.expected)} planned"
        found.append(Tile("Tokens skipped or repeated", text.whole(wrong), note, "bad" if wrong else "good"))
    return found


def _reach(recipe: Recipe) -> Tile:
    """How far the forecast reaches, and what it cost."""
    over, cost = recipe.extrapolation, recipe.forecast.proxies_over_target
    note = f"parameters {over['params']:.3g}×, tokens {over['tokens']:.3g}× the largest proxy"
    note += f"; all proxies {cost:.3g}× the target" if math.isfinite(cost) else ""
    return Tile("Reach in compute", f"{over['compute']:.3g}×", note)


def notes(view: View) -> list[Note]:
    """What must be known before the numbers are trusted."""
    found = [Note("Could not be read", problem) for problem in view.problems]
    for collapse in view.collapses:
        if odd := collapse.outliers:
            curve, its = ("curve is", "its rate") if len(odd) == 1 else ("curves are", "their rates")
            words = (
                f"{text.listing(odd)}: the loss {curve} not the one that the other {collapse.runs.height - len(odd)} "
                f"proxies with as many tokens per parameter share, as if {its} were set worse."
            )
            found.append(Note("A proxy's curve leaves the common one", words))
    if (recipe := view.recipe) is None:
        doubts = view.fits.doubts if view.fits is not None else ()
        return [
            *found,
            *(
                Note("No forecast from these rows is certified", f"{_first_upper(doubt)}.")
                for doubt in doubts
            ),
            *_unnamed(view),
        ]
    forecast = recipe.forecast
    if view.fits is not None and not view.fits.of_rows(recipe.fingerprints):
        words = (
            "Figures of the fits show today's trials; the recipe and its forecast rest on the trials that were there "
            "when it was sealed."
        )
        found.append(Note("Trials have changed since the recipe was sealed", words))
    if forecast.status == "prior_driven":
        found.append(Note("Prior-driven", _prior_words(view, forecast)))
    elif forecast.status != "ok":
        found.append(
            Note(f"Loss law: {forecast.status.replace('_', ' ')}", "; ".join(forecast.reasons) + ".")
        )
    if not forecast.certified:
        reasons = "; ".join(forecast.reasons) or "no reason recorded"
        found.append(Note("Not certified", f"No calibration vouches for the interval's level: {reasons}."))
    found += [] if recipe.trainer else _unnamed(view)
    if overridden := [f"{check.name} ({check.reason})" for check in recipe.checks if check.overridden]:
        title = f"{text.plural(len(overridden), 'check')} overridden"
        found.append(Note(title, f"These failed and were overridden by name: {'; '.join(overridden)}."))
    if unmeasured := [check for check in recipe.checks if check.kind == "unmeasured"]:
        names = text.listing([check.name for check in unmeasured])
        found.append(Note("Not measured", f"{names}: {unmeasured[0].value.partition(': ')[2]}."))
    for check in recipe.checks:
        if not check.passed and not check.overridden and check.kind != "unmeasured":
            found.append(Note(f"Warning: {check.name}", f"{_first_upper(check.value)}; {check.remedy}."))
    if (account := view.account) is not None and account.skipped_by_policy:
        words = f"{text.whole(account.skipped_by_policy)} tokens were left out by the run's own policy."
        found.append(Note("Skipped by policy", words))
    return found


def _unnamed(view: View) -> list[Note]:
    """What the target would be trained on where a table's study does not say; before a recipe, too."""
    words = unnamed_data(view.meta.get("stages", {}), view.run) if view.run is not None else ""
    return [Note("Data not named", f"{_first_upper(words)}.")] if words else []


def _prior_words(view: View, forecast: Forecast) -> str:
    words = "The forecast averages over the exponents that the proxies allow, weighed by a prior"
    law = view.fits.loss if view.fits else None
    if law is not None and law.prior is not None:
        pairs = (("α", law.prior.alpha), ("β", law.prior.beta))
        words += f" ({', '.join(f'{name} = {mean:g} ± {sd:g}' for name, (mean, sd) in pairs)})"
    words += "."
    if math.isfinite(forecast.free_loss):
        words += f" The fit with free exponents says {text.loss(forecast.free_loss)}; it was not used."
    return words


def subject(view: View) -> str:
    """What was trained on what: the model's class and the corpus of the run that the study is for; empty if unknown."""
    run, source = view.run, view.meta.get("source")
    if run is None or (source and (view.recipe is None or view.recipe.trainer)):
        return f"Runs that froude did not train, from {source}." if source else ""
    return f"{_imported(run.model.factory)} on {corpus(run)}."


def corpus(run: Run) -> str:
    """The source of the run's tokens, with its file and the start of its hash where the run names them."""
    data = run.data
    if data.parts:
        shares = [
            ", ".join(f"{name} {share:.3g}" for name, share in each.items() if share)
            for each in data.mixture()
        ]
        return f"{_imported(data.source)}: {', then '.join(shares)}"
    more = [os.path.basename(data.path)] if data.path else []
    more += [f"SHA-256 {data.sha256[:12]}…"] if data.sha256 else []
    return _imported(data.source) + (f": {', '.join(more)}" if more else "")


def _imported(path: str) -> str:
    module, _, name = path.partition(":")
    return f"{name} ({module})"


def facts(view: View) -> list[tuple[str, str]]:
    """The target run in a list of names and values."""
    if (recipe := view.recipe) is None:
        return []
    run = recipe.run
    size = f"width {run.model.width}, depth {run.model.depth}"
    if (target := view.target) is not None:
        size = f"{text.count(target[0])} parameters ({size})"
    forecast = recipe.forecast
    ratios = ", ".join(f"{name} {value:.3g}×" for name, value in recipe.extrapolation.items())
    others = ", ".join(f"{words} {text.loss(loss)}" for words, loss in forecast.others.items())
    more = [("Forecast by others", others)]
    if math.isfinite(forecast.proxies_over_target):
        more.append(("Cost of all proxies", f"{forecast.proxies_over_target:.3g}× the target's compute"))
    if math.isfinite(forecast.noise):
        more.append(
            (
                "Noise of a run",
                f"{100 * forecast.noise:.2g}% of its loss by the law: the floor under a forecast's error",
            )
        )
    more.append(("Checks overridden", ", ".join(recipe.overrides) or "none"))
    warmup, rest = 100 * run.schedule.warmup_tokens / run.tokens, run.optimizer.stored_rest
    beside = f" ({text.rate(rest.lr)} by AdamW where it is no hidden matrix)" if rest else ""
    return [
        ("Run", run.name),
        ("Model class", _imported(run.model.factory)),
        ("Corpus", corpus(run)),
        ("Model", f"{size}, {run.width_rules.label}, {run.precision}"),
        ("Tokens", f"{text.whole(run.tokens)} in {text.whole(run.steps)} steps of {_batches(run)}"),
        (
            "Recipe",
            f"lr {text.rate(run.optimizer.lr)}{beside}, β₂ {run.optimizer.beta2:.3g}"
            f"{' (prior)' * run.optimizer.beta2_clipped}, warmup {warmup:.0f}%, {run.schedule.name}",
        ),
        ("Beyond the largest proxy", ratios),
        *more,
        ("Sealed", recipe.sealed_at[:19].replace("T", " ") + " UTC"),
        ("Seal (SHA-256)", recipe.sha256),
        ("Gate", f"profile {recipe.profile}"),
    ]


def account_tiles(view: View) -> list[Tile]:
    """What became of every planned token."""
    if (account := view.account) is None:
        return []
    found = [Tile("Expected", text.whole(account.expected)), Tile("Trained", text.whole(account.trained))]
    for name, value in (("Skipped", account.skipped), ("Repeated", account.repeated)):
        found.append(Tile(name, text.whole(value), "", "bad" if value else "good"))
    if account.skipped_by_policy:
        found.append(Tile("Skipped by policy", text.whole(account.skipped_by_policy), "", "bad"))
    return found


def slopes(view: View) -> list[Tile]:
    """The slopes of log₂ rate per log₂ width."""
    found = []
    for key, law in (view.fits.transfer if view.fits else {}).items():
        interval = between(law.slope.low, law.slope.high, text.signed)
        note = "; ".join([f"95%: {interval}, status {law.status}", *law.reasons])
        found.append(Tile(f"{PARAMETRIZATIONS[key].label} slope", text.signed(law.slope.value), note))
    return found


def critical(view: View) -> list[Tile]:
    """The critical batch and the two least quantities."""
    law = view.fits.critical if view.fits else None
    if law is None or view.fits is None:
        return []
    goal = view.fits.target_loss
    note = f"95%: {between(law.low, law.high, text.count)}, status {law.status}"
    return [
        Tile("Critical batch, tokens", text.count(law.b_crit), note),
        Tile("Least steps", text.count(law.s_min), f"to a loss of {goal:g}"),
        Tile("Least tokens", text.count(law.e_min), f"to a loss of {goal:g}"),
    ]


def ladder(view: View) -> str:
    """What the loss law's rows are."""
    if holds_table(view.meta):
        return "the table's runs: for each size and horizon those with the best settings"
    assert view.fits is not None
    rows = view.fits.rows["loss_law"].filter(pl.col("status") == "finished")
    sizes, horizons, trials = (rows[name].n_unique() for name in ("params", "tokens", "trial"))
    trunks = f", branches of {trials} trunks" if trials < rows.height else ""
    counts = f"{text.plural(sizes, 'size')} and {text.plural(horizons, 'horizon')}"
    return f"{text.plural(rows.height, 'run')} of {counts}{trunks}"


def loss_words(law: LossLaw) -> str:
    """What the fit says of itself."""
    words = f"Status {law.status}" + (f": {'; '.join(law.reasons)}." if law.reasons else ".")
    if law.free is not None:
        own = [reason for reason in law.free.reasons if reason not in law.reasons]
        words += f" With free exponents: status {'; '.join([law.free.status, *own])}."
    if law.prior is not None:
        words += (
            " Small, short runs that scatter or miss the law weigh less, so their residuals may be large."
        )
    return words


def _batches(run: Run) -> str:
    """Tokens of a step, and of those after a ramp's changes."""
    words = [text.whole(run.batch)]
    words += [
        f"{text.whole(p.factor * run.batch)} from {text.whole(p.tokens)} on" for p in run.phases if p.tokens
    ]
    return ", ".join(words)


def between(low: float | None, high: float | None, show: Callable[[float], str]) -> str:
    """An interval in words, a dash where it is not known."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return text.NOTHING
    return f"{show(low)} to {show(high)}"


def _first_upper(words: str) -> str:
    return words[:1].upper() + words[1:]
