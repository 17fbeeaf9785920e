"""What a sweep and its target run would take: runs, tokens, FLOPs, minutes on this machine, memory."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from froude.config import ConfigError, Model, Run
from froude.hardware.memory import memory as tensors
from froude.hardware.sizes import EVAL_CHUNK, PROCESS_BYTES, Place, Sizes
from froude.promote.choice.batch import unknown
from froude.promote.choice.knob import number
from froude.promote.choice.worth import parts, with_batch
from froude.promote.gate import PRODUCTION, Profile
from froude.space import Space, Trial
from froude.sweep.preflight import GIB, cpus, free_memory
from froude.sweep.sizes import sizes_of
from froude.train.speed.timing import Speed, cores, measure, model_size, step_flops

if TYPE_CHECKING:
    from froude.promote.gate_preview import Foretold
    from froude.train.probe.contract import Probed

#: Ray's own processes; resident bytes, measured.
CLUSTER_BYTES = 1200 * 2**20
NOTABLE = 0.005  # of the time of a smaller batch: what is saved less is not worth a word
VALUE_BYTES = 4  # of a number: fp32
#: Of what tensors hold at most, which a process holds besides, freed or not yet used: 14% to 27% in six runs, measured.
UNUSED = 1 / 3
_counted: dict[str, Sizes] = {}
UNLIMITED = "no `trainer.time_limit` is set: a command that hangs is waited for without end; set seconds of an attempt"


@dataclass(frozen=True)
class StagePlan:
    """One stage, or the target run: CPU `seconds` of its workers, `adaptive` says what only the sweep will tell."""

    name: str
    role: str
    trials: int
    runs: int
    tokens: int
    flops: float
    seconds: float
    adaptive: str


@dataclass(frozen=True)
class Plan:
    """A space's stages and its target; `workers` of `threads` at a time; bytes of memory; what is foretold.

    `refusals`: what a worker like this machine would not start. `unlimited`: a command has no time limit. `instead`:
    whether another model was timed, in words.
    """

    space: str
    seed: int
    stages: tuple[StagePlan, ...]
    target: StagePlan
    workers: int
    threads: int
    worker_bytes: int
    needed_bytes: int
    free_bytes: int
    probe: Probed
    foretold: Foretold
    batch: str
    commands: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    unlimited: bool = False
    instead: str = ""

    @property
    def cost(self) -> float:
        """FLOPs of all proxies over the target's; NaN where a command has not told a run's."""
        return sum(stage.flops for stage in self.stages) / self.target.flops

    @property
    def seconds(self) -> float:
        """Wall seconds of the sweep, if nothing waits."""
        return sum(stage.seconds for stage in self.stages) / (self.workers * self.threads)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        content = asdict(self)
        foretold = content.pop("foretold")
        return {**content, "seconds": self.seconds, "cost": self.cost, **foretold}

    def lines(self) -> list[str]:
        """The same for people."""
        head = f"{'stage':<16}{'trials':>7}{'runs':>6}{'tokens':>13}{'FLOPs':>10}{'CPU min':>14}  "
        head += "known only during the sweep"
        total = StagePlan(
            name="sweep",
            role="",
            trials=sum(stage.trials for stage in self.stages),
            runs=sum(stage.runs for stage in self.stages),
            tokens=sum(stage.tokens for stage in self.stages),
            flops=sum(stage.flops for stage in self.stages),
            seconds=sum(stage.seconds for stage in self.stages),
            adaptive="",
        )
        rows = [*self.stages, total, self.target]
        body = [
            f"{row.name:<16}{row.trials:>7}{row.runs:>6}{row.tokens / 1e6:>12.2f}M{_flops(row.flops):>10}"
            f"{f'{row.seconds / 60:.1f}' if row.seconds else '–':>14}  {row.adaptive}".rstrip()
            for row in rows
        ]
        return [
            self._head(),
            head,
            *body,
            *(f"command: {command}" for command in self.commands),
            *([UNLIMITED] if self.unlimited else []),
            "memory"
            + ", besides what a command takes" * bool(self.commands)
            + f": {self.worker_bytes / GIB:.1f} GiB a worker, {self.needed_bytes / GIB:.1f} GiB in all; "
            f"{self.free_bytes / GIB:.1f} GiB are free"
            + ("" if self.needed_bytes <= self.free_bytes else ": too few here, so sweep on a cluster"),
            self._reach(),
            self.batch,
            *self.refusals,
            *self.probe.lines(),
            *self.foretold.lines(),
        ]

    def _head(self) -> str:
        about = f"{self.space}, seed {self.seed}: a sweep"
        if self.commands and not self.seconds:
            return f"{about} by a command, whose time nothing here can tell"
        of = ", besides what a command takes, which nothing here can tell" if self.commands else ""
        return (
            f"{about} of about {_long(self.seconds)} with {self.workers} workers of "
            f"{'one thread' if self.threads == 1 else f'{self.threads} threads'} here; CPU minutes are timed on this "
            f"machine{self.instead}{of}"
        )

    def _reach(self) -> str:
        """How far the forecast is to reach, and for which price."""
        far = ", ".join(f"{axis} {_times(self.foretold.reach[axis])}" for axis in self.foretold.reach)
        over = f"target over the largest proxy: {far}; " if far else ""
        if math.isnan(self.cost):
            return f"{over}what all proxies cost is known when their command has told their parameters"
        return f"{over}all proxies together cost {_times(self.cost)} the target's FLOPs"


def _flops(flops: float) -> str:
    return "–" if math.isnan(flops) else f"{flops:.1e}"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}×" if ratio >= 10 else f"{ratio:.2g}×"


def _long(seconds: float) -> str:
    """A duration in a unit that people think in."""
    for size, unit in ((365 * 86_400, "years"), (86_400, "days")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds / 60:.1f} minutes"


def plan(
    space: Space,
    *,
    trust: bool = False,
    workers: int | None = None,
    skip_probe: Collection[str] = (),
    profile: Profile = PRODUCTION,
) -> Plan:
    """Work out the plan, timing a few steps of the real models; `workers` defaults to as many as this machine holds.

    `skip_probe` names checks of the probe to pass over; `profile` has the bounds by which promotion is foretold.
    ConfigError if a run needs trust that is not given, or a corpus or a model is not sound.
    """
    from froude.promote.gate_preview import foretell
    from froude.train.probe.contract import check_code_and_corpus
    from froude.train.size import size_of

    space.check_new()
    planned = space.planned()
    runs = [run for trials in planned.values() for trial in trials for run in trial.runs[-1:]]
    probed = check_code_and_corpus([*runs, space.target], trust, skip_probe)
    if space.target.trainer.command:
        size_of(space.target)
    own = [run for run in (*runs, space.target) if not run.trainer.command]
    threads = cpus(own)
    workers = workers or max(1, cores() // threads)
    speed = measure(own) if own else Speed([(1.0, 0.0)])
    words = dict.fromkeys(" ".join(r.trainer.command) for r in (*runs, space.target) if r.trainer.command)
    stages = []
    for stage in space.stages:
        adaptive = stage.undecided(space.before(stage))
        if any(trial.stop_loss is not None for trial in planned[stage.name]):
            adaptive += "; ends at the target loss"
        stages.append(_stage(stage.name, stage.role, planned[stage.name], speed, adaptive))
    target = _stage(
        "target", "target", [Trial(space.target.name, (space.target,))], speed, "settings, by promote"
    )
    needed = memory(space, workers)
    spent = sum(stage.flops for stage in stages)
    return Plan(
        space.name,
        space.seed,
        tuple(stages),
        target,
        workers,
        threads,
        max(map(worker_bytes, runs)),
        needed,
        free_memory(),
        probed,
        foretell(space, profile, proxies=spent, target=target.flops),
        _batch(space, speed),
        tuple(words),
        tuple(
            _refusals([run for trials in planned.values() for t in trials for run in t.runs] + [space.target])
        ),
        any(run.trainer.command and not run.trainer.time_limit for run in runs),
        speed.instead,
    )


def _refusals(runs: Sequence[Run]) -> Iterator[str]:
    """What a worker without a GPU would refuse at its start, where none is here; a cluster's are not known yet."""
    import torch

    from froude.train.precision.products import check

    said: dict[str, set[str]] = {}
    for run in runs if not torch.cuda.is_available() else ():
        if run.device == "auto" and not run.trainer.command:
            try:
                check(run, torch.device("cpu"))
            except ConfigError as error:
                said.setdefault(str(error), set()).add(run.name)
    for refusal, names in said.items():
        who = f"{len(names)} runs" if len(names) > 1 else names.pop()
        yield f"no GPU is here, and a cluster's are known only there: without one {who} would be refused: {refusal}"


def _batch(space: Space, speed: Speed) -> str:
    """What is known of the target's batch before anything has run: what it saves by the times of steps here."""
    target = space.target
    measured = any(stage.role == "critical_batch" for stage in space.stages)
    told, least = unknown("planned" if measured else ""), target.slots * target.model.context
    if not target.trainer.command and least < target.phases.mean:
        small, own = (_seconds(run, speed) / 60 for run in (with_batch(target, least), target))
        saves = small - own
        if saves >= NOTABLE * small:
            told = f"saves {number(saves)} of {number(small)} CPU minutes here against a batch of {least:,}; {told}"
    return f"the target's batch is set, {target.phases}: {told}"


def _seconds(run: Run, speed: Speed) -> float:
    """CPU seconds of a run's steps, each phase of a ramp at its own batch."""
    each = step_flops(run) / run.batch
    return sum(part.tokens / part.batch * speed.seconds(each * part.batch) for part in parts(run))


def _stage(name: str, role: str, trials: Sequence[Trial], speed: Speed, adaptive: str) -> StagePlan:
    flops = seconds = 0.0
    for trial in trials:
        run = trial.runs[-1]
        each, batches = _step_flops(run), trial.tokens // run.batch
        flops += each * batches
        if run.trainer.command:
            continue
        evaluated = (
            len(trial.runs) * run.eval_windows * run.model.context / run.batch / 3
        )  # a forward pass is a third
        steps = _seconds(run, speed) if len(trial.runs) == 1 else speed.seconds(each) * batches
        seconds += steps + speed.seconds(each) * evaluated
    runs, tokens = sum(len(trial.runs) for trial in trials), sum(trial.tokens for trial in trials)
    return StagePlan(name, role, len(trials), runs, tokens, flops, seconds, adaptive)


def _step_flops(run: Run) -> float:
    """Those of a step; NaN where a command is to tell them."""
    from froude.train.size import is_sized

    return step_flops(run) if is_sized(run) else math.nan


def worker_bytes(run: Run, *, gpu: bool = False) -> int:
    """Resident bytes of a worker that trains the run, estimated: process, parameters and state, activations.

    With a `gpu` all but the process and copies for checkpoints is there, and not in the host. Of a run that a command
    trains only the process that starts it: what the command takes is not known.
    """
    if run.trainer.command:
        return PROCESS_BYTES
    if gpu:
        return PROCESS_BYTES + round(tensors(run, _sizes(run), Place(1, run.min_workers), gpu=True).host)
    own = run.model.factory == Model.model_fields["factory"].default
    if own or run.compute.loss_chunk or run.compute.checkpointing != "none":
        counted = tensors(run, _sizes(run), Place(1, run.min_workers), gpu=False)
        return round(counted.needed + counted.host + UNUSED * counted.peak)
    shape, (_, parameters, state) = run.model, model_size(run)
    tokens = max(run.micro_batch or run.phases.largest, EVAL_CHUNK * shape.context)
    # Of a token, in fp32: what each block keeps for its backward pass, attention's weights, three copies of the logits.
    block = (14 + 4 * shape.mlp_ratio) * shape.width + 2 * shape.context * shape.width / shape.head_dim
    held = VALUE_BYTES * parameters + state  # and a copy of it for branches, and the gradient
    activations = VALUE_BYTES * tokens * (shape.depth * block + 3 * shape.vocab)
    return round(PROCESS_BYTES + 2 * held + VALUE_BYTES * parameters + activations)


def _sizes(run: Run) -> Sizes:
    """Those of the run's model, which is built once for all of a sweep's runs that have it."""
    settings = run.optimizer
    optimizer = [settings.name, settings.options, sorted(settings.multipliers), settings.implementation]
    content = run.to_dict()
    key = json.dumps(
        [content["model"], optimizer, run.parametrization, run.precision, run.reduction, run.compute.compile],
        sort_keys=True,
    )
    if key not in _counted:
        _counted[key] = sizes_of(run)
    return _counted[key]


def memory(space: Space, workers: int) -> int:
    """Bytes that the sweep and, after it, the target run need on this machine, Ray's processes included."""
    target = CLUSTER_BYTES + space.target.min_workers * worker_bytes(space.target)
    return max(sweep_memory(space, workers), target)


def sweep_memory(space: Space, workers: int) -> int:
    """Bytes that the sweep alone needs here, Ray's processes included: a target may be for a larger machine."""
    trials = [trial for found in space.planned().values() for trial in found]
    sizes = {run.fingerprint: worker_bytes(run) for run in (trial.runs[-1] for trial in trials)}
    return CLUSTER_BYTES + workers * max(sizes.values())
