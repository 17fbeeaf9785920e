"""Run a search space's stages on Ray Tune, from where the study is; every trial once."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from froude.checkpoint.retention import is_itself
from froude.config import ConfigError
from froude.launch.cluster import ConnectedCluster, SimulatedCluster, environment
from froude.promote.imported_runs import history
from froude.runlog import LogReader
from froude.space import Space, Trial
from froude.store import Location, probe_writable
from froude.study import FILES, FOLDERS, Study
from froude.sweep import trial_store
from froude.sweep.agenda import Agenda
from froude.sweep.changed_material import Materials, compare, refusal
from froude.sweep.plan import worker_bytes
from froude.sweep.preflight import check_memory
from froude.sweep.progress import SweepProgress

if TYPE_CHECKING:
    from froude.launch.tuning import Room

SCHEMA = 1

# Tune keeps its own notes of a sweep, which nothing here reads: the study is the truth.
_TUNE = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends the driver: what is finished is in the study
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000",
    "TUNE_WARN_THRESHOLD_S": "60",
    "RAY_AIR_NEW_OUTPUT": "0",
}


def sweep(
    space: Space,
    study: Location,
    cluster: SimulatedCluster | ConnectedCluster,
    *,
    progress: Callable[[SweepProgress], None] | None = None,
    trust: bool = False,
    fresh: bool = False,
    rerun_changed: bool = False,
    concurrency: int | None = None,
    skip_probe: Collection[str] = (),
) -> None:
    """Run every trial of the space that the study does not have yet; a later call goes by its rows alone.

    `progress` is called a few times a second. `fresh` deletes the study's results first; `rerun_changed` trains again
    what was made of other settings, code or data, and keeps the old rows below `retired/`. `concurrency` bounds the
    trials at once (None: as many as the cluster's CPUs and GPUs are enough for). A trial that raises in each of its
    attempts, or a ConfigError in its first, becomes a `failed` row and is tried again by the next sweep. `skip_probe`
    names checks of the probe to pass over. Raises ConfigError for what the user can correct.
    """
    if fresh:  # before anything is deleted
        _check_cluster([trial for trials in space.planned().values() for trial in trials], cluster)
    agenda = open_study(
        space, study, trust=trust, fresh=fresh, rerun_changed=rerun_changed, skip_probe=skip_probe
    )
    if agenda.done:
        if progress:
            progress(SweepProgress.of(agenda))
        return
    from froude.launch import ray_internals
    from froude.launch.tuning import Room
    from froude.launch.tuning import run as run_agenda

    planned = [trial for _, trial in agenda.left()]
    _check_cluster(planned, cluster)
    room = Room.now()
    if room.one_machine:
        at_once, largest = _workers_at_once(planned, room, concurrency)
        check_memory(at_once * largest, what=f"a sweep with {at_once} workers")
    ray_internals.prepare_driver()
    with _quiet_tune() as scratch:
        run_agenda(agenda, study, concurrency, scratch, progress)
    if not agenda.done:
        raise RuntimeError(
            f"the sweep ended with {len(agenda.left())} trials left; the same command goes on from there"
        )


def _workers_at_once(planned: Sequence[Trial], room: Room, concurrency: int | None) -> tuple[int, int]:
    """How many workers of these trials this machine runs at once, and the host's bytes of the largest."""
    from froude.launch.tuning import needs

    rooms = [(trial, room.at_once(trial, crowded=concurrency is not None)) for trial in planned]
    at_once = max(trial.workers * min(n, concurrency or n) for trial, n in rooms)
    on_gpus = [(trial.runs[-1], "GPU" in needs(trial, room.resources)) for trial in planned]
    different = {(run.fingerprint, gpu): (run, gpu) for run, gpu in on_gpus}
    return at_once, max(worker_bytes(run, gpu=gpu) for run, gpu in different.values())


def open_study(
    space: Space,
    study: Location,
    *,
    trust: bool,
    fresh: bool,
    rerun_changed: bool = False,
    skip_probe: Collection[str] = (),
    begin: bool = True,
) -> Agenda:
    """Check that the space, the store and the contents of the study fit together, before anything starts.

    ConfigError if stored trials were made with another corpus or code; with `rerun_changed` they are retired instead.
    Without `begin` nothing is written while there are trials to run: a missing cluster may still refuse them.
    """
    opened = check_inputs(space, study, trust=trust, skip_probe=skip_probe)
    if fresh:
        clear(study)
    meta = opened.meta
    if meta.get("schema", SCHEMA) != SCHEMA or meta.get("seed", space.seed) != space.seed:
        raise ConfigError(
            f"a study must have one schema and seed, but {study} has schema {meta.get('schema')} and seed "
            f"{meta.get('seed')}, not {SCHEMA} and {space.seed}; use another directory, or --fresh"
        )
    stored, materials = trial_store.read_all(study), Materials()
    runs = [run for trials in space.planned().values() for trial in trials for run in trial.runs[-1:]]
    found = compare(stored.values(), runs, materials)
    if found.changed and not rerun_changed:
        raise ConfigError(refusal(found.changed))
    changed = [stored.pop(name) for name in found.changed]
    before = meta.get("stages", {})
    if not before:
        space.check_new()
    without = {name: stage.get("without", ()) for name, stage in before.items()}
    agenda = Agenda(space, stored, rerun_changed=rerun_changed, without=without)
    agenda.notes = (*found.notes, *agenda.kept())
    if begin:
        trial_store.retire(study, [each.trial for each in changed], agenda.retired)
    # Another space adds to a study, as `froude plan --next` means it to; the same one replaces what it said before.
    layouts = agenda.layouts()
    own = {
        name: {**stage, "space": space.name, **layouts[name]} for name, stage in space.stage_table().items()
    }
    kept = {name: stage for name, stage in before.items() if name in own or stage.get("space") != space.name}
    described = {
        "froude": "study",
        "schema": SCHEMA,
        "space": space.name,
        "seed": space.seed,
        "stages": {**kept, **own},
        "target": space.target.to_dict(),
        "material": materials.of(space.target).to_dict(),
    }
    if (begin or agenda.done) and meta != json.loads(json.dumps(described)):
        (study / "study.json").replace(json.dumps(described, indent=1).encode() + b"\n")
    return agenda


def check_inputs(space: Space, study: Location, *, trust: bool, skip_probe: Collection[str] = ()) -> Study:
    """The study, which may not have been begun; ConfigError if code, corpora or the study's place are unfit."""
    from froude.train.probe.contract import check_code_and_corpus
    from froude.train.size import size_of

    opened = Study(study)  # refuses a folder with foreign files in it
    if history.holds_table(opened.meta):
        raise ConfigError(
            f"a sweep needs a study of its own, but {study} was made of a table by `froude fit --from`; sweep into "
            "another --out"
        )
    check_code_and_corpus(
        [space.target, *(r for ts in space.planned().values() for t in ts for r in t.runs)], trust, skip_probe
    )
    if space.target.trainer.command:
        size_of(space.target)
    probe_writable(study)
    return opened


def check_fresh(study: Study) -> None:
    """ConfigError where starting over would delete a run's log, which the forecast of a target is scored by.

    Of any run: the target may have been renamed since its recipe was trained.
    """
    for name in (study.location / "runs").children():
        if LogReader(study.location / "runs" / name).head() is not None:
            raise ConfigError(
                f"--fresh deletes a sweep's results, but the run {name!r} has begun in {study.location}; sweep into "
                "another --out, or delete the study yourself"
            )


def clear(study: Location) -> None:
    """Delete a study's results, and nothing else; logs stay.

    Trials go first: what is left by an interruption then has none that would count as finished.
    """
    for name in sorted(study.children(), key=lambda name: name != "trials"):
        if name in FOLDERS and name != "logs":
            for file in (study / name).walk():
                if is_itself(study, file.url.removeprefix(f"{study.url}/")):
                    file.delete()
            if study.is_local:
                _remove((study / name).path)
        elif FILES.fullmatch(name):
            (study / name).delete()


def _remove(folder: Path) -> None:
    """Delete a folder, never what links in it, or the folder itself, lead to."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _check_cluster(planned: Sequence[Trial], cluster: SimulatedCluster | ConnectedCluster) -> None:
    """ConfigError if the cluster lacks what one of these trials needs; of one that may grow less is known."""
    import ray
    import torch

    from froude.launch.commanded.nodes import check_room
    from froude.launch.threads import check_nodes
    from froude.launch.tuning import needs
    from froude.train.precision import products

    free, runs = ray.cluster_resources(), [run for trial in planned for run in trial.runs]
    needed = max(trial.runs[0].min_workers for trial in planned)
    if isinstance(cluster, SimulatedCluster) and needed > free.get("CPU", 0):
        raise ConfigError(
            f"a trial of {needed} workers needs as many CPUs, but the cluster has {free.get('CPU', 0):.0f}; "
            "simulate more nodes"
        )
    for trial in planned:
        needs(trial, free)  # ConfigError where it asks for a device that is not there
    check_room(planned, wait=isinstance(cluster, ConnectedCluster))
    check_nodes(runs)
    if isinstance(cluster, SimulatedCluster) and not free.get("GPU"):
        for run in (run for run in runs if not run.trainer.command):
            products.check(run, torch.device("cpu"))


@contextmanager
def _quiet_tune() -> Iterator[str]:
    """Settings of Tune for a sweep, and a folder for its notes that is gone afterwards."""
    logger = logging.getLogger("ray.tune")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    scratch = tempfile.mkdtemp(prefix="froude-tune-")
    try:
        with environment(_TUNE):
            yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        logger.setLevel(level)
