"""froude train."""

from __future__ import annotations

from typing import Annotated

import typer

from froude.cli.common import (
    FAILED,
    Address,
    Debug,
    Json,
    Register,
    Shared,
    Simulate,
    SkipProbe,
    Track,
    Trust,
    cluster,
    emit,
    say,
    simulated_nodes,
    skipped,
    verb,
)


@verb
def train(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="recipe.toml of a study, a path or s3:// URL.")
    ],
    address: Address = "",
    simulate: Simulate = 0,
    trust: Trust = False,
    shared: Shared = False,
    other_build: Annotated[
        bool,
        typer.Option(
            "--other-build", help="Let an exact run go on with another torch, processor or number of threads."
        ),
    ] = False,
    spares: Annotated[
        bool | None,
        typer.Option(
            "--spares/--no-spares",
            help="Keep a process ready on each node for a quicker restart.",
            show_default="where memory allows; later where no core is idle",
        ),
    ] = None,
    evaluate: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Call this evaluate(model, step) -> {name: number} at checkpoints.",
            show_default=False,
        ),
    ] = "",
    skip_probe: SkipProbe = None,
    register: Register = "",
    track: Track = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Train the target run to its end, with as many workers as the cluster has, through failures and growth.

    Writes into the recipe's study and goes on from the newest committed checkpoint; a finished run is left as it is.

    Example: froude train runs/study/recipe.toml --simulate 3
    """
    from dataclasses import asdict

    from froude.config import ConfigError
    from froude.launch.display import Display, following
    from froude.launch.elastic import result_of
    from froude.launch.elastic import train as train_run
    from froude.launch.knobs import in_force
    from froude.launch.readiness import spares_after
    from froude.promote.forecast import score
    from froude.promote.promotion import parameters
    from froude.promote.recipe import FILE, read
    from froude.runlog import LogReader
    from froude.store import Location, probe_writable
    from froude.study import Study
    from froude.sweep.plan import CLUSTER_BYTES, worker_bytes
    from froude.sweep.preflight import check_memory, cpus
    from froude.tracking import check as check_trackers
    from froude.tracking.process import tracked
    from froude.train.observers.downstream import check as check_evaluate
    from froude.train.probe.contract import check_code_and_corpus
    from froude.train.rows import describe

    check_trackers(track or ())
    check_evaluate(evaluate, trust)
    place = Location.parse(recipe)
    found = read(place)
    found.check_trained_here()
    study = place if (place / FILE).exists() else place.parent
    check_code_and_corpus([found.run], trust, skipped(skip_probe))
    probe_writable(study)
    kept = None
    if register:
        from froude.register import keep, opened

        kept = opened(register, study)
        probe_writable(kept)
    if LogReader(study / "runs" / found.run.name).head_under(found.sha256) is None:
        found.restore_forecast(study / FILE)
    display = Display(quiet=as_json)

    result = result_of(found.run, study)
    display.stage("train")
    facts = {**describe(found.run), "params": parameters(found.run, trust=trust)} if track else None
    if result.finished:
        with tracked(track or (), study, facts=facts):
            pass  # what was not sent while it was trained
    else:
        each = cpus([found.run])
        if nodes := simulated_nodes(address, simulate, each):
            needed = CLUSTER_BYTES + min(nodes, found.run.max_workers) * worker_bytes(found.run)
            check_memory(needed, what=f"run {found.run.name} on {nodes} simulated nodes")
        with (
            tracked(track or (), study, facts=facts),
            cluster(address, simulate, study, shared=shared, cpus=each) as running,
        ):
            after = spares_after(found.run, running, spares)
            ready = "off" if after is None else f"on, {after:g} s into an attempt" if after else "on"
            display.line(f"failure knobs {in_force()}; spares {ready}")
            display.stage("train")
            result = train_run(
                found.run,
                study,
                cluster=running,
                recipe=found.sha256,
                material=found.material,
                trust=trust,
                other_build=other_build,
                spares=spares,
                evaluate=evaluate,
                progress=following(display),
            )
    content = asdict(result)
    if result.loss is not None:
        content["actual"] = score(found.forecast, result.loss).to_dict()
    failure = ""
    if kept is not None and result.loss is not None:
        try:
            content["score_kept"] = keep(kept, Study(study), trust=trust)
        except ConfigError as error:
            failure = (
                f"the run is finished, its score not kept: {error}; then `froude report --register` keeps it"
            )
    if as_json:
        emit(content)
        return say(failure, FAILED) if failure else None
    sizes = " → ".join(str(size) for size in result.world_sizes)
    display.done(f"{result.run}: step {result.step}, world sizes {sizes}, {result.restarts} restarts")
    if result.loss is not None:
        forecast = found.forecast
        display.line(
            f"loss {result.loss:.3f} nats per token; forecast {forecast.loss:.3f}, "
            f"{100 * forecast.level:.0f}% in [{forecast.low:.3f}, {forecast.high:.3f}]"
        )
    if content.get("score_kept"):
        display.line(f"score kept in {kept}")
    return say(failure, FAILED) if failure else None
