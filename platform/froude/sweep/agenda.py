"""Which trial is next: the stages of a space, what the study has, what each result leads to. No Ray here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import polars as pl

from froude import records
from froude.config import ConfigError
from froude.space import Grid, Search, Space, Trial, unique
from froude.space.tpe import Result, propose
from froude.sweep.trial_store import Stored


def frame(tables: Sequence[Stored]) -> pl.DataFrame:
    """Rows of several stored trials, in the order given."""
    import pyarrow as pa

    found = pl.from_arrow(
        pa.concat_tables([records.TRIALS.empty_table(), *(stored.rows for stored in tables)])
    )
    assert isinstance(found, pl.DataFrame)
    return found


def cost(trial: Trial) -> float:
    """Roughly the seconds that a trial takes on one CPU core; only ratios count.

    From steps of 192 … 3072 tokens at widths 32 … 128 on an AVX-512 core: up to such widths most of a step goes with
    the width, not with its square. An evaluation is forward passes only, a third of the work.
    """
    run = trial.runs[0]
    width = run.model.width
    token = run.model.depth / 2 * (6e-7 * width + 1e-9 * width**2)
    evaluation = run.eval_windows * run.model.context * token / 3
    return trial.steps * (0.003 + run.batch * token) + len(trial.runs) * evaluation


@dataclass
class _Stage:
    spec: Search | Grid
    trials: list[Trial] = field(default_factory=list)
    waiting: list[Trial] = field(default_factory=list)
    laid_out: bool = False
    extended: bool = False
    done: bool = False


class Agenda:
    """Hands out a space's trials, each once; a finished one that is stored already counts as done.

    The trials of a stage depend on the rows of the stages before it in the order of the space, never on which trial
    came in first, so every sweep of one space and seed is the same.
    """

    def __init__(self, space: Space, stored: Mapping[str, Stored], *, rerun_changed: bool = False) -> None:
        self.space, self._rerun_changed = space, rerun_changed
        self.notes: tuple[str, ...] = ()  # on the study, for its user
        self.changed: dict[str, Stored] = {}  # to be retired before they are trained again
        self.retired = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")  # the folder for them
        self.stages = [_Stage(spec) for spec in space.stages]
        self.results: dict[str, Stored] = {}
        self.resumed = 0
        self._stored = {name: found for name, found in stored.items() if not found.failed}
        self._planned = space.planned()
        self._running: set[str] = set()
        self._advance()

    @property
    def done(self) -> bool:
        return all(stage.done for stage in self.stages)

    def next(self) -> Trial | None:
        """A trial to run now; None if all that are known run or are done, or wait for those that run."""
        self._advance()
        for stage in self.stages:
            trial = self._take(stage)
            if trial is not None:
                self._running.add(trial.name)
                return trial
        return None

    def finish(self, stored: Stored) -> None:
        """Take note of a trial that has run, `failed` ones included."""
        self._running.discard(stored.trial.name)
        self.results[stored.trial.name] = stored
        self._advance()

    def left(self) -> list[tuple[str, Trial]]:
        """Stage and trial of all that is not done, as far as it is known."""
        found = []
        for stage in self.stages:
            known = stage.trials if stage.laid_out else []
            if isinstance(stage.spec, Search) or not stage.laid_out:
                known = [*known, *self._planned[stage.spec.name][len(known) :]]
            found += [(stage.spec.name, trial) for trial in known if trial.name not in self.results]
        return found

    def counts(self) -> dict[str, tuple[int, int]]:
        """Trials done and known, by stage."""
        left = [name for name, _ in self.left()]
        done = {s.spec.name: sum(t.name in self.results for t in s.trials) for s in self.stages}
        return {name: (n, n + left.count(name)) for name, n in done.items()}

    def with_status(self, status: str) -> int:
        """Trials done with a run of this status."""
        return sum(status in stored.rows["status"].to_pylist() for stored in self.results.values())

    def rows(self, names: Sequence[str]) -> pl.DataFrame:
        """Rows of these stages' trials that are done."""
        chosen = [stage for stage in self.stages if stage.spec.name in names]
        return frame(
            [self.results[t.name] for stage in chosen for t in stage.trials if t.name in self.results]
        )

    def _take(self, stage: _Stage) -> Trial | None:
        if isinstance(stage.spec, Search):
            return self._ask(stage, stage.spec) if stage.laid_out else None
        return stage.waiting.pop(0) if stage.waiting else None

    def _ask(self, stage: _Stage, search: Search) -> Trial | None:
        number = len(stage.trials)
        if number == search.trials:
            return None
        seen = stage.trials[: max(0, number - search.parallel + 1)] if number > search.startup else []
        if any(trial.name not in self.results for trial in seen):
            return None
        trial = search.trial(
            number, propose(search, number, [self._result(t) for t in seen], self.space.seed)
        )
        stage.trials.append(trial)
        return trial

    def _result(self, trial: Trial) -> Result:
        row = self.results[trial.name].rows.to_pylist()[0]
        diverged = math.inf if row["status"] == "diverged" else math.nan
        return trial.params, diverged if row["loss"] is None else float(row["loss"])

    def _advance(self) -> None:
        """Lay out, extend and close stages until nothing changes."""
        changed = True
        while changed:
            changed = False
            for stage in self.stages:
                changed = self._step(stage) or changed

    def _step(self, stage: _Stage) -> bool:
        if stage.done:
            return False
        spec = stage.spec
        closed = {other.spec.name for other in self.stages if other.done}
        if not stage.laid_out:
            if not closed.issuperset(self.space.before(spec)):
                return False
            stage.laid_out = True
            self._add(
                stage, [] if isinstance(spec, Search) else spec.lay_out(self.rows(self.space.before(spec)))
            )
            return True
        if isinstance(spec, Search) and self._resume(stage, spec):
            return True
        if self._open(stage):
            return False
        if isinstance(spec, Grid) and not stage.extended:
            stage.extended = True
            self._add(stage, spec.more(self.rows([*self.space.before(spec), spec.name])))
            return True
        stage.done = True
        return True

    def _open(self, stage: _Stage) -> bool:
        if isinstance(stage.spec, Search) and len(stage.trials) < stage.spec.trials:
            return True
        return any(trial.name not in self.results for trial in stage.trials)

    def _resume(self, stage: _Stage, search: Search) -> bool:
        """Take the search's next trial from the study, where it is; its axis values are those stored."""
        number = len(stage.trials)
        found = self._stored.get(f"{search.name}-{number:02d}") if number < search.trials else None
        if found is None:
            return False
        missing = set(search.axes) ^ set(found.trial.params)
        difference = f"axes {', '.join(sorted(missing))}" if missing else ""
        trial = None if missing else search.trial(number, found.trial.params)
        if trial is None or (difference := _difference(trial, found)):
            self._give_up(found, difference)
            return False
        self._add(stage, [trial])
        return True

    def _give_up(self, found: Stored, difference: str) -> None:
        """Count a stored trial that is another one as not there; ConfigError unless changed ones are to run again."""
        name = found.trial.name
        if not self._rerun_changed:
            raise ConfigError(
                f"a trial's name stands for one configuration, but the study has {name!r} with other {difference}; "
                "use another directory, --rerun-changed to train it again (the old rows are kept, apart), or --fresh"
            )
        self.changed[name] = self._stored.pop(name)

    def _add(self, stage: _Stage, trials: Sequence[Trial]) -> None:
        stage.trials += trials
        unique([trial for other in self.stages for trial in other.trials])
        for trial in trials:
            found = self._stored.get(trial.name)
            if found is not None and (difference := _difference(trial, found)):
                self._give_up(found, difference)
                found = None
            if found is None:
                stage.waiting.append(trial)
                continue
            self.results[trial.name] = found
            self.resumed += 1
        # Longest first: the last to finish then keeps the others waiting least.
        stage.waiting.sort(key=cost, reverse=True)


def _difference(trial: Trial, stored: Stored) -> str:
    """What of a trial the study has otherwise, or not whole, under its name; "" if it has that trial."""
    have = dict(zip(stored.rows["run"].to_pylist(), stored.rows["fingerprint"].to_pylist(), strict=True))
    want = {run.name: run for run in trial.runs}
    for name, fingerprint in have.items():
        if name not in want:
            return f"settings (run {name} instead of {', '.join(want)})"
        if want[name].fingerprint != fingerprint:
            before = next((run for run in stored.trial.runs if run.name == name), None)
            keys = before.differences(want[name]) if before else []
            return f"settings ({', '.join(keys[:4]) or 'its fingerprint differs'})"
    if len(have) < len(want):
        losses = [loss for loss in stored.rows["loss"].to_pylist() if loss is not None]
        if trial.stop_loss is None or not losses or min(losses) > trial.stop_loss:
            return f"branches ({len(have)} of {len(want)})"
    return ""
