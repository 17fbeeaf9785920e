"""What a run changes on its way: learning rate, batch, beta2 and weight decay against the tokens seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from froude import schedules
from froude.config import Optimizer, Run
from froude.laws.drawing.panel import Axis, Line, Panel
from froude.laws.drawing.render import draw
from froude.laws.drawing.themes import PLAIN
from froude.optimizers.section import Rest, beta2_arguments
from froude.report import text

STEPS = 1000  # drawn of a run: more cannot be told apart
STYLES = ("along", "limit")  # of the optimizer, and of what AdamW takes beside it
BETA2, DECAY = "β₂", "weight decay"
SIZE = (9.6, 5.4)  # inches
PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>
<body style="margin: 2em; font-family: sans-serif; background: white"><h1>{title}</h1>
{svg}
</body></html>
"""


def write(run: Run, file: str) -> None:
    """Draw the run's schedule into an SVG, or a page around it."""
    import html
    import io

    sink = io.StringIO()
    figure(run).savefig(sink, format="svg", metadata={"Date": None, "Creator": None})
    svg = sink.getvalue()
    if file.endswith(".html"):
        svg = PAGE.format(title=html.escape(f"{run.name}: schedule"), svg=svg[svg.index("<svg") :])
    Path(file).write_text(svg)


def figure(run: Run) -> Figure:
    """The panels of a run, two by two."""
    made = Figure(figsize=SIZE, layout="constrained", facecolor="white")
    made.suptitle(f"{run.name}: {run.steps:,} steps of {run.phases}", fontsize=10, x=0.01, ha="left")
    for axes, panel in zip(made.subplots(2, 2).flat, panels(run), strict=True):
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        draw(axes, panel, PLAIN)
    return made


def panels(run: Run) -> tuple[Panel, ...]:
    """Learning rate, batch, beta2 and weight decay, each of a step as long as that step."""
    drawn = steps(run)
    edges = np.array([run.phases.tokens_at(step) for step in [*drawn, run.steps]])
    parts: dict[str, Optimizer | Rest] = {run.optimizer.name: run.optimizer}
    if run.optimizer.by_rows is not run.optimizer:
        parts["rest"] = run.optimizer.by_rows

    def panel(name: str, value: Callable[[int, Optimizer | Rest], float], *, whole: bool = False) -> Panel:
        shown = list(parts.items())[: 1 if whole else None]
        if name == BETA2:
            shown = [
                (called, each)
                for called, each in shown
                if beta2_arguments(each, each.beta2) or each.spec.curvature
            ]
        if name == DECAY:
            shown = [(called, each) for called, each in shown if each.spec.decays]
        series = [
            Line(
                np.repeat(edges, 2)[1:-1],
                np.repeat([value(step, settings) for step in drawn], 2),
                style=STYLES[[*parts].index(called)],
                name=called if len(parts) > 1 and not whole else "",
            )
            for called, settings in shown
        ]
        top = max((float(np.max(line.y)) for line in series), default=0.0)
        limits = (0.0, 1.08 * top or 1.0) if name != BETA2 else None
        axis = Axis(name, limits=limits, words=text.whole if whole else None)
        none = "" if shown else f"{run.optimizer.name} has none"
        return Panel(
            Axis("tokens", words=text.count, limits=(0, run.tokens)), axis, tuple(series), title=none
        )

    return (
        panel("learning rate", lambda step, settings: settings.lr * schedules.at_step(run, step)),
        panel("batch, tokens", lambda step, settings: run.phases.batch_at(step), whole=True),
        panel(BETA2, lambda step, settings: schedules.beta2_at(run, step, settings.beta2)),
        panel(
            DECAY,
            lambda step, settings: settings.weight_decay * schedules.weight_decay_at(run, step),
        ),
    )


def steps(run: Run) -> Sequence[int]:
    """Steps that are drawn: at most STEPS evenly apart, and the first and last of each phase."""
    ends = {step for phase in run.phases for step in (phase.step - 1, phase.step)}
    even = {*np.linspace(0, run.steps - 1, min(run.steps, STEPS)).round().astype(int).tolist()}
    return sorted(step for step in ends | even if 0 <= step < run.steps)
