"""Is a run what its recipe says? Its log, tokens, seal and checkpoint, checked again from what is stored."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import polars as pl

from froude.config import ConfigError, Run
from froude.material import Material
from froude.promote import recipe as recipes
from froude.promote.ladder.regret import Corrected
from froude.promote.recipe import Recipe
from froude.promote.token_audit import account as token_account
from froude.promote.token_audit import is_slot, misplaced, parts
from froude.promote.witness import ABOUT, MOST_SKEW, compared
from froude.runlog import LogReader, Record, disorder, expired, lineage, record_name
from froude.schemas import TABLES
from froude.store import Location, reported
from froude.study import Study
from froude.user_code import load

if TYPE_CHECKING:
    import torch

#: Told what is being done, and the share of it that is done.
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Verdict:
    """One check: what must hold, whether it does (None: it can't be told from here), and what was seen."""

    name: str
    passed: bool | None
    seen: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def verify_run(
    study: Study,
    recipe: Recipe,
    *,
    rerun: bool = False,
    other_build: bool = False,
    progress: Progress = lambda what, share: None,
) -> Iterator[Verdict]:
    """Each check of the recipe's run, as it is made; `rerun` also trains it undisturbed here and compares the bits.

    ConfigError if the run has not begun, is of another recipe, or can't be trained again here.
    """
    from froude.checkpoint.tools import verify

    if rerun and recipe.trainer:
        raise ConfigError(
            f"--rerun needs a run that froude has trained, but {recipe.run.name} has an external trainer; verify it "
            "without --rerun"
        )
    run = study.location / "runs" / recipe.run.name
    log = LogReader(run)
    if log.head_under(recipe.sha256) is None:
        raise ConfigError(f"a run must have begun to be verified, but {run} has no log; train it first")
    for path in () if recipe.trainer else recipe.run.foreign:
        load(path)  # what can't be imported is the user's to correct, before anything is said of the run
    # All that follows is said of these records: a run that goes on commits more meanwhile.
    records = log.records()
    head, line = records[-1], lineage(records)
    device = _rerun_device(recipe, line or records, other_build=other_build) if rerun else None
    odd = disorder(records)
    yield Verdict("the log is one chain", not odd, odd or f"{len(records)} records, {head.attempt} attempts")
    yield _sealed(study.location, log, recipe, records)
    first = (run / "commits" / record_name(0)).modified()
    if (witness := compared(study.location, recipe, first)) is not None:
        yield Verdict("the witness has the seal", *witness)
    rows = recipe.fits.get("loss_law", {}).get("corrected")
    if rows is not None:  # recipes before 0.2 took nothing off
        yield Verdict("the forecast says what its proxies' rates cost", True, str(Corrected(**rows)))
    over = head.kind == "finished" and head.step == recipe.run.steps
    yield Verdict("the run is finished", over, f"step {head.step} of {recipe.run.steps}")
    if not recipe.trainer:
        yield from _material(recipe.run, head)
    damages = {record.seq: damage for record, damage in verify(run, records)}
    # What a restart left behind may be damaged: the run did not come through it.
    damaged = [damages[record.seq] for record in line if damages[record.seq]]
    yield Verdict(
        "what the run's commits keep is whole", not damaged, damaged[0] if damaged else f"{len(line)} commits"
    )
    if recipe.trainer:
        yield Verdict(
            "every planned token was trained once", None, "external trainer: no ledger, so no claim"
        )
        return
    yield from _ledger(study, recipe, line, progress)
    bits = ""
    if line:
        whole, bits = _checkpoint(recipe.run, log, records, line[-1], damages[line[-1].seq])
        yield whole
    if device is not None:
        yield from _again(study, recipe, line, bits, device, progress)


def _material(run: Run, head: Record) -> Iterator[Verdict]:
    """Whether corpus and code here are what the run recorded; a run of 0.1 recorded nothing of foreign code."""
    from froude.train import api

    recorded, what = head.meta.get("material"), "corpus and code are those that the run recorded"
    if recorded is not None:
        changes = Material.from_dict(recorded).changes(api.material_of(run))
        seen = f"{len(recorded.get('modules', {}))} modules" if run.foreign else "the package's own code"
        yield Verdict(what, not changes, "; ".join(changes) or seen)
    elif run.foreign:
        yield Verdict(what, True, "not recorded by the version that trained it: taken as unchanged")


def _given_up(log: LogReader, records: list[Record]) -> set[int]:
    """Of the checkpoints that were kept after `records`, those that a run which goes on has deleted since."""
    return expired(log.records()) - expired(records)


def _checkpoint(
    run: Run, log: LogReader, records: list[Record], last: Record, damage: str
) -> tuple[Verdict, str]:
    """Whether the newest checkpoint is whole, and one of the run's model and optimizer; and its digest, if it is."""
    from froude.checkpoint.parts import Corrupt
    from froude.checkpoint.tensors import Tensors, digest
    from froude.train.trainer import state_without_memory

    def finite(name: str, tensor: torch.Tensor) -> None:
        if name not in frozen and not tensor.isfinite().all():
            raise Corrupt(f"`{name}` must be numbers, but some of it is NaN or infinite")

    bits = ""
    try:
        if not damage:
            state = state_without_memory(run)
            # A model may keep an infinity, as a mask, in a weight that is not trained.
            frozen = {name for name, p in state.items() if name.startswith("model.") and not p.requires_grad}
            with Tensors(log.location, last) as tensors:
                damage = tensors.unlike(state)
        bits = "" if damage else digest(log.location, last, finite)
    except (Corrupt, ConfigError) as error:
        damage = "" if last.seq in _given_up(log, records) else str(error)
    seen = damage or (f"digest {bits}" if bits else "deleted since, when newer ones were kept")
    return Verdict(f"the checkpoint of step {last.step} is whole", not damage, seen), bits


def _sealed(place: Location, log: LogReader, recipe: Recipe, records: list[Record]) -> Verdict:
    """Every record names the recipe's hash, so none was written before it; reading the recipe has verified the hash.

    The times that a recipe and a record say are those of two hosts, whose clocks may differ. Where they contradict each
    other the store's times of the first record and the first results decide: a log that was written anew for a later
    seal is younger than the results that it commits.
    """
    try:
        beside = json.loads((place / "forecast.json").read())
    except (OSError, ValueError):
        beside = None
    says = str(beside.get("sha256", ""))[:12] if isinstance(beside, dict) else "nothing that can be read"
    if says == recipe.sha256[:12] and beside != json.loads(recipe.forecast_json()):
        says += " with other numbers"
    faults = [f"forecast.json says {says}"] if says != recipe.sha256[:12] else []
    others = [
        record.seq for record in records if record.recipe != recipe.sha256 or record.run != recipe.run.name
    ]
    if others:
        faults.append(f"record {others[0]} is of another recipe or run")
    possible, clocks = _clocks(recipe, log.location, records)
    all_of = f"{len(records) - len(others)} of" if others else "all"
    return Verdict(
        "the forecast was sealed before step 0",
        possible if not faults else False,
        "; ".join([f"seal {recipe.sha256[:12]} named by {all_of} {len(records)} records", *faults, clocks]),
    )


def _clocks(recipe: Recipe, run: Location, records: list[Record]) -> tuple[bool | None, str]:
    """Whether the times can be of a seal before step 0, None if only the records' own say so; and the times."""
    first, sealed = records[0].time, datetime.fromisoformat(recipe.sealed_at)
    if sealed.tzinfo is None:
        sealed = sealed.replace(tzinfo=UTC)
    ahead = sealed - first
    seen = f"sealed at {sealed:%Y-%m-%d %H:%M:%S}, first record at {first:%Y-%m-%d %H:%M:%S} UTC"
    written = (run / "commits" / record_name(0)).modified()
    results = [part for record in records for part in record.parts if part.kind in TABLES][:1]
    stored = (run / results[0].path).modified() if results else None
    late = timedelta(0) if written is None or stored is None else written - stored
    copied = written is not None and stored is not None and min(written, stored) > records[-1].time
    if late > ABOUT:
        seen += f"; the store's time of the first record is {_seconds(late)} after that of the first results, as in a "
        seen += "copy" if copied else "log that was restored or rewritten"
    if ahead <= timedelta(0):
        return (True if late <= ABOUT or copied else None), seen
    seen += (
        f"; the promoter's clock was {_seconds(ahead)} ahead of the first worker's, or the seal is that late"
    )
    return late <= ABOUT or (copied and ahead <= MOST_SKEW), seen


def _seconds(time: timedelta) -> str:
    return f"{time.total_seconds():,.0f} s"


def _ledger(study: Study, recipe: Recipe, line: list[Record], progress: Progress) -> Iterator[Verdict]:
    from froude.train import api
    from froude.train.data.order import Batches
    from froude.train.stability.spikes import policy_batches

    run = recipe.run
    if not line:
        yield Verdict("every planned token was trained once", False, "nothing is committed yet")
        return
    last = line[-1]
    try:
        ledger = study.committed(run.name, "ledger", line).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        yield Verdict("every planned token was trained once", False, f"the ledger can't be read: {error}")
        return
    rows, ledger = ledger.height, ledger.filter(is_slot(run))
    account = token_account(ledger.lazy(), run, last.step)
    strange = f", {rows - ledger.height} rows are not slots of this run" if rows > ledger.height else ""
    yield Verdict(
        "every planned token was trained once",
        account.whole and not strange,
        f"{account.expected} expected up to step {last.step}, {account.skipped} skipped, {account.repeated} repeated, "
        f"{account.skipped_by_policy} skipped by policy{strange}",
    )
    source = api.build_source(run, "train")
    batches = Batches(source, run.seed, run.windows_per_slot, run.slots)
    left_out = ledger.filter(pl.col("disposition") != "trained")
    passed = parts(left_out, run)["first_sample"].to_list()
    slots = {sample // run.windows_per_slot for sample in passed}
    decided = policy_batches(run, last.scalars.get("stability", {}))
    yield Verdict(
        "only what the run's policy decided was left out",
        slots == {batch * run.slots + slot for batch in decided for slot in range(run.slots)}
        and (run.stability == "ladder" or not decided),
        f"{len(decided)} batches decided, {len(slots)} slots left out",
    )
    wrong, mixed = misplaced(ledger, batches, lambda share: progress("digests of the ledger", share))
    due = {"every digest is that of the corpus's tokens": wrong}
    if run.data.parts:
        due["every slot names its parts of the mixture"] = mixed
    for what, steps in due.items():
        differ = f", {len(steps)} differ, first at step {steps[0]}" if steps else ""
        yield Verdict(what, not steps and ledger.height > 0, f"{ledger.height} slots{differ}")


def _rerun_device(recipe: Recipe, records: Sequence[Record], *, other_build: bool) -> torch.device:
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


def _again(
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


def locate(place: str) -> tuple[Study, Recipe]:
    """The study and recipe that a recipe.toml, a study or a run's directory stands for."""
    location = Location.parse(place)
    if location.name.endswith(".toml"):
        return Study(location.parent), recipes.read(location)
    with reported(location, "a run must be readable to be verified"):
        of_run = "commits" in location.children()
    study = location.parent.parent if of_run else location
    recipe = recipes.read(study / recipes.FILE)
    if of_run and location.name != recipe.run.name:
        raise ConfigError(
            f"only the run of a recipe can be verified, {recipe.run.name}, but {place} is another's; name {study}"
        )
    return Study(study), recipe
