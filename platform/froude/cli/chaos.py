"""froude chaos."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from froude.cli.common import FAILED, INTERRUPTED, Debug, Json, SkipProbe, Trust, emit, say, skipped, verb

if TYPE_CHECKING:
    from froude.store import Location


@verb
def chaos(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="recipe.toml of a study, a path or s3:// URL.")
    ],
    failures: Annotated[int, typer.Option("--failures", metavar="N", help="Failures to inject.", min=1)] = 10,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed of the schedule: which failure strikes when.")
    ] = 0,
    kinds: Annotated[
        str,
        typer.Option(
            "--kinds",
            metavar="A,B,…",
            help="Kinds of failure, separated by commas.",
            show_default="all that are possible here",
        ),
    ] = "",
    simulate: Annotated[
        int, typer.Option("--simulate", metavar="NODES", help="Worker nodes simulated here.", min=1)
    ] = 3,
    out: Annotated[
        str,
        typer.Option(
            "--out",
            metavar="STUDY",
            help="A fresh folder or s3:// URL to train in.",
            show_default="chaos-SEED next to the recipe",
        ),
    ] = "",
    trust: Trust = False,
    skip_probe: SkipProbe = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Train a recipe under a seeded schedule of real failures, and compare it with an undisturbed run.

    The recipe's own study stays as it is. Exit code 1 if a failure was not recovered from, a token was lost or
    repeated, a commit is not whole, or (exact runs) a bit differs.

    Example: froude chaos runs/study/recipe.toml --failures 8 --seed 1 --simulate 3
    """
    from froude.launch.chaos import KINDS
    from froude.launch.chaos.available import chosen
    from froude.launch.chaos.conduct import Now, conduct
    from froude.launch.chaos.schedule import schedule
    from froude.launch.chaos.verdict import rows, summary, table, verdict
    from froude.launch.display import Display
    from froude.promote.recipe import FILE, read
    from froude.store import Location, probe_writable
    from froude.study import Study
    from froude.sweep.plan import CLUSTER_BYTES, worker_bytes
    from froude.sweep.preflight import check_memory
    from froude.train.probe.contract import check_code_and_corpus

    place = Location.parse(recipe)
    found = read(place)
    found.check_trained_here()
    run = found.run
    home = place if (place / FILE).exists() else place.parent
    study = Location.parse(out) if out else home / f"chaos-{seed}"
    check_code_and_corpus([run], trust, skipped(skip_probe))
    asked = [kind.strip() for kind in kinds.split(",") if kind.strip()]
    used, left_out = chosen(asked, study)
    nodes = min(simulate, run.max_workers)
    planned = schedule(
        seed,
        failures,
        used,
        steps=run.steps,
        checkpoint_every=run.checkpoint_every,
        nodes=nodes,
        least=run.min_workers,
    )
    check_fresh(study)
    clusters = max(KINDS[failure.kind].clusters for failure in planned)
    needed = clusters * (CLUSTER_BYTES + nodes * worker_bytes(run))
    check_memory(needed, what=f"chaos with {run.name} on {nodes} simulated nodes")
    probe_writable(study)
    found.write(study / FILE)
    display = Display(quiet=as_json)
    display.line(
        f"{run.name}: {failures} failures of seed {seed} in {run.steps} steps on {nodes} nodes, in {study}"
    )
    for kind, why in left_out.items():
        display.line(f"  without {kind}: it {why}")
    display.stage("chaos")

    def show(now: Now) -> None:
        doing = f", {now.doing}" if now.doing else ""
        display.update(
            now.step / now.steps,
            f"step {now.step} of {now.steps}, {now.world} workers, attempt {now.attempt}, "
            f"failure {min(now.done + 1, failures)} of {failures}{doing}",
        )

    try:
        course = conduct(found, study, planned, nodes=nodes, trust=trust, progress=show)
    except KeyboardInterrupt:
        return say(f"interrupted; start again with another --out, or delete {study}", INTERRUPTED)
    display.done(f"{len(course.recoveries)} failures")
    display.stage("verify")
    checks = []
    for check in verdict(
        Study(study), found, course, failures, progress=lambda what, share: display.update(share, what)
    ):
        checks.append(check)
        display.line(f"{'ok  ' if check.passed else 'FAIL'}  {check.name}: {check.seen}")
    good = all(check.passed for check in checks)
    if as_json:
        emit(summary(found, Study(study), course, checks, seed=seed, nodes=nodes, left_out=left_out))
    else:
        display.line("\n".join(["", *table(rows(course.recoveries)), ""]))
        if run.reduction != "exact":
            display.line(
                "compared only ledger and log, since the bits of a run with fast reduction may differ"
            )
        display.line(
            "the run is what it would have been" if good else "the run is NOT what it would have been"
        )
    return None if good else FAILED


def check_fresh(place: Location) -> None:
    """ConfigError if there is anything at this place."""
    from froude.config import ConfigError
    from froude.store import reported

    with reported(place, "the place for the study must be readable"):
        there = place.children()
    if there:
        raise ConfigError(
            f"chaos must train in an empty place, but {place} holds {there[0]}; name another with --out, or delete it"
        )
