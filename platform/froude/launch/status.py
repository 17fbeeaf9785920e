"""How far a study is: trials by stage, the recipe, the progress of the target run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from froude.config import Run
from froude.promote.ladder.unfinished import earlier_line
from froude.runlog import LogReader, lineage
from froude.section import printable
from froude.store import Location
from froude.study import Study

if TYPE_CHECKING:
    from froude.laws import BatchRamp

FEW, MANY = 5, 20  # trials of either bad end that a sweep's last lines and a status tell of
REASON_CHARACTERS = 400  # a rule, what broke it and the remedy, with the path of a file in it
HALF_LIFE = 50  # measured steps of the moving averages behind the noise scale: enough to place it, and recent


@dataclass(frozen=True)
class StageStatus:
    """Trials of one stage by how they ended, and how many the plan had; a search may be extended beyond it."""

    planned: int
    finished: int
    diverged: int
    failed: int


@dataclass(frozen=True)
class BadTrial:
    """A trial that failed or had a run that diverged: the first such run, and how many of the trial's runs did so."""

    status: str
    trial: str
    stage: str
    run: str
    runs: int
    attempts: int
    reason: str

    def line(self) -> str:
        """The same for people."""
        which = self.trial if self.run == self.trial else f"{self.trial} ({self.run})"
        tries = f" in {self.attempts} attempts" if self.status == "failed" and self.attempts > 1 else ""
        reason = " ".join(self.reason.split()) or "the version that trained it kept no reason"
        cut = reason if len(reason) <= REASON_CHARACTERS else reason[: REASON_CHARACTERS - 1] + "…"
        return printable(f"{self.status:<9} {which}{tries}: {cut}")


def find_bad_trials(study: Study) -> list[BadTrial]:
    """Those of a study, failed ones first, in the order of its rows."""
    odd = study.trials().filter(pl.col("status").is_in(["failed", "diverged"]))
    found = (
        odd.with_columns(reason=pl.coalesce("reason", "error", pl.lit("")))
        .group_by("trial", "status", maintain_order=True)
        .agg(pl.col("stage", "run", "reason").first(), pl.col("attempts").max().fill_null(1), runs=pl.len())
        .sort("status", descending=True, maintain_order=True)
        .collect()
    )
    return [BadTrial(**row) for row in found.to_dicts()]


def told(found: Sequence[BadTrial], more: str, most: int = FEW) -> list[str]:
    """A line for each of the first `most` of either status, and how many more there are, which `more` shows."""
    lines = []
    for status in ("failed", "diverged"):
        own = [each for each in found if each.status == status]
        lines += [each.line() for each in own[:most]]
        if len(own) > most:
            lines.append(f"{'':<9} and {len(own) - most} more {status}: {more}")
    return lines


@dataclass(frozen=True)
class Status:
    """A study's state; `step` of the target run is that of its newest committed checkpoint, `steps` those it has.

    `begun` is whether that run has an attempt, and `run` empty where the study has no target. `noise` is what its
    gradient noise scale says of the batch, None until it tells. `bad_trials` are the trials that failed or diverged;
    `earlier` is a line on those that the space no longer lays out.
    """

    study: str
    stages: Mapping[str, StageStatus]
    recipe: bool
    run: str
    step: int
    steps: int
    begun: bool
    finished: bool
    noise: BatchRamp | None = None
    bad_trials: Sequence[BadTrial] = ()
    earlier: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        from dataclasses import asdict

        content = asdict(self)
        del content["begun"], content["earlier"]  # of the lines alone: the keys stay those that there were
        return content

    def lines(self) -> list[str]:
        """The same for people."""
        head = f"{self.study}\n{'stage':<16}{'planned':>8}{'finished':>9}{'diverged':>9}{'failed':>7}"
        rows = [
            f"{n:<16}{s.planned:>8}{s.finished:>9}{s.diverged:>9}{s.failed:>7}"
            for n, s in self.stages.items()
        ]
        large = (
            "finished"
            if self.finished
            else f"{self.step} of {self.steps} steps"
            if self.begun
            else "not begun"
        )
        return [
            head,
            *rows,
            *told(self.bad_trials, f"froude status {self.study} --json", MANY),
            *([self.earlier] if self.earlier else []),
            f"recipe          {'sealed' if self.recipe else 'none yet'}",
            *([f"{self.run:<16}{large}"] if self.run else []),
            *([f"{'noise scale':<16}{self.noise.line()}"] if self.noise else []),
        ]


def status(url: str | os.PathLike[str] | Location) -> Status:
    """The state of the study at `url`; ConfigError if there is none."""
    study = Study(url)
    if not study.exists:
        raise study.missing()
    meta = study.meta
    ended: dict[str, list[str]] = {name: [] for name in meta["stages"]}
    trials = study.trials().select("trial", "stage", "status").collect()
    rows = trials.group_by("trial").agg(pl.col("stage").first(), pl.col("status").unique())
    for stage, statuses in rows.select("stage", "status").iter_rows():
        worst = next(
            (word for word in ("failed", "diverged", "pruned", "running") if word in statuses), "finished"
        )
        ended.setdefault(stage, []).append(worst)
    stages = {}
    for name, words in ended.items():
        planned = int(meta["stages"].get(name, {}).get("trials", 0))
        stages[name] = StageStatus(
            planned, *(words.count(word) for word in ("finished", "diverged", "failed"))
        )
    target = Run.from_dict(meta["target"]) if "target" in meta else None  # a history may have none
    large = target.name if target is not None else ""
    records = LogReader(study.location / "runs" / large).records() if large else []
    kept = lineage(records)
    return Status(
        study=study.location.url,
        stages=stages,
        recipe=(study.location / "recipe.toml").exists(),
        run=large,
        step=kept[-1].step if kept else 0,
        steps=target.steps if target is not None else 0,
        begun=bool(records),
        finished=any(record.kind == "finished" for record in kept),
        noise=_noise(study, target) if target is not None and records else None,
        bad_trials=find_bad_trials(study),
        earlier=earlier_line(trials, meta["stages"]),
    )


def _noise(study: Study, run: Run) -> BatchRamp | None:
    """Advice from the run's newest steps: a noise scale grows as training goes."""
    from froude.laws import noise_scale  # scipy, which most studies' status does not need

    measured = (
        study.steps(trials=False).filter(pl.col("run") == run.name).drop_nulls("small_sq_norm").collect()
    )
    if measured.height < 2:
        return None
    span = int(measured["step"].max()) - int(measured["step"].min())  # type: ignore[arg-type]
    law = noise_scale(measured, half_life=max(1.0, HALF_LIFE * span / (measured.height - 1)))
    batch = int(measured.sort("step")["batch_big"][-1])  # that of the run, or where its ramp stands
    return law.ramp(batch) if law.status == "ok" else None
