"""A recipe trained once more, undisturbed, and compared bit for bit with the run that is stored."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from froude.config import ConfigError
from froude.promote.recipe import Recipe
from froude.promote.verify.verdict import Progress, Verdict
from froude.runlog import LogReader, Record
from froude.store import Location
from froude.study import Study

if TYPE_CHECKING:
    import torch


def device_for(recipe: Recipe, records: Sequence[Record], *, other_build: bool) -> torch.device:
    """Where the run that came through `records` can be trained again to the bit; ConfigError if it can't be here."""
    import torch

    from froude.train import parallel
    from froude.train.exact import environment

    head = records[-1]
    if recipe.run.reduction != "exact":
        raise ConfigError(
            f'--rerun compares bits, so the run must have `reduction` "exact", but {recipe.run.name} has '
            f'"{recipe.run.reduction}"; verify it without --rerun'
        )
    if head.kind != "finished":
        raise ConfigError(
            f"--rerun needs a finished run, but {recipe.run.name} is at step {head.step}; train it to its end"
        )
    before = head.meta.get("build", {})
    builds = [record.meta["build"] for record in records if record.meta.get("build")]
    others = [how for build in builds if (how := environment.difference(builds[0], build))]
    if not other_build and others:
        raise ConfigError(
            f"--rerun compares bits, so the run must have had one build from its start, but {recipe.run.name} went on "
            f"with --other-build: {others[0]}; verify it without --rerun, or with --other-build to see how far it "
            "differs"
        )
    torch.set_num_threads(int(before.get("threads", torch.get_num_threads())))
    device = parallel.resolve_device("cpu" if before.get("device") == "cpu" else recipe.run.device)
    if not other_build:
        environment.require(
            before, environment.describe(device), f"to rerun {recipe.run.name} bit for bit, this machine's"
        )
    return device


def again(
    study: Study,
    recipe: Recipe,
    line: list[Record],
    expected: str,
    device: torch.device,
    progress: Progress,
) -> Iterator[Verdict]:
    """Train the recipe once more from step 0, in this process alone, outside the store; compare the bits."""
    from froude.checkpoint.run_store import RunStore
    from froude.checkpoint.tensors import digest
    from froude.train.api import Unsupervised
    from froude.train.observers import Made, Observer
    from froude.train.worker import run_worker

    run = recipe.run

    class Watcher(Observer):
        def stepped(self, made: Made) -> None:
            progress("rerun", made.step / run.steps)

    with tempfile.TemporaryDirectory(prefix="froude-rerun-") as folder:
        again = Location.parse(folder) / "runs" / run.name
        store = RunStore(again, run.name)
        alone = Unsupervised(store.open_attempt(recipe.sha256))
        once = run.replace(workers=1, checkpoint_every=run.steps)
        run_worker(once, store, alone, device=str(device), observers=[Watcher()])
        undisturbed = LogReader(again).lineage()
        bits = digest(again, undisturbed[-1])
        yield Verdict("an undisturbed rerun ends with the same bits", bits == expected, f"digest {bits}")
        compared = {
            "steps": ["run", "step", "loss", "grad_norm", "lr"],
            "evals": ["run", "step", "split", "loss"],
        }
        sides = (study, line), (Study(folder), undisturbed)
        same, heights = True, list[int]()
        for kind, names in compared.items():
            ours, theirs = (
                where.committed(run.name, kind, records).select(names).sort(names).collect()
                for where, records in sides
            )
            same, heights = same and ours.equals(theirs), [*heights, ours.height]
        yield Verdict(
            "and has the same losses at every step", same, "{} steps, {} evaluations".format(*heights)
        )
