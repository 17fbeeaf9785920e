"""Which trial is next: the stages of a space, what the study has, what each result leads to. No Ray here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import polars as pl

from froude import schemas
from froude.config import ConfigError
from froude.space import Space, Stage, Trial
from froude.sweep.trial_store import Stored, as_failed


def frame(tables: Sequence[Stored]) -> pl.DataFrame:
    """Rows of several stored trials, in the order given."""
    import pyarrow as pa

    found = pl.from_arrow(
        pa.concat_tables([schemas.TRIALS.empty_table(), *(stored.rows for stored in tables)])
    )
    assert isinstance(found, pl.DataFrame)
    return found


def cost(trial: Trial) -> float:
    """Roughly the seconds that a trial takes on one CPU core; only ratios count.

    From steps of 192 … 3072 tokens at widths 32 … 128 on an AVX-512 core: up to such widths the time of a step grows
    with the width, not with its square. An evaluation is forward passes only, a third of the work.
    """
    run = trial.runs[0]
    width = run.model.width
    token = run.model.depth / 2 * (6e-7 * width + 1e-9 * width**2)
    evaluation = run.eval_windows * run.model.context * token / 3
    return trial.steps * (0.003 + trial.tokens / trial.steps * token) + len(trial.runs) * evaluation


@dataclass
class _Stage:
    """A stage on its way: the trials that it gave, those of them that wait for a worker; `froude.space.Past` for it.

    `without` names failed trials, of stages before it or its own, that it was laid out without: whatever becomes of
    them later, it still sees them as failed, since other trials under the same names would be others.
    """

    spec: Stage
    agenda: Agenda
    without: set[str]
    trials: list[Trial] = field(default_factory=list)
    waiting: list[Trial] = field(default_factory=list)
    rounds: int = 0
    done: bool = False
    _outcomes: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        return self.agenda.space.seed

    def before(self) -> pl.DataFrame:
        return self.agenda.rows(self.agenda.space.before(self.spec), self.without)

    def own(self) -> pl.DataFrame:
        return self.agenda.rows([*self.agenda.space.before(self.spec), self.spec.name], self.without)

    def outcome(self, trial: Trial) -> Mapping[str, Any] | None:
        if trial.name not in self._outcomes and (found := self.agenda.seen(trial, self.without)) is not None:
            self._outcomes[trial.name] = found.rows.slice(0, 1).to_pylist()[0]
        return self._outcomes.get(trial.name)

    def stored(self, name: str) -> Trial | None:
        found = self.agenda.stored.get(name)
        return found.trial if found is not None else None

    def laid_out(self) -> None:
        """Take note that the stage has given trials, by what has come in until now."""
        self.rounds += 1
        seen = self.agenda.trials([*self.agenda.space.before(self.spec), self.spec.name])
        ended = [self.agenda.results[trial.name] for trial in seen if trial.name in self.agenda.results]
        self.without.update(stored.trial.name for stored in ended if stored.failed)


class Agenda:
    """Hands out a space's trials, each once; a finished one that is stored already counts as done.

    The trials of a stage depend on the rows of the stages before it in the order of the space, never on which trial
    came in first, so every sweep of one space and seed is the same.

    `without` names, by stage, failed trials that earlier sweeps laid it out without (`layouts`). They count as failed
    there as long as the study has a trial of the stage, and are tried again for the laws.
    """

    def __init__(
        self,
        space: Space,
        stored: Mapping[str, Stored],
        *,
        rerun_changed: bool = False,
        without: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self.space, self._rerun_changed = space, rerun_changed
        self.notes: tuple[str, ...] = ()  # on the study, for its user
        self.changed: dict[str, Stored] = {}  # to be retired before they are trained again
        self.retired = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")  # the folder for them
        self.results: dict[str, Stored] = {}
        self.resumed = 0
        self.stored = {name: found for name, found in stored.items() if not found.failed}
        begun = {found.trial.runs[0].stage for found in self.stored.values()}
        earlier = {name: set(names) for name, names in (without or {}).items() if name in begun}
        self.stages = [_Stage(spec, self, earlier.get(spec.name, set())) for spec in space.stages]
        self._planned = space.planned()
        self._advance()

    @property
    def done(self) -> bool:
        return all(stage.done for stage in self.stages)

    def next(self) -> Trial | None:
        """A trial to run now; None if all that are known run or are done, or wait for those that run."""
        self._advance()
        for stage in self.stages:
            if stage.waiting:
                return stage.waiting.pop(0)
        return None

    def finish(self, stored: Stored) -> None:
        """Take note of a trial that has run, `failed` ones included."""
        self.results[stored.trial.name] = stored
        self._advance()

    def left(self) -> list[tuple[str, Trial]]:
        """Stage and trial of all that is not done, as far as it is known."""
        known = [(stage.spec.name, trial) for stage in self.stages for trial in self._known(stage)]
        return [(name, trial) for name, trial in known if trial.name not in self.results]

    def counts(self) -> dict[str, tuple[int, int]]:
        """Trials done and known, by stage."""
        left = [name for name, _ in self.left()]
        done = {s.spec.name: sum(t.name in self.results for t in s.trials) for s in self.stages}
        return {name: (n, n + left.count(name)) for name, n in done.items()}

    def with_status(self, status: str) -> int:
        """Trials done with a run of this status."""
        return sum(status in stored.rows["status"].to_pylist() for stored in self.results.values())

    def trials(self, names: Sequence[str]) -> list[Trial]:
        """What these stages have given."""
        return [trial for stage in self.stages if stage.spec.name in names for trial in stage.trials]

    def seen(self, trial: Trial, without: Collection[str] = ()) -> Stored | None:
        """What came of a trial, if it has ended; one of `without` has failed."""
        return as_failed(trial) if trial.name in without else self.results.get(trial.name)

    def rows(self, names: Sequence[str], without: Collection[str] = ()) -> pl.DataFrame:
        """Rows of these stages' trials that have ended; those of `without` have failed."""
        return frame(
            [found for trial in self.trials(names) if (found := self.seen(trial, without)) is not None]
        )

    def layouts(self) -> dict[str, dict[str, list[str]]]:
        """By stage what study.json keeps: `names` of its trials, where all are known, and `without` (`__init__`)."""
        found: dict[str, dict[str, list[str]]] = {}
        for stage in self.stages:
            own = found.setdefault(stage.spec.name, {})
            if stage.done or (stage.rounds and not stage.spec.extends):
                own["names"] = [trial.name for trial in self._known(stage)]
            if stage.without:
                own["without"] = sorted(stage.without)
        return found

    def kept(self) -> list[str]:
        """Which stages are laid out without trials that have finished since, a line each."""
        since = {stage.spec.name: sorted(stage.without & set(self.stored)) for stage in self.stages}
        return [
            f"stage {name!r} stays as it was laid out, without {', '.join(trials)}, which had failed; under another "
            "name, with other names for its trials, it is laid out anew"
            for name, trials in since.items()
            if trials
        ]

    def _known(self, stage: _Stage) -> list[Trial]:
        """The stage's trials, as far as they are known."""
        planned = self._planned[stage.spec.name] if stage.spec.one_by_one or not stage.rounds else []
        return [*stage.trials, *planned[len(stage.trials) :]]

    def _advance(self) -> None:
        """Ask stages for trials, and close them, until nothing changes."""
        while any(self._step(stage) for stage in self.stages):
            pass

    def _step(self, stage: _Stage) -> bool:
        closed = {other.spec.name for other in self.stages if other.done}
        if stage.done or not closed.issuperset(self.space.before(stage.spec)):
            return False
        while (trials := stage.spec.next(stage)) is not None and self._replaced(trials):
            pass
        if trials is not None:
            stage.laid_out()
            self._add(stage, trials)
            return True
        stage.done = all(trial.name in self.results for trial in stage.trials)
        return stage.done

    def _replaced(self, trials: Sequence[Trial]) -> bool:
        """Whether the stored trial of this name is another one than is planned now; it then counts as not there."""
        changed = False
        for trial in trials:
            found = self.stored.get(trial.name)
            if found is not None and (difference := _difference(trial, found)):
                self._give_up(found, difference)
                changed = True
        return changed

    def _give_up(self, found: Stored, difference: str) -> None:
        """Count a stored trial that is another one as not there; ConfigError unless changed ones are to run again."""
        name = found.trial.name
        if not self._rerun_changed:
            raise ConfigError(
                f"a trial's name must stand for one configuration, but the study has {name!r} with other {difference}; "
                "use another directory, --rerun-changed to train it again (the old rows are kept separately), or "
                "--fresh"
            )
        self.changed[name] = self.stored.pop(name)

    def _add(self, stage: _Stage, trials: Sequence[Trial]) -> None:
        stage.trials += trials
        self.space.check({other.spec.name: other.trials for other in self.stages})
        found = {trial.name: self.stored[trial.name] for trial in trials if trial.name in self.stored}
        self.results |= found
        self.resumed += len(found)
        # Longest first: the last to finish then keeps the others waiting least.
        new = [trial for trial in trials if trial.name not in found]
        stage.waiting += sorted(new, key=cost, reverse=True)


def _difference(trial: Trial, stored: Stored) -> str:
    """How the study's trial of this name differs, or what it lacks; "" if it is the same trial."""
    # Laws read a row by the stage that it names, which the fingerprint leaves out; a row without one is of no sweep.
    if moved := set(stored.rows["stage"].to_pylist()) - {None, "", *(run.stage for run in trial.runs)}:
        stage = trial.runs[0].stage
        return f"stage ({', '.join(sorted(moved))} instead of {stage}, whose trials must have names of their own)"
    if axes := set(trial.params) ^ set(stored.trial.params):
        return f"axes {', '.join(sorted(axes))}"
    have = dict(zip(stored.rows["run"].to_pylist(), stored.rows["fingerprint"].to_pylist(), strict=True))
    want = {run.name: run for run in trial.runs}
    for name, fingerprint in have.items():
        if name not in want:
            return f"settings (run {name} instead of {', '.join(want)})"
        before = next((run for run in stored.trial.runs if run.name == name), None)
        if want[name].fingerprint != fingerprint and want[name].proxy_fingerprint_0_1 != fingerprint:
            keys = want[name].differences(before) if before else []
            return f"settings ({', '.join(keys[:4]) or 'its fingerprint differs'})"
        if before and (keys := want[name].trainer.differences(before.trainer)):
            return f"settings ({', '.join(keys)})"
    if len(have) < len(want):
        losses = [loss for loss in stored.rows["loss"].to_pylist() if loss is not None]
        if trial.stop_loss is None or not losses or min(losses) > trial.stop_loss:
            return f"branches ({len(have)} of {len(want)})"
    return ""
