"""froude follow."""

from __future__ import annotations

from typing import Annotated

import typer

from froude.cli.common import FAILED, Debug, Json, Register, Trust, emit, say, verb

POLL_SECONDS = 1.0


@verb
def follow(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="recipe.toml of a study, a path or s3:// URL.")
    ],
    metrics: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="What the trainer writes: a file of JSON lines, a .parquet file, or a folder of W&B (offline), "
            "TensorBoard or MLflow.",
        ),
    ],
    series: Annotated[
        str,
        typer.Option(
            metavar="loss=NAME,…",
            help="The trainer's names for metrics, by froude's; else those of `trainer.series`.",
            show_default=False,
        ),
    ] = "",
    once: Annotated[
        bool, typer.Option("--once", help="Read what is there now, and end; for scripts.")
    ] = False,
    register: Register = "",
    trust: Trust = False,
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Watch a run of another trainer against its sealed forecast, by the metrics that it writes, and score it.

    Ends when the final validation loss is there; the same command goes on after an interruption.

    Example: froude follow runs/study --metrics /scratch/large/metrics.jsonl
    """
    import time
    from dataclasses import asdict
    from pathlib import Path

    from froude.cli.options import pairs
    from froude.external.follow import Follower
    from froude.launch.display import Display
    from froude.promote.forecast import score
    from froude.promote.recipe import FILE, read
    from froude.sections import check_series
    from froude.store import Location, probe_writable
    from froude.study import Study

    names = pairs("--series", series)
    check_series(names, "--series")
    place = Location.parse(recipe)
    found = read(place)
    study = place if (place / FILE).exists() else place.parent
    probe_writable(study)
    kept = None
    if register:
        from froude.register import opened

        kept = opened(register, study)
        probe_writable(kept)
    file = Path(metrics).expanduser().resolve()
    follower = Follower(study, found, file, names)
    display = Display(quiet=as_json)
    display.stage("follow")
    waited, hint = False, ""
    try:
        while True:
            now = follower.poll(save=once)
            for line in now.new:
                display.line(f"[follow] alarm: {line}")
            if (unnamed := follower.tail.metrics.unnamed) and unnamed != hint:
                hint = unnamed
                display.line(f"[follow] {hint}")
            if now.step:
                display.update(now.step / now.steps, now.words())
            elif not waited:
                waited = True
                display.line(f"[follow] {file} tells nothing yet")
            if once or follower.finished or now.diverged:
                break
            time.sleep(POLL_SECONDS)
    finally:
        if not follower.finished:  # Ctrl-C, and a line that breaks a rule: what was read is kept
            follower.save()
    content = {"run": found.run.name, "finished": follower.finished, **asdict(now)}
    failure = ""
    if now.diverged:
        failure = f"run {found.run.name} diverged: {now.diverged}; if its trainer goes back, the same command goes on"
    if follower.finished and now.final is not None:
        scored = score(found.forecast, now.final)
        content["actual"] = scored.to_dict()
        forecast = found.forecast
        display.done(f"{found.run.name}: step {now.step}, external trainer: no ledger claim")
        display.line(
            f"loss {now.final:.3f} nats per token; forecast {forecast.loss:.3f}, {100 * forecast.level:.0f}% in "
            f"[{forecast.low:.3f}, {forecast.high:.3f}]: {'inside' if scored.inside else 'outside'}"
        )
        if kept is not None:
            from froude.register import keep

            content["score_kept"] = keep(kept, Study(study), trust=trust)
            display.line(f"score kept in {kept}")
    elif not failure and once:
        display.line(f"[follow] {now.words()}; not finished" if now.step else "[follow] not begun")
    if as_json:
        emit(content)
    return say(failure, FAILED) if failure else None
