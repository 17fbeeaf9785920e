"""A plan's set of proxies as a search space: a Python file that a sweep takes into the same study."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from froude.config import ConfigError, Run
from froude.promote.fits import Fits
from froude.promote.imported_runs import history
from froude.promote.planner.candidates import warmup
from froude.promote.planner.next_runs import NextRuns

SOURCE = '''"""What `froude plan --next` chose to run next.

{reasons}

    froude sweep {file} --out {study}

adds these runs to the study, whose other stages stay; then plan, fit and promote again.
"""

from froude.config import Run
from froude.space import Grid, Space, Trial

SEED = {study_seed}  # the study's: a sweep into it refuses any other

PROXY = Run.from_toml(
    """
{proxy}"""
)

TARGET = Run.from_toml(
    """
{target}"""
)

#: Width, tokens, peak learning rate, warmup in tokens, seed.
RUNS = (
{runs}
)


def trial(width: int, tokens: int, lr: float, warmup: int, seed: int) -> Trial:
    """One proxy: the study's, of another size, horizon or seed."""
    name = f"{stage}-w{{width}}-n{{tokens // PROXY.batch}}-s{{seed}}"
    changes = {{"model.width": width, "tokens": tokens, "optimizer.lr": lr, "seed": seed}}
    changes["schedule.warmup_tokens"] = warmup
    return Trial(name, (PROXY.replace(changes, name=name),))


def space() -> Space:
    """The runs as one more stage of the study."""
    trials = [trial(*run) for run in RUNS]
    return Space("{stage}", SEED, (Grid("{stage}", lambda rows: trials, role="loss_law"),), TARGET)
'''


def space_source(
    plan: NextRuns,
    *,
    template: Run | None,
    fits: Fits,
    meta: Mapping[str, Any],
    study: str,
    file: str,
) -> str:
    """Python source of a space with the plan's set: the template's settings, the study's target.

    Under SP each width has the rate that the study's transfer law gives it, else all have the template's. `meta` is
    the study's. ConfigError where that was made of a table, and without a template: then nobody knows what else the
    runs consist of.
    """
    if history.holds_table(meta):
        raise ConfigError(
            f"--write is for a study that `froude sweep` made, but {study} was made of a table, into which nothing can "
            "be swept; leave --write out, and add the runs to the table"
        )
    if template is None:
        raise ConfigError(
            "a search space needs the size of every width, but `trainer.params` tells that of one; leave --write out, "
            "and add the runs to the study's own space"
        )
    stages = [name for name in meta["stages"] if name.startswith("next")]
    chosen, rows = plan.chosen.select("width", "tokens", "seed"), fits.rows["loss_law"]
    runs = [
        f"    ({width}, {round(n)}, {_rate(fits, template, width)!r}, {warmup(rows, template, n)}, {seed}),"
        for width, n, seed in chosen.iter_rows()
    ]
    return SOURCE.format(
        reasons="\n".join(plan.reasons()).replace("\\", "/").replace('"', "'"),
        file=file,
        study=study,
        study_seed=int(meta.get("seed", 0)),
        proxy=_toml(template.replace(workers=1, name="proxy", stage="")),
        target=_toml(Run.from_dict(meta["target"])),
        runs="\n".join(runs),
        stage=f"next{len(stages) + 1}",
    )


def _rate(fits: Fits, template: Run, width: int) -> float:
    law = None if template.width_rules.transfers else fits.transfer.get(template.parametrization)
    if law is not None:
        try:
            return float(f"{law.optimum(width).value:.4g}")
        except ValueError:  # no line was fitted
            pass
    return template.optimizer.lr


def _toml(run: Run) -> str:
    return run.to_toml().replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
