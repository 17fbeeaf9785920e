"""The whole loop on this machine: sweep, fit, promote, elastic run with an injected failure, report, summary."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

import froude
from froude import report
from froude.launch.cluster import SimulatedCluster, log_dir, simulated
from froude.launch.display import Display, following
from froude.launch.elastic import Progress, train
from froude.launch.status import find_bad_trials, told
from froude.launch.sweep import open_study, sweep
from froude.promote import recipe as recipes
from froude.promote.fits import Fits, fit
from froude.promote.promotion import promote
from froude.promote.recipe import Recipe
from froude.quickstart import summary
from froude.quickstart.drill import Drill
from froude.runlog import LogReader
from froude.space import Space, Trial, load_space
from froude.store import Location
from froude.study import Study
from froude.sweep.agenda import Agenda, cost
from froude.sweep.plan import memory
from froude.sweep.preflight import check_memory
from froude.sweep.progress import shown
from froude.sweep.spent import proxies_over_target
from froude.train.speed.timing import cores

NODES = 3
COST_SECONDS = 0.95  # of one core for a unit of `agenda.cost`, without AVX-512
#: Checks of the production profile that a study of minutes cannot pass.
OVERRIDES = {
    "seeds": "one seed a run: between seeds the losses of these proxies differ by 1.4%, for which the forecast's "
    "interval allows in part: as if each horizon had a seed of its own",
    "lr_points": "five rates a width, fitted jointly over three widths, place the optimum well enough here",
    "lr_transfers": "five rates a width, with one seed and at one horizon, cannot show that the best rate stays; what "
    "it would cost if it does not is in the interval in part: the ladder runs at one rate, too",
    "forecast_interval": "four trunks of minutes leave the law's exponents open, and the interval is as wide as that",
    "forecast_certified": "four sizes over a factor of nine in parameters, with more tokens per parameter than the "
    "target: a prior weighs the exponents, and the interval says so",
}
SPACE = "search_spaces/quickstart.py"


@dataclass
class Loop:
    """One pass over the stages; `seconds` are this pass's wall time per stage, `worked` names those that did work."""

    location: Location
    space: Space
    display: Display
    seconds: dict[str, float] = field(default_factory=dict)
    worked: set[str] = field(default_factory=set)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time what is done for a stage."""
        self.display.stage(name)
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began

    @property
    def study(self) -> Study:
        return Study(self.location)


def quickstart(
    out: str, *, seed: int = 0, fresh: bool = False, space: str = "", display: Display | None = None
) -> dict[str, Any]:
    """Run the loop in the study `out` (a path or s3:// URL) and return the content of its summary.json.

    Goes on where an earlier call stopped and does nothing twice; `fresh` deletes the study first. ConfigError before
    anything starts if the study is of another seed, its place unwritable, or memory short.
    """
    began = time.time()
    location, display = Location.parse(out), display or Display()
    loop = Loop(location, load_space(space or default_space(), seed=seed), display)
    needed = memory(loop.space, NODES)
    if fresh:  # before anything is deleted
        check_memory(needed, what="the quickstart")
    agenda = open_study(loop.space, location, trust=False, fresh=fresh)
    recipe = kept_recipe(loop.study)
    finished = recipe is not None and is_finished(location, recipe)
    announce(loop, agenda, finished=finished)
    with ExitStack() as stack:
        cluster: SimulatedCluster | None = None
        if not (agenda.done and finished):
            check_memory(needed, what="the quickstart")
            display.stage("cluster")
            with loop.stage("sweep" if not agenda.done else "train"):
                cluster = stack.enter_context(simulated(NODES, log_dir=log_dir(location)))
            display.line(f"[cluster] a head and {NODES} worker nodes, simulated on this machine")
        if not agenda.done:
            assert cluster is not None
            with loop.stage("sweep"):
                run_sweep(loop, cluster)
        with loop.stage("fit"):
            fits = fit(loop.study)
            display.line("\n".join(fits.lines()))
        recipe = promoted(loop, fits, recipe)
        if not finished:
            assert cluster is not None
            with loop.stage("train"):
                run_large(loop, recipe, cluster)
    return conclude(loop, fits, recipe, began)


def default_space() -> Path:
    """The quickstart's search space: below the working directory, else next to the package's source."""
    beside = Path(froude.__file__).resolve().parents[2] / SPACE
    return next((path for path in (Path(SPACE), beside) if path.is_file()), Path(SPACE))


def kept_recipe(study: Study) -> Recipe | None:
    """The study's recipe, its seal verified; None if there is none."""
    place = study.location / recipes.FILE
    return recipes.read(place) if place.exists() else None


def is_finished(location: Location, recipe: Recipe) -> bool:
    """Whether the recipe's run is trained to its end; ConfigError if it was begun with another recipe."""
    head = LogReader(location / "runs" / recipe.run.name).head_under(recipe.sha256)
    return head is not None and head.kind == "finished"


def announce(loop: Loop, agenda: Agenda, *, finished: bool) -> None:
    """Say what will be done, and about how long it takes."""
    left, say = agenda.left(), loop.display.line
    say(f"froude quickstart: the whole loop on this machine, seed {loop.space.seed}, in {loop.location}")
    if agenda.done and finished:
        say("  everything is trained: fits, report and summary are made anew (under a minute)")
        return
    stages = dict.fromkeys(stage for stage, _ in left)
    counts = ", ".join(f"{name} {sum(stage == name for stage, _ in left)}" for name in stages)
    target = loop.space.target
    if left:
        say(f"  1 sweep    {len(left)} small trials ({counts}) on two workers or more")
    say("  2 fit      learning-rate transfer in SP and muP, critical batch, loss law")
    say("  3 promote  a recipe with its forecast, sealed before the target run's step 0")
    say(
        f"  4 train    {target.steps} steps at width {target.model.width} on 1 to 3 workers; one node dies on the way"
    )
    say(f"  5 report   {loop.location}/report.html and summary.json")
    say(
        f"  about {minutes(loop, left, finished=finished)} minutes; Ctrl-C stops it, the same command goes on"
    )


def minutes(loop: Loop, left: Sequence[tuple[str, Trial]], *, finished: bool) -> int:
    """A guess at the wall time: starting and restarting take about a minute, the rest divides among the cores."""
    target = Trial(loop.space.target.name, (loop.space.target,))
    work = sum(cost(trial) for _, trial in left) + (0.0 if finished else cost(target))
    workers = min(NODES, cores())
    return max(1, round((60 + COST_SECONDS * work / workers) / 60))


def run_sweep(loop: Loop, cluster: SimulatedCluster) -> None:
    """Train what is left of the sweep."""
    loop.worked.add("sweep")
    if loop.display.quiet:
        sweep(loop.space, loop.location, cluster)
    else:
        with shown(loop.display.stream) as progress:
            sweep(loop.space, loop.location, cluster, progress=progress)
    statuses = loop.study.trials().group_by("status").len().sort("status").collect()
    loop.display.done(", ".join(f"{count} {status}" for status, count in statuses.iter_rows()))
    for line in told(find_bad_trials(loop.study), f"froude status {loop.location}"):
        loop.display.line(f"[sweep] {line}")


def promoted(loop: Loop, fits: Fits, kept: Recipe | None) -> Recipe:
    """The recipe of these fits, or the kept one where its run has begun."""
    if kept is not None and LogReader(loop.location / "runs" / kept.run.name).head() is not None:
        loop.seconds.setdefault("promote", 0.0)
        return kept
    with loop.stage("promote"):
        cost = partial(proxies_over_target, loop.study, fits.target)
        recipe = promote(loop.study, overrides=OVERRIDES, fits=fits, cost=cost)
        if kept is None or recipe.sha256 != kept.sha256:
            loop.worked.add("promote")
        forecast = recipe.forecast
        loop.display.done(
            f"forecast {forecast.loss:.3f} [{forecast.low:.3f}, {forecast.high:.3f}] nats per token, sealed "
            f"{recipe.sha256[:12]}; overridden: {', '.join(recipe.overrides) or 'none'}"
        )
    return recipe


def run_large(loop: Loop, recipe: Recipe, cluster: SimulatedCluster) -> None:
    """Train the target run while a node dies and another comes."""
    run = recipe.run
    display, show = loop.display, following(loop.display)
    before = LogReader(loop.location / "runs" / run.name).records()
    shrunk = any(record.kind == "attempt" and record.world < NODES for record in before)
    drill = Drill(cluster, killed=shrunk, added=shrunk, say=lambda text: display.line(f"[train] {text}"))

    def progress(now: Progress) -> None:
        show(now)
        drill(now)

    loop.worked.add("train")
    result = train(
        run,
        loop.location,
        cluster=cluster,
        recipe=recipe.sha256,
        spares=False,  # an attempt of a minute gains nothing from them
        progress=progress,
    )
    display.done(f"{result.step} steps, world sizes {' → '.join(map(str, result.world_sizes))}")


def conclude(loop: Loop, fits: Fits, recipe: Recipe, began: float) -> dict[str, Any]:
    """Write the report and the summary, print the closing block."""
    from froude.checkpoint.tensors import digest  # torch, which nothing before needs in this process

    loop.display.stage("report")
    place = report.write(loop.study, fits=fits)
    seconds = total_seconds(loop, recipe, began)
    place_of_run = loop.location / "runs" / recipe.run.name
    bits = digest(place_of_run, LogReader(place_of_run).lineage()[-1])
    content = summary.summarize(loop.study, fits, recipe, seconds, digest=bits)
    (loop.location / summary.FILE).replace(json.dumps(content, indent=2).encode() + b"\n")
    install = os.environ.get("FROUDE_INSTALL_SECONDS", "")
    loop.display.line()
    loop.display.line(
        summary.closing_block(content, install_seconds=float(install) if install else None, report=place.url)
    )
    return content


def total_seconds(loop: Loop, recipe: Recipe, began: float) -> Mapping[str, float]:
    """Seconds of each stage over all passes: this one's, and what the study remembers of the ones before.

    A pass that was interrupted left no summary: then the times of its trials and commits show how long it was at work.
    """
    before: dict[str, float] = summary.stored(loop.location).get("seconds", {})
    remembered = before or worked_before(loop.study, recipe.run.name, began)
    totals = {}
    for name in summary.STAGES:
        if name in loop.worked or name not in remembered:
            totals[name] = loop.seconds.get(name, 0.0) + (0.0 if before else remembered.get(name, 0.0))
        else:
            totals[name] = float(remembered[name])
    return totals


def worked_before(study: Study, run: str, until: float) -> dict[str, float]:
    """Seconds before `until` (since the epoch) in which trials or the target run were at work."""
    trials = study.trials().select("time", "seconds").drop_nulls().collect()
    ends = trials["time"].dt.epoch("us") / 1e6
    spans = [(end - took, end) for end, took in zip(ends, trials["seconds"], strict=True) if end < until]
    commits = study.commits().filter(pl.col("run") == run).collect()
    lives = []
    for _, rows in commits.group_by("attempt"):
        times = rows["time"].dt.epoch("us") / 1e6
        lives.append((float(times.min()), float(times.max())))  # type: ignore[arg-type]
    return {"sweep": covered(spans), "train": covered([span for span in lives if span[1] < until])}


def covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
