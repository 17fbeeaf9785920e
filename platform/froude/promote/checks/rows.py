"""Checks of a study's runs: are all there, alike, on clean data and repeated, and did the largest stay calm?"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import polars as pl

from froude.config import Run
from froude.promote.case import Case
from froude.promote.gate import Finding, Rule
from froude.promote.imported_runs.history import ROLE
from froude.promote.ladder.precision_cost import Cost
from froude.promote.ladder.unfinished import is_earlier
from froude.schedules import SCHEDULES
from froude.study import Study
from froude.train.stability.spikes import RECOVERY, RISE, SPIKE, WARN, Detector

if TYPE_CHECKING:
    from froude.promote.planned import Planned

LARGEST = 2  # proxies that are looked at for spikes
SHOWN = 4  # runs of a table that are named


def unfinished(study: Study, trials: pl.DataFrame) -> list[str]:
    """Largest runs of stages that a law is fitted to, where they did not finish, and trials that never came."""
    found, stages = [], study.meta["stages"]
    trials = trials.filter(~is_earlier(stages))
    for name, stage in stages.items():
        rows = trials.filter(pl.col("stage") == name)
        planned = len(stage["names"]) if "names" in stage else int(stage.get("trials", 0))
        missing = planned - rows["trial"].n_unique()
        if missing > 0:
            found.append(f"{missing} trials of stage {name}")
        lost = _lost(stage["role"], rows.filter(_largest()))
        found += [f"{run} ({status})" for run, status in lost.select("run", "status").iter_rows()]
    return found


def _largest() -> pl.Expr:
    """Rows of the most parameters, and failed ones that are as large by their shape, or may be: they have no count."""
    shape = pl.col("depth") * pl.col("width") ** 2
    as_large = (shape >= shape.max()).fill_null(value=True)
    return (pl.col("params") == pl.col("params").max()).fill_null(as_large)


def _lost(role: str, largest: pl.DataFrame) -> pl.DataFrame:
    """Of a stage's runs of the largest size those that its law misses."""
    if role == "loss_law":
        return largest.filter(pl.col("status") != "finished")
    if role == "lr_transfer":  # rates too high are meant to diverge
        return largest.filter(~pl.col("status").is_in(["finished", "diverged"]))
    if role == ROLE and "finished" not in largest["status"]:  # a table may have bad rates at any size
        return largest.head(SHOWN)
    return largest.clear()


def _finished(lost: Sequence[str], _: float) -> Finding:
    return Finding(not lost, f"unfinished: {', '.join(lost)}" if lost else "finished")


TRIALS_FAILED: Rule[int] = Rule(
    "trials_failed",
    asks="0 failed trials",
    remedy="run the sweep again: finished trials stay; of a table, leave these rows out",
    measure=lambda case: (
        case.trials.filter((pl.col("status") == "failed") & ~is_earlier(case.study.meta["stages"])).height
    ),
    find=lambda failed, _: Finding(failed == 0, str(failed)),
)
LARGEST_FINISHED = Rule(
    "largest_finished",
    asks="a finished largest proxy in every law",
    remedy="run the sweep to its end, or find out why it does not finish",
    measure=lambda case: unfinished(case.study, case.trials),
    find=_finished,
)


def precisions(rows: pl.DataFrame, target: Run, cost: Cost | None) -> list[str]:
    """The precisions of target and proxies, sorted; the proxies' alone where a stage measures what the target's costs.

    That shifts the forecast and widens its interval, which is judged by itself.
    """
    have = rows["precision"].fill_null("unknown").unique().to_list()
    if cost is not None and have == [cost.against]:
        return [
            f"{cost.against} ({cost})"
            if cost.se
            else f"{cost.against} (what {cost.precision} costs is measured)"
        ]
    return sorted({target.precision, *have})


def _planned_precisions(plan: Planned) -> list[str]:
    measuring = [stage.name for stage in plan.space.stages if stage.role == "precision"]
    return precisions(plan.rows.filter(~pl.col("stage").is_in(measuring)), plan.target, plan.cost)


ONE_PRECISION: Rule[list[str]] = Rule(
    "one_precision",
    asks="one precision for target and proxies",
    remedy="train the proxies in the target's precision, or measure its cost by a stage of the role precision",
    measure=lambda case: precisions(case.used, case.target, case.fits.cost),
    find=lambda found, _: Finding(len(found) == 1, ", ".join(found)),
    foresee=_planned_precisions,
)


def leaked(case: Case) -> float | None:
    """The largest share of validation data that are in a training split, None where no trial says."""
    shares = case.used["leaked"].drop_nulls()
    return float(shares.max()) if shares.len() else None  # type: ignore[arg-type]


def _held_out(share: float | None, bound: float) -> Finding:
    if share is None:
        return Finding(False, "unknown", "train proxies with froude, which measures it", kind="warn")
    return Finding(share <= bound, f"{100 * share:.1f}%")


VALIDATION_LEAK = Rule(
    "validation_leak",
    asks="<= {percent:g}% of the validation data in the training data",
    remedy="hold the validation data out of the training data",
    measure=leaked,
    find=_held_out,
    bound=0.05,  # text repeats itself: of 64-byte windows of the King James Bible 1.2% come twice
    foresee=lambda plan: plan.leaked,
)


def fewest_seeds(rows: pl.DataFrame, over: str) -> int:
    """Number of seeds of the size that has fewest; runs that do not tell theirs may all have one."""
    told = pl.max_horizontal(pl.col("seed").drop_nulls().n_unique(), 1)
    counted = rows.filter(pl.col("status") == "finished").group_by(over).agg(seed=told)
    return int(counted["seed"].min()) if counted.height else 0  # type: ignore[arg-type]


def _seeds(of: Case | Planned) -> dict[str, int]:
    """By role, the seeds of the size that has fewest; without a role that has no rows."""
    counted = {"lr_transfer": (of.grid, "width"), "loss_law": (of.ladder, "params")}
    return {role: fewest_seeds(rows, over) for role, (rows, over) in counted.items() if rows.height}


def _repeated(seeds: Mapping[str, int], bound: float) -> Finding:
    few = {role: n for role, n in seeds.items() if n < bound}
    return Finding(not few, ", ".join(f"{n} in {role}" for role, n in (few or seeds).items()) or "none")


SEEDS = Rule(
    "seeds",
    asks=">= {bound:g} seeds",
    remedy="repeat the stage's central runs with another seed",
    measure=_seeds,
    find=_repeated,
    bound=2,  # without a second one, the effect of a seed cannot be told from a law
    foresee=lambda plan: _seeds(plan) or None,
)


def spikes(study: Study, rows: pl.DataFrame, target: Run) -> dict[str, int]:
    """Spikes from which the largest proxies of the loss law did not recover; {} where no steps were kept.

    Where the target's data or rate would begin anew, theirs are taken to do so.
    """
    finished = rows.filter(pl.col("status") == "finished").with_columns(
        compute=pl.col("params").cast(pl.Float64) * pl.col("tokens")
    )
    ranked = finished.sort("compute", descending=True).unique("trial", keep="first", maintain_order=True)
    largest = ranked.head(LARGEST).select("run", "warmup_tokens", "tokens")
    kept = study.steps().filter(pl.col("run").is_in(largest["run"].implode())).sort("step").collect()
    found = {}
    for run, warmup, tokens in largest.iter_rows():
        steps = kept.filter(pl.col("run") == run)
        if steps.height:
            stretch = functools.partial(_stretch, target, tokens)
            found[run] = unrecovered(steps.filter(pl.col("tokens") > warmup), stretch)
    return found


def _stretch(target: Run, tokens: int, seen: float) -> tuple[int, int]:
    """The phase of the data and the cycle of the schedule in which a proxy of so many tokens has seen so many."""
    phase = sum(each.tokens(tokens) <= seen for each in target.data.phases)
    return phase, SCHEDULES[target.schedule.name].cycle(target, seen / tokens * target.tokens)


def unrecovered(steps: pl.DataFrame, stretch: Callable[[float], object] = lambda seen: None) -> int:
    """Spikes of the loss (as the spike policy sees them) that did not come back in RECOVERY steps, or until the end.

    Where `stretch` of the tokens seen by the middle of a step is another, measuring begins anew, as the policy does.
    """
    detector, since, count, now = Detector(), None, 0, None
    middle = (pl.col("tokens") + pl.col("tokens").shift(1, fill_value=0)) / 2
    for step, loss, seen in steps.select("step", "loss", middle).iter_rows():
        if (here := stretch(seen)) != now:
            now, detector, since = here, Detector(), None
        above = detector.deviation(loss)
        spike = above > SPIKE and detector.rise(loss) >= RISE
        if since is None and spike:
            since = step
        elif since is not None and above <= WARN:
            since = None
        elif since is not None and step - since >= RECOVERY:
            count, since, detector = count + 1, None, Detector()
        if not spike:
            detector.accept(loss)
    return count + (since is not None)


def _calm(spiked: Mapping[str, int], _: float) -> Finding:
    if not spiked:
        return Finding(False, "unknown: no steps were kept", kind="warn")
    found = [f"{run} ({n})" for run, n in spiked.items() if n]
    return Finding(not found, ", ".join(found) or "none")


UNSTABLE_PROXIES = Rule(
    "unstable_proxies",
    asks="no spike from which a largest proxy did not recover",
    remedy="lower the rate, lengthen the warmup or clip harder, and run them again",
    measure=lambda case: spikes(case.study, case.ladder, case.target),
    find=_calm,
)
