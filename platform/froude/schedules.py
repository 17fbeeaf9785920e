"""Learning-rate multipliers as functions of tokens seen; formulae with sources in each function.

Every schedule is evaluated at the middle of a batch, so that neither the first nor the last step has rate zero and a
change of batch, of world size or an interruption leaves the curve as it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from froude.config import Run, Schedule


def _tail(schedule: Schedule, x: float) -> float:
    """Share of the peak left at x in [0, 1] of the decay; 1 - sqrt from Hägele et al. 2405.18392."""
    match schedule.tail:
        case "sqrt":
            return 1.0 - math.sqrt(x)
        case "linear":
            return 1.0 - x
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * x))
        case "exponential":
            return float(schedule.floor**x)


def _shape(run: Run, tokens: float) -> float:
    schedule, total = run.schedule, run.tokens
    warmup = schedule.warmup_tokens
    x = min(1.0, max(0.0, (tokens - warmup) / max(1.0, total - warmup)))
    match schedule.name:
        case "constant":
            return 1.0
        case "linear":
            return 1.0 - x
        case "cosine":
            return schedule.floor + (1.0 - schedule.floor) * 0.5 * (1.0 + math.cos(math.pi * x))
        case "wsd":
            start = decay_start(run)
            return 1.0 if tokens <= start else _tail(schedule, min(1.0, (tokens - start) / (total - start)))
        case "inverse_sqrt":
            return min(1.0, math.sqrt(max(warmup, run.batch) / tokens))
        case "noam":  # Vaswani et al. 1706.03762, relative to the base width's peak
            width = run.model.width / run.model.base_width
            return min(1.0, math.sqrt(max(warmup, run.batch) / tokens)) / math.sqrt(width)
        case "multi_step":  # DeepSeek LLM 2401.02954: 1, then .316 from 80% of the tokens, .1 from 90%
            done = tokens / total
            return 1.0 if done < 0.8 else 0.316 if done < 0.9 else 0.1
        case "restarts":  # Loshchilov & Hutter 1608.03983, cycles of equal length
            cycle = min(x, 1.0 - 1e-12) * schedule.cycles % 1.0
            return schedule.floor + (1.0 - schedule.floor) * 0.5 * (1.0 + math.cos(math.pi * cycle))


def decay_start(run: Run) -> float:
    """Tokens seen when the tail of a WSD run begins; never before the end of the warmup."""
    return max(run.tokens * (1.0 - run.schedule.decay_fraction), float(run.schedule.warmup_tokens))


def multiplier(run: Run, tokens: float) -> float:
    """Share of the peak learning rate after `tokens` tokens; linear warmup times the schedule's shape."""
    warmup = run.schedule.warmup_tokens
    ramp = min(1.0, tokens / warmup) if warmup else 1.0
    return ramp * _shape(run, tokens)


def at_step(run: Run, step: int) -> float:
    """Multiplier of the update that takes the run from `step` to `step + 1`."""
    return multiplier(run, (step + 0.5) * run.batch)


def branch_step(run: Run) -> int:
    """First step of a WSD run whose multiplier depends on the run's horizon."""
    return min(run.steps, math.ceil(decay_start(run) / run.batch - 0.5))


def branch_steps(runs: Sequence[Run]) -> list[int]:
    """The step at which each branch of a trial leaves the trunk, sorted by tokens; 0 for a run alone."""
    return [branch_step(run) for run in runs] if len(runs) > 1 else [0] * len(runs)


def trial_steps(runs: Sequence[Run]) -> int:
    """Optimizer steps of a trial: the trunk's once, and those of each branch's tail."""
    starts = branch_steps(runs)
    return starts[-1] + sum(run.steps - start for run, start in zip(runs, starts, strict=True))
