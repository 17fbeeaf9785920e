"""summary.json: the whole loop in numbers, and the closing block that says the same to a person."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from froude.attempts import history
from froude.parametrizations import DEFAULT, PARAMETRIZATIONS, STANDARD
from froude.promote.fits import Fits
from froude.promote.forecast import OTHERS, score
from froude.promote.recipe import Recipe
from froude.promote.token_audit import token_account
from froude.store import Location
from froude.study import Study
from froude.sweep.spent import proxies_over_target

FILE = "summary.json"
STAGES = ("sweep", "fit", "promote", "train")
WIDTH = 16  # of the closing block's first column


def summarize(
    study: Study, fits: Fits, recipe: Recipe, seconds: Mapping[str, float], *, digest: str | None
) -> dict[str, Any]:
    """The content of summary.json for a study whose target run is finished."""
    run = recipe.run
    elastic = history(study, run.name)
    assert elastic is not None
    assert elastic.loss is not None
    tokens = token_account(study, run.name, run)
    scored = score(recipe.forecast, elastic.loss)
    counts = dict(study.trials().group_by("status").len().collect().iter_rows())
    forecast, reach = recipe.forecast, dict(recipe.extrapolation)
    cost = proxies_over_target(study, run)
    spent = {
        stage: round(seconds[stage], 3) for stage in STAGES
    }  # rounded first: the total is theirs, to the bit
    content = {
        "trials": {status: counts.get(status, 0) for status in ("finished", "diverged", "failed")},
        "seconds": {**spent, "total": round(sum(spent.values()), 3)},
        "best": {
            "lr": run.optimizer.lr,
            "warmup_tokens": run.schedule.warmup_tokens,
            "beta2": run.optimizer.beta2,
            "batch": run.batch,
            "schedule": run.schedule.name,
        },
        "lr_transfer": {
            name: {"slope": law.slope.value, "low": law.slope.low, "high": law.slope.high}
            for name, law in fits.transfer.items()
        },
        "critical_batch": {
            key: getattr(fits.critical, key, None) for key in ("b_crit", "low", "high", "status")
        },
        "forecast": {
            **{key: getattr(forecast, key) for key in ("loss", "low", "high", "level", "certified", "naive")},
            "sha256": recipe.sha256,
            "comparator": forecast.comparator,
            "compute_line": forecast.compute_line,
            "noise": forecast.noise,
            "extrapolation": reach,
            "reach": {axis: reach[axis] for axis in ("params", "tokens", "compute")},
            "proxies_over_target": cost,
            "proxy_cost": cost,
            "overridden": [check.name for check in recipe.checks if check.overridden],
        },
        "actual": {
            "loss": scored.loss,
            "inside": scored.inside,
            "relative_error": scored.relative_error,
        },
        "elastic": {
            "run": run.name,
            "world_sizes": elastic.world_sizes,
            "restarts": elastic.restarts,
            "recovery_seconds": elastic.recovery_seconds,
            "tokens_expected": tokens.expected,
            "tokens_skipped": tokens.skipped,
            "tokens_repeated": tokens.repeated,
            "tokens_skipped_by_policy": tokens.skipped_by_policy,
            "digest": digest,
            "undisturbed_digest": None,
        },
    }
    if recipe.knobs:
        content["knobs"] = {knob.name: knob.to_dict() for knob in recipe.knobs}
    if forecast.sets:
        measured = {name: elastic.set_losses.get(name) for name in forecast.sets}
        content["sets"] = {
            name: {
                "forecast": each.to_dict(),
                "actual": measured[name],
                **dict(zip(("inside", "relative_error"), each.scored(loss), strict=True)),
            }
            for name, each in forecast.sets.items()
            if (loss := measured[name]) is not None
        }
    finite: dict[str, Any] = rounded(content)
    return finite


def rounded(value: Any) -> Any:
    """Plain JSON: seconds and the like to microunits, null for what is not finite."""
    if isinstance(value, float):
        return (
            round(value, 6)
            if math.isfinite(value) and abs(value) > 1e-2
            else value
            if math.isfinite(value)
            else None
        )
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value


def stored(location: Location) -> dict[str, Any]:
    """The summary that an earlier run of the loop left, {} if there is none or it is not whole."""
    try:
        content = json.loads((location / FILE).read())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return content if isinstance(content, dict) else {}


def closing_block(summary: Mapping[str, Any], *, install_seconds: float | None, report: str) -> str:
    """A few lines for the terminal: the recipe, the laws, forecast against actual, the run's failures, the tokens."""
    best, transfer, batch = summary["best"], summary["lr_transfer"], summary["critical_batch"]
    forecast, actual, elastic = summary["forecast"], summary["actual"], summary["elastic"]
    seconds, trials, over = summary["seconds"], summary["trials"], forecast["extrapolation"]
    knobs = summary.get("knobs", {})

    def slope(name: str) -> str:
        law = transfer.get(name)
        return (
            f"{law['slope']:+.2f} [{law['low']:+.2f}, {law['high']:+.2f}]"
            if law and law["slope"] is not None
            else "–"
        )

    # What the quickstart sweeps, and what a space of one's own did.
    due = {STANDARD.name, DEFAULT.name, *transfer}
    swept = [each for each in PARAMETRIZATIONS.values() if each.name in due]
    slopes = ", ".join(f"{each.plain_label} {slope(each.name)}" for each in swept)
    sizes = " → ".join(str(size) for size in elastic["world_sizes"])
    seconds_each = ", ".join(f"{value:.1f}" for value in elastic["recovery_seconds"])
    recovery = f"{seconds_each} seconds" if seconds_each else "none"
    verdict = "inside" if actual["inside"] else "OUTSIDE"
    lines = [
        (
            "trials",
            f"{trials['finished']} finished, {trials['diverged']} diverged, {trials['failed']} failed",
        ),
        (
            "best recipe",
            f"peak lr {best['lr']:.3g}, warmup {best['warmup_tokens']} tokens, beta2 {best['beta2']:.3g}"
            + ("" if knobs else f" (set beforehand: batch {best['batch']} tokens, {best['schedule']})"),
        ),
        *_knobs(knobs),
        ("LR transfer", f"log2 lr per log2 width: {slopes}"),
        ("critical batch", _batch(batch)),
        (
            "forecast",
            f"{forecast['loss']:.3f} nats per token, {100 * forecast['level']:.0f}% in "
            f"[{forecast['low']:.3f}, {forecast['high']:.3f}], {'' if forecast['certified'] else 'not '}certified, "
            f"sealed {forecast['sha256'][:12]} before step 0",
        ),
        (
            "reach",
            f"{over['params']:.2f}x the parameters, {over['tokens']:.2f}x the tokens, {over['compute']:.2f}x the "
            "compute of the largest proxy",
        ),
        ("cost of proxies", f"{forecast['proxies_over_target']:.1f}x the target's compute, all together"),
        *_limits(forecast),
        (
            "actual",
            f"{actual['loss']:.3f}: {verdict} the interval, error {100 * actual['relative_error']:+.1f}% "
            f"(others: {_others(forecast)})",
        ),
        ("world sizes", f"{sizes}   ({elastic['restarts']} restarts)"),
        ("recovery", recovery),
        (
            "tokens",
            f"{elastic['tokens_expected']} expected, {elastic['tokens_skipped']} skipped, "
            f"{elastic['tokens_repeated']} repeated",
        ),
        ("compute", f"{seconds['total']:.0f} s: " + ", ".join(f"{s} {seconds[s]:.0f}" for s in STAGES)),
    ]
    if install_seconds is not None:
        lines.append(("installation", f"{install_seconds:.0f} s"))
    lines.append(("report", report))
    return "\n".join(f"{name:<{WIDTH}}{text}" for name, text in lines)


def _knobs(knobs: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Batch, schedule, tail and weight decay: found or set by you, and what that costs; then what the rest rests on."""
    if not knobs:
        return []

    def said(name: str) -> str:
        knob = knobs[name]
        how = knob["source"] if knob["source"] == "set by you" else f"found ({knob['source']})"
        return f"{knob['value']}, {how}" + (f": {knob['rule']}" if "rule" in knob else "")

    lines = [("batch", said("batch")), ("schedule", said("schedule.name"))]
    more = {"schedule.decay_fraction": "decay fraction", "optimizer.weight_decay": "weight decay"}
    lines += [(words, said(name)) for name, words in more.items() if name in knobs]
    costs = [
        f"{name.rpartition('.')[2]} {knob['regret']:.3f} ({knob['source']})"
        for name, knob in knobs.items()
        if "regret" in knob
    ]
    return [*lines, ("regret expected", f"{', '.join(costs)} nats")]


def _limits(forecast: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What no forecast can be better than, and which checks were overridden for this one."""
    lines = []
    if forecast.get("noise"):
        floor = f"{100 * forecast['noise']:.2g}% of its loss by the law: the floor under a forecast's error"
        lines.append(("noise of a run", floor))
    if forecast.get("overridden"):
        lines.append(("overridden", ", ".join(forecast["overridden"])))
    return lines


def _others(forecast: Mapping[str, Any]) -> str:
    """What else could have been forecast, as far as it was."""
    told = {words: forecast.get(key) for key, words in OTHERS.items()}
    return ", ".join(f"{words} {value:.3f}" for words, value in told.items() if value is not None)


def _batch(batch: Mapping[str, Any]) -> str:
    if batch["b_crit"] is None:
        return f"no fit ({batch['status']})"
    if batch["low"] is None:
        return f"{batch['b_crit']:.0f} tokens ({batch['status']})"
    interval = f"[{batch['low']:.0f}, {batch['high']:.0f}]"
    return f"{batch['b_crit']:.0f} tokens {interval} at the loss of its stage ({batch['status']})"
