"""froude sweep."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from froude.cli.common import (
    FAILED,
    Address,
    Debug,
    Json,
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

if TYPE_CHECKING:
    from froude.space import Space
    from froude.store import Location


@verb
def sweep(
    space: Annotated[str, typer.Argument(metavar="SPACE", help="Python file that defines space().")],
    out: Annotated[str, typer.Option(metavar="STUDY", help="Path or s3:// URL of the study to write.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of every run and every choice.")] = 0,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Delete the study's results and start over; not where a target's run has begun."
        ),
    ] = False,
    rerun_changed: Annotated[
        bool,
        typer.Option(
            "--rerun-changed",
            help="Train again what was made with other settings, code or data; old rows are kept below retired/.",
        ),
    ] = False,
    concurrency: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Trials at once; 0: all that the cluster has room for."),
    ] = 0,
    write_jobs: Annotated[
        str,
        typer.Option(
            "--write-jobs",
            metavar="DIR",
            help="Start nothing: write the trials that can be known now as scripts, for a shell or sbatch; then "
            "`froude ingest DIR`. For trials with a `trainer.command`.",
            show_default=False,
        ),
    ] = "",
    address: Address = "",
    simulate: Simulate = 0,
    trust: Trust = False,
    shared: Shared = False,
    skip_probe: SkipProbe = None,
    track: Track = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Run every trial of a search space that the study does not have yet.

    Example: froude sweep search_spaces/quickstart.py --out runs/study --simulate 2
    """
    from contextlib import nullcontext

    from froude.launch.status import find_bad_trials, told
    from froude.launch.sweep import check_fresh, check_inputs, open_study
    from froude.launch.sweep import sweep as run_sweep
    from froude.promote.ladder.unfinished import earlier_line, is_earlier, none_finished
    from froude.space import load_space
    from froude.store import Location
    from froude.study import Study
    from froude.sweep.plan import sweep_memory
    from froude.sweep.preflight import check_memory, cpus
    from froude.sweep.progress import shown
    from froude.tracking import check as check_trackers
    from froude.tracking.process import tracked

    check_trackers(track or ())
    study = Location.parse(out)
    found = load_space(space, seed=seed)
    skip = skipped(skip_probe)
    if fresh:
        check_fresh(Study(study))
    if write_jobs:
        return _write_jobs(found, study, write_jobs, trust, fresh, rerun_changed, skip, as_json)
    if fresh:  # what it deletes is deleted when a cluster is there to make it again
        check_inputs(found, study, trust=trust, skip_probe=skip)
    opened = None
    if not fresh:
        opened = open_study(
            found,
            study,
            trust=trust,
            fresh=False,
            rerun_changed=rerun_changed,
            skip_probe=skip,
            begin=False,
        )
    for note in opened.notes if opened else ():
        print(f"froude: {note}", file=sys.stderr, flush=True)
    if opened is not None and opened.done:
        with tracked(track or (), study):
            pass  # what was not sent while it was swept
    else:
        each = cpus(run for trials in found.planned().values() for trial in trials for run in trial.runs)
        if nodes := simulated_nodes(address, simulate, each):
            check_memory(sweep_memory(found, nodes), what=f"a sweep of {found.name} on {nodes} workers")
        with (
            tracked(track or (), study),
            cluster(address, simulate, study, shared=shared, cpus=each) as running,
        ):
            with nullcontext() if as_json else shown() as progress:
                run_sweep(
                    found,
                    study,
                    running,
                    progress=progress,
                    trust=trust,
                    fresh=fresh,
                    rerun_changed=rerun_changed,
                    concurrency=concurrency or None,
                    skip_probe=skip,
                )
    read = Study(study)
    trials, stages = read.trials().collect(), read.meta["stages"]
    counts = dict(trials.group_by("status").len().iter_rows())
    bad = find_bad_trials(read)
    if as_json:
        emit({"study": study.url, "trials": counts, "bad_trials": [vars(each) for each in bad]})
    else:
        print(f"{study}: " + ", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
        for line in told(bad, f"froude status {study}"):
            print(f"  {line}")
        if earlier := earlier_line(trials, stages):
            print(f"  {earlier}")
    if nothing := none_finished(counts, str(study)):
        return say(nothing, FAILED)
    failed = trials.filter(~is_earlier(stages), status="failed")
    return FAILED if failed.height else None


def _write_jobs(
    space: Space,
    study: Location,
    folder: str,
    trust: bool,
    fresh: bool,
    rerun_changed: bool,
    skip: tuple[str, ...],
    as_json: bool,
) -> int | None:
    from pathlib import Path

    from froude.cli.ingest import next_step
    from froude.external import jobs
    from froude.launch.sweep import open_study
    from froude.study import Study

    place = Path(folder).resolve()
    jobs.check(space, study, place, fresh=fresh)
    if not fresh and (place / jobs.ABOUT).exists() and Study(study).exists:
        jobs.ingest(place, study, trust=trust)
    opened = open_study(space, study, trust=trust, fresh=fresh, rerun_changed=rerun_changed, skip_probe=skip)
    if fresh:
        jobs.clear(place)
    state = jobs.write_jobs(opened, space, study, place, trust=trust)
    if as_json:
        emit({**state.to_dict(), "jobs": str(place), "complete": opened.done})
    else:
        print("\n".join(state.lines()))
        print("the sweep is complete" if opened.done else next_step(state.waiting, place))
    return FAILED if state.failed else None
