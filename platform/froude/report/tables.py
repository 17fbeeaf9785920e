"""The report's tables: rows of text that the template lays out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from froude.attempts import Attempt
from froude.parametrizations import PARAMETRIZATIONS
from froude.promote.band import averaged
from froude.report import text
from froude.report.narrative import between
from froude.report.view import View
from froude.sweep.spent import by_trial

SHOWN_CHECKPOINTS = 8
SHOWN_TRIALS = 2000  # rows of the table: more would make the page slow, and are in the study's Parquet
#: Of a check that did not pass, by its kind: what the table calls it, and its tone.
RESULTS = {"refuse": ("fail", "bad"), "warn": ("warning", "warn"), "unmeasured": ("not measured", "warn")}


@dataclass(frozen=True)
class Table:
    """Rows of text under `columns`; `numbers` are the columns that align right."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: frozenset[int] = frozenset()
    tones: tuple[str, ...] = ()


def attempts(view: View) -> Table | None:
    """One row an attempt of the elastic run."""
    if view.elastic is None or not view.elastic.attempts:
        return None
    rows = [
        (
            str(attempt.number),
            str(attempt.world),
            _recovery(attempt),
            text.whole(attempt.step),
            f"{attempt.start:.1f}",
            f"{attempt.first:.1f}" if attempt.first is not None else "no step kept",
        )
        for attempt in view.elastic.attempts
    ]
    columns = ("attempt", "workers", "recovery, s", "from step", "opened at, s", "first step at, s")
    return Table(columns, rows, frozenset(range(6)))


def _recovery(attempt: Attempt) -> str:
    if attempt.recovery is not None:
        return f"{attempt.recovery:.1f}"
    return "new driver" if attempt.resumed else text.NOTHING


def actions(view: View) -> Table | None:
    """What the spike policy did to the elastic run."""
    if not view.actions.height:
        return None
    rows = [
        (row["action"], text.whole(row["step"]), text.whole(row["batch"]), row["why"])
        for row in view.actions.iter_rows(named=True)
    ]
    return Table(("action", "step", "batch", "why"), rows, frozenset({1, 2}))


def speed(view: View) -> Table | None:
    """Where the time of a step of the elastic run goes, by the median step; None where phases were not timed."""
    timed = view.steps.drop_nulls("forward_seconds") if view.steps.height else view.steps
    if not timed.height:
        return None
    phases = ("data", "forward", "backward", "reduce", "optimizer")
    wanted = ("seconds", "tokens_per_second", "mfu", *(f"{phase}_seconds" for phase in phases))
    whole, tokens, mfu, *known = timed.select(pl.col(name).median() for name in wanted).row(0)
    taken = {phase: took or 0.0 for phase, took in zip(phases, known, strict=True)}
    taken["other"] = max(0.0, whole - sum(taken.values()))
    rows = [(phase, f"{1e3 * took:.2f}", f"{took / whole:.1%}") for phase, took in taken.items()]
    used = f", MFU {mfu:.1%}" if mfu is not None else ""
    rows.append((f"step: {text.whole(round(tokens))} tokens/s{used}", f"{1e3 * whole:.2f}", ""))
    return Table(("phase", "ms, median", "share"), rows, frozenset({1, 2}))


def course(view: View) -> Table | None:
    """The forecast of the training loss at some of the planned checkpoints, and what was seen there."""
    if view.recipe is None or not view.recipe.forecast.band:
        return None
    forecast, run = view.recipe.forecast, view.recipe.run
    seen = averaged(view.steps, forecast.block) if view.steps.height else None
    planned = [*range(run.checkpoint_every, run.steps, run.checkpoint_every), run.steps]
    planned = [step for step in planned if run.phases.tokens_at(step) >= forecast.band[0].tokens]
    rows = []
    for i in sorted(
        {round(k * (len(planned) - 1) / (SHOWN_CHECKPOINTS - 1)) for k in range(SHOWN_CHECKPOINTS)}
    ):
        at = forecast.at(run.phases.tokens_at(planned[i]))
        far = (pl.col("tokens") - at.tokens).abs()
        actual = seen.filter(far <= forecast.block).sort(far) if seen is not None else None
        loss = text.loss(actual["loss"][0]) if actual is not None and actual.height else text.NOTHING
        rows.append(
            (
                text.whole(planned[i]),
                text.whole(at.tokens),
                text.loss(at.loss),
                between(at.low, at.high, text.loss),
                loss,
            )
        )
    level = f"{100 * forecast.band_level:.0f}% band"
    return Table(("step", "tokens", "forecast", level, "actual"), rows, frozenset(range(5)))


def alarms(view: View) -> Table | None:
    """Where the run left its forecast."""
    rows = [(text.whole(a.since), text.whole(a.tokens), a.kind, a.line()) for a in view.alarms]
    columns = ("left at, tokens", "raised at, tokens", "which", "what")
    return Table(columns, rows, frozenset({0, 1})) if rows else None


def optima(view: View) -> Table | None:
    """Best rates of every width, and the slope of each parametrization."""
    rows: list[tuple[str, ...]] = []
    for key, law in (view.fits.transfer if view.fits else {}).items():
        for row in law.curves.sort(law.over).iter_rows(named=True):
            reach = between(row["low"], row["high"], text.rate)
            name = PARAMETRIZATIONS[key].label
            rows.append((name, f"{row[law.over]:g}", text.rate(row["lr"]), reach, row["status"]))
    columns = ("under", "width", "best lr", "95% interval", "status")
    return Table(columns, rows, frozenset({1, 2})) if rows else None


def sets(view: View) -> Table | None:
    """The forecast of the loss on each other validation set, and what was measured at the end of the run."""
    if view.recipe is None or not view.recipe.forecast.sets:
        return None
    forecast, measured = view.recipe.forecast, view.elastic.set_losses if view.elastic else {}
    rows = []
    for name, each in forecast.sets.items():
        actual = measured.get(name)
        inside, error = each.scored(actual) if actual is not None else (None, math.nan)
        rows.append(
            (
                name,
                text.loss(each.loss),
                between(each.low, each.high, text.loss),
                "yes" if each.certified else "no",
                text.loss(each.comparator) if math.isfinite(each.comparator) else text.NOTHING,
                f"{100 * each.noise:.2g}%" if math.isfinite(each.noise) else text.NOTHING,
                text.loss(actual) if actual is not None else text.NOTHING,
                text.percent(error) if inside is not None else text.NOTHING,
                text.NOTHING if inside is None else "inside" if inside else "outside",
            )
        )
    level = f"{100 * forecast.level:.0f}% interval"
    beside = ("published exponents", "noise of a run")
    columns = ("validation set", "forecast", level, "certified", *beside, "actual", "error", "interval")
    return Table(columns, rows, frozenset({1, 2, 4, 5, 6, 7}))


def loss_table(view: View) -> Table | None:
    """The loss law's parameters with 95% intervals, next to those of the fit with free exponents."""
    law = view.fits.loss if view.fits else None
    if law is None or not math.isfinite(law.E):
        return None
    free = law.free
    names = {"E": "E, nats per token", "A": "A", "B": "B", "alpha": "α", "beta": "β"}
    rows = []
    for row in law.table().iter_rows(named=True):
        cells = [
            names[row["parameter"]],
            text.number(row["value"]),
            between(row["low"], row["high"], text.number),
        ]
        rows.append((*cells, *([text.number(getattr(free, row["parameter"]))] if free is not None else [])))
    if free is not None:
        rows.append(("status", law.status, "", free.status))
    if free is not None and view.recipe is not None:
        forecast = view.recipe.forecast
        rows.append(
            (
                f"forecast, {100 * forecast.level:.0f}% interval",
                text.loss(forecast.loss),
                between(forecast.low, forecast.high, text.loss),
                text.loss(forecast.free_loss),
            )
        )
    head = "with the prior" if law.prior is not None else "value"
    columns = ("parameter", head, "95% interval", *(("free exponents",) if free is not None else ()))
    return Table(columns, rows, frozenset({1, 2, 3}))


def checks(view: View) -> Table | None:
    """The gate's table: name, measured, bound, result, remedy or the override's reason."""
    rows, tones = [], []
    for check in view.checks:
        if check.passed:
            result, tone, words = "pass", "good", ""
        elif check.overridden:
            result, tone, words = "overridden", "warn", f"{check.reason} (remedy: {check.remedy})"
        else:
            result, tone = RESULTS[check.kind]
            words = check.remedy
        rows.append((check.name, check.value, check.bound, result, words))
        tones.append(tone)
    columns = ("check", "measured", "must be", "result", "remedy")
    return Table(columns, rows, tones=tuple(tones)) if rows else None


def stages(view: View) -> Table | None:
    """What each stage of the sweep cost and gave."""
    if view.trials.is_empty():
        return None
    counts = [
        (pl.col("status") == status).sum().alias(status) for status in ("finished", "diverged", "failed")
    ]
    frame = (
        view.trials.with_columns(trial=pl.coalesce("trial", "run"))
        .group_by("stage", "trial", maintain_order=True)
        .agg(*counts, _known("seconds"))
        .join(by_trial(view.trials), on=["stage", "trial"], nulls_equal=True, maintain_order="left")
        .group_by("stage", maintain_order=True)
        .agg(pl.len().alias("trials"), pl.exclude("trial", "seconds").sum(), _known("seconds"))
    )
    order = stage_order(view)
    ranked = sorted(frame.iter_rows(named=True), key=lambda row: order.get(row["stage"], len(order)))
    names = ("finished", "diverged", "failed")
    rows = [
        (
            row["stage"] or text.NOTHING,
            str(row["trials"]),
            *(str(row[name]) for name in names),
            text.count(row["tokens"]),
            text.number(row["flops"]),
            text.seconds(row["seconds"]),
        )
        for row in ranked
    ]
    columns = ("stage", "trials", *names, "tokens", "FLOPs", "time of trials")
    return Table(columns, rows, frozenset(range(1, 9)))


def _known(column: str) -> pl.Expr:
    """The sum of what is known, null where nothing is."""
    return pl.when(pl.col(column).count() > 0).then(pl.col(column).sum())


def stage_order(view: View) -> dict[str, int]:
    """The study's stages by name, in the order that they ran in."""
    return {stage: i for i, stage in enumerate(view.meta.get("stages", {}))}


def trials(view: View) -> Table | None:
    """The table of trials, in order of stage and loss."""
    if view.trials.is_empty():
        return None
    order = stage_order(view)
    rows = sorted(
        view.trials.iter_rows(named=True),
        key=lambda row: (
            order.get(row["stage"], len(order)),
            math.inf if row["loss"] is None else row["loss"],
            row["run"],
        ),
    )
    return Table(
        columns=(
            "trial", "stage", "status", "loss", "lr", "batch", "tokens", "width", "parameters", "warmup", "β₂",
            "schedule", "parametrization", "seed", "attempts", "seconds",
        ),
        rows=[_trial(row) for row in rows[:SHOWN_TRIALS]],
        numbers=frozenset({3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 15}),
        tones=tuple("" if row["status"] == "finished" else "bad" for row in rows[:SHOWN_TRIALS]),
    )  # fmt: skip


def _trial(row: Mapping[str, Any]) -> tuple[str, ...]:
    warmup = (
        row["warmup_tokens"] / row["tokens"] if row["tokens"] and row["warmup_tokens"] is not None else None
    )
    name = row["parametrization"] or ""
    return (
        row["run"],
        row["stage"] or text.NOTHING,
        row["status"],
        text.loss(row["loss"]),
        text.rate(row["lr"]),
        text.whole(row["batch"]),
        text.count(row["tokens"]),
        text.whole(row["width"]),
        text.count(row["params"]),
        text.NOTHING if warmup is None else f"{100 * warmup:.0f}%",
        text.number(row["beta2"]),
        row["schedule"] or text.NOTHING,
        PARAMETRIZATIONS[name].label if name in PARAMETRIZATIONS else name or text.NOTHING,
        text.whole(row["seed"]),
        text.whole(row["attempts"]),
        text.NOTHING if row["seconds"] is None else f"{row['seconds']:.1f}",
    )
