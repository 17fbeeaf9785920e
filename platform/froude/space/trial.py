"""A trial: what one worker computes in one go."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from froude import schedules
from froude.config import NAME, ConfigError, Run, Scalar
from froude.section import listing


def check_name(what: str, name: str) -> None:
    """ConfigError unless the name can be a file's."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{what} must have a name of letters, digits and . _ -, but got {name!r}; rename it"
        )


@dataclass(frozen=True)
class Trial:
    """What one worker computes in one go: a run, or several that are branches off one trunk.

    Its runs are proxies, so their `stability` is off, whatever it was (`Run.as_proxy`).
    Branches differ only in name and tokens, and are sorted by tokens. Those after the first that reaches `stop_loss`
    (nats per token) are not trained. `params` is where a search placed the trial.
    """

    name: str
    runs: tuple[Run, ...]
    stop_loss: float | None = None
    params: Mapping[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("a trial", self.name)
        if not self.runs:
            raise ConfigError(f"a trial must have a run, but {self.name!r} has none; add one")
        goal = self.stop_loss
        if goal is not None and not (type(goal) in (int, float) and math.isfinite(goal)):
            raise ConfigError(
                f"`stop_loss` must be a finite number of nats per token, but {self.name!r} has {goal!r}; correct it"
            )
        object.__setattr__(self, "runs", tuple(run.as_proxy() for run in self.runs))
        if len(self.runs) == 1:
            return
        if len({run.name for run in self.runs}) < len(self.runs):
            raise ConfigError(
                f"branches of a trial must have different names, but those of {self.name!r} do not; rename them"
            )
        horizons = [run.tokens for run in self.runs]
        alike = {run.replace(tokens=horizons[-1]).fingerprint for run in self.runs}
        if len(alike) > 1 or self.runs[0].max_workers > 1:
            raise ConfigError(
                "branches of a trial must be one-worker runs that differ in name and tokens only, but those of "
                f"{self.name!r} differ in more; make them trials of their own"
            )
        if len({json.dumps(run.optimizer.numbers) for run in self.runs}) > 1:
            raise ConfigError(
                "branches of a trial share their trunk's decay, so a timescale, which is a share of each run, must be "
                f"left out of {self.name!r}; set weight_decay"
            )
        have = [name for name, spec in schedules.SCHEDULES.items() if spec.trunk]
        if self.runs[0].schedule.name not in have:
            raise ConfigError(
                f"branches of a trial need a schedule with a trunk ({listing(have)}), but those of {self.name!r} have "
                f"{self.runs[0].schedule.name}; make them trials of their own"
            )
        if not schedules.has_trunk(self.runs[0]):
            raise ConfigError(
                f"branches of a trial need a constant weight decay, but {self.name!r} has `schedule.weight_decay_to` = "
                f"{self.runs[0].schedule.weight_decay_to}, which falls over each run's own length; make them trials of "
                "their own"
            )
        if horizons != sorted(set(horizons)):
            raise ConfigError(
                f"branches of a trial must be sorted by tokens, but {self.name!r} has {horizons}; sort them"
            )

    @property
    def workers(self) -> int:
        return self.runs[0].max_workers

    @property
    def steps(self) -> int:
        """Optimizer steps when no branch is left out; a command trains each branch from its own beginning."""
        if self.runs[0].trainer.command:
            return sum(run.steps for run in self.runs)
        return schedules.trial_steps(self.runs)

    @property
    def tokens(self) -> int:
        """Tokens trained on when no branch is left out."""
        if self.runs[0].trainer.command:
            return sum(run.tokens for run in self.runs)
        return schedules.trial_tokens(self.runs)

    def to_json(self) -> str:
        content = {"name": self.name, "stop_loss": self.stop_loss, "params": dict(self.params)}
        return json.dumps(content | {"runs": [run.to_dict() for run in self.runs]})

    @classmethod
    def from_json(cls, text: str) -> Trial:
        content = json.loads(text)
        return cls(**content | {"runs": tuple(Run.from_dict(run) for run in content["runs"])})


def unique(trials: Sequence[Trial]) -> None:
    """ConfigError if two trials, or two runs, have one name."""
    for what, names in (
        ("trials", [t.name for t in trials]),
        ("runs", [r.name for t in trials for r in t.runs]),
    ):
        if twice := sorted(name for name, times in Counter(names).items() if times > 1):
            raise ConfigError(
                f"{what} must have different names, but {twice[0]!r} comes more than once; rename them"
            )
