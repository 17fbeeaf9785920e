"""Trains a recipe while the failures of a schedule strike, one after another, and says what each of them cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import psutil

from froude.launch.chaos import KINDS
from froude.launch.chaos.life import Seen
from froude.launch.chaos.scene import NotInjected, Scene
from froude.launch.chaos.schedule import Failure
from froude.launch.cluster import log_dir, sigterm_exits
from froude.promote import recipe as recipes
from froude.promote.recipe import Recipe
from froude.store import Location

RECOVERY_SECONDS = 240.0
LOOK_SECONDS = 0.1


class Lost(RuntimeError):
    """The run did not come back from a failure."""


@dataclass(frozen=True)
class Recovery:
    """What a failure did: at which step, to what (`struck`), and how many seconds the run stood still.

    `seconds` go from the failure, or the last step after it, to the first new step; where no restart was needed they
    are the longest time without a step; None if the run did not recover or nothing was struck: `why` says why.
    """

    kind: str
    step: int
    struck: str
    seconds: float | None
    restarted: bool
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Now:
    """Where the run and its schedule are."""

    step: int
    steps: int
    world: int
    attempt: int
    done: int  # failures recovered from
    doing: str


@dataclass(frozen=True)
class Course:
    """What came of a run: a recovery for each failure that was tried, and the records that were damaged on purpose."""

    recoveries: tuple[Recovery, ...]
    damaged: frozenset[int]
    ended: str  # empty if it finished


def conduct(
    recipe: Recipe,
    study: Location,
    failures: Sequence[Failure],
    *,
    nodes: int,
    trust: bool = False,
    progress: Callable[[Now], None] = lambda now: None,
) -> Course:
    """Train `recipe` into the fresh `study`, on simulated clusters of `nodes` nodes, through these failures."""
    with stage(recipe, study, {failure.kind for failure in failures}, nodes=nodes, trust=trust) as scene:
        scene.begin()
        recoveries: list[Recovery] = []

        def look(doing: str = "") -> None:
            """Raise Lost if the run stands still, or its driver has ended before it."""
            life, beat = scene.life, newest(scene)
            if time.monotonic() - (beat.at if beat else life.began) > RECOVERY_SECONDS:
                raise Lost(f"no step was made for {RECOVERY_SECONDS:.0f} s")
            last = beat or next((seen for old in scene.lives[::-1] for seen in old.beats[-1:]), None)
            if last:
                place = last.beat.step, recipe.run.steps, last.beat.world, last.beat.attempt
                progress(Now(*place, len(recoveries), doing))
            if life.over() and (life.end is None or life.end[0] != "finished"):
                kind, text = life.end or ("nothing", "it ended without saying why")
                raise Lost(f"the driver ended with {kind}: {text}")
            time.sleep(LOOK_SECONDS)

        try:
            for failure in failures:
                while not ready(scene, failure) and not scene.life.over():
                    look()
                if scene.life.over():
                    return Course(tuple(recoveries), frozenset(scene.damaged), "")
                recoveries.append(strike(scene, failure, look))
                if recoveries[-1].seconds is None:
                    raise Lost(recoveries[-1].why)
            while not scene.life.over():
                look()
        except Lost as error:
            return Course(tuple(recoveries), frozenset(scene.damaged), str(error))
        return Course(tuple(recoveries), frozenset(scene.damaged), "")


@contextmanager
def stage(recipe: Recipe, study: Location, kinds: set[str], *, nodes: int, trust: bool) -> Iterator[Scene]:
    """The scene, with what these kinds need around it; all of it ends with the statement."""
    run = recipe.run
    place = study / "runs" / run.name
    logs = log_dir(study)
    logs.mkdir(parents=True, exist_ok=True)
    order = {
        "recipe": (study / recipes.FILE).url,
        "nodes": nodes,
        "node_environment": {},
        "log_dir": str(logs),
        "trust": trust,
    }
    scene = Scene(run, place, order, {}, logs)
    known = dict.fromkeys(kind.needs for kind in KINDS.values() if kind.needs)
    asked = {KINDS[kind].needs for kind in kinds}
    with ExitStack() as stack:
        stack.enter_context(sigterm_exits())
        for need in known:
            if need in asked or (need.always and not need.missing(place)):
                stack.enter_context(need.around(scene))
        stack.callback(scene.close)
        yield scene


def strike(scene: Scene, failure: Failure, look: Callable[[str], None]) -> Recovery:
    """Bring one failure about, wait until the run has recovered and committed, and clean up."""
    scene.calm()
    before = newest(scene)
    step = before.beat.step if before else 0
    act = KINDS[failure.kind].act(scene, failure.target)
    struck = ""
    try:
        struck = next(act)
        ended, committed = time.monotonic(), last_commit(scene)
        assert scene.struck is not None
        while True:
            over = scene.life.over()  # before it is asked what was seen: nothing more will be
            if settled := recovered(scene, failure.kind, before, committed):
                break
            if over:
                raise NotInjected("the run was over before it had recovered; use a longer one")
            if time.monotonic() - ended > RECOVERY_SECONDS:
                raise NotInjected(f"no commit within {RECOVERY_SECONDS:.0f} s")
            look(failure.kind)
        seconds, restarted = settled
        next(act, None)
    except (NotInjected, Lost, OSError, psutil.Error) as error:
        return Recovery(failure.kind, step, struck, None, False, f"{failure.kind} at step {step}: {error}")
    finally:
        act.close()
    return Recovery(failure.kind, step, struck, seconds, restarted)


def recovered(scene: Scene, kind: str, before: Seen | None, committed: int) -> tuple[float, bool] | None:
    """Seconds without a step since the failure, and whether there was a restart; None before it has committed anew."""
    assert scene.struck is not None
    at, old = scene.struck, before.beat.attempt if before else 0
    seen = [seen for life in scene.lives for seen in life.beats]
    new = [s for s in scene.life.beats if s.beat.attempt > old]
    # The first beat of an attempt says only that it has begun, unless the run is over with it.
    stepped = next((s for i, s in enumerate(new) if i or s.beat.step == scene.run.steps), None)
    if (KINDS[kind].restarts and stepped is None) or last_commit(scene) <= committed:
        return None
    if stepped is not None:
        went_on = [s.at for s in seen if s.beat.attempt <= old and at < s.at < stepped.at]
        return stepped.at - max([at, *went_on]), True
    times = [at, *(s.at for s in seen if s.at > at)]
    return max((b - a for a, b in pairwise(times)), default=0.0), False


def ready(scene: Scene, failure: Failure) -> bool:
    """Whether the run has reached the failure's step, with all the workers that the cluster allows."""
    seen = newest(scene)
    if seen is None or seen.beat.step < failure.step:
        return False
    full = min(len(scene.life.nodes), scene.run.max_workers)
    return seen.beat.world == full or KINDS[failure.kind].nodes == 1


def newest(scene: Scene) -> Seen | None:
    """The last sign of life of the living driver's run."""
    beats = scene.life.beats
    return beats[-1] if beats else None


def last_commit(scene: Scene) -> int:
    """The number of the newest checkpoint's record; -1 before the first."""
    saved = scene.saved()
    return saved[-1].seq if saved else -1
