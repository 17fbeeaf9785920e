"""The laws of a whole study: which rows each is fitted to, and the numbers that a recipe is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import polars as pl

from froude import laws
from froude.config import ConfigError, Run
from froude.laws import CriticalBatch, Estimate, Exponents, LossLaw, LrTransfer, Prediction
from froude.laws.loss.draws import WEAK
from froude.optimizers import times
from froude.parametrizations import PARAMETRIZATIONS
from froude.promote.imported_runs import history
from froude.promote.ladder import outliers, precision_cost, regime, shape, validation_sets
from froude.promote.ladder.critical import critical as critical_batches
from froude.promote.ladder.fingerprints import fingerprint, same
from froude.promote.ladder.measured_in import goals_in, measured_in
from froude.promote.ladder.rates import one_curve_a_width, peak_lr, transfer_rows
from froude.promote.ladder.regret import Corrected, corrected, with_regret
from froude.promote.ladder.search import best, like, of_optimizer
from froude.study import Study

#: Mean and standard deviation of the loss law's exponents where a study is too small to find its own: what every
#: forecast believes beforehand.
PRIOR = WEAK
LEVEL = 0.9  # of a forecast's interval
#: What a recipe makes of exponents over tokens and batch.
USED = (
    "promote moves the rate of stage lr_transfer to the target's horizon and batch by the first two, and the loss "
    "law's rows lose what their rate cost by the first; it keeps the decay's timescale and the half-life of beta2, "
    "whatever the other two say"
)


@dataclass(frozen=True)
class Fits:
    """The fitted laws of a study; None where it has no rows for one.

    `large` is the run that the study is for, None for a history without one; `best` is the search's best trial of its
    schedule at its batch, else at the nearest one, or that of a stage of the role settled, `best_overall` among all
    trials (rows of `trials()`); `transfer` maps parametrizations, by their names, to their laws; `target_loss` (in the
    losses' unit) is that of the critical batch. `rows` holds each law's input, `fingerprints` its SHA-256; for the
    reasons in `doubts` no forecast is certified. `sets` are laws of the losses on other validation sets, by name;
    `exponents` move the rate (`USED`); `horizons` are critical batches at each loss that one was measured at,
    `critical` the one at the lowest. The loss law's rows have a `regret` (froude.promote.ladder.regret), which is
    taken off their losses before the law sees them. `cost` is that of the target's precision, where it is not the
    proxies'. `settled` is the stage that `best` is of, "" for the search. `untold` has run and name of each setting of
    the search's rows that a table does not tell: there the row has the target's own.
    """

    large: Run | None
    best: Mapping[str, Any] | None
    best_overall: Mapping[str, Any] | None
    transfer: Mapping[str, LrTransfer]
    critical: CriticalBatch | None
    target_loss: float
    loss: LossLaw | None
    rows: Mapping[str, pl.DataFrame]
    fingerprints: Mapping[str, str]
    doubts: tuple[str, ...] = ()
    sets: Mapping[str, LossLaw] = field(default_factory=dict)
    exponents: Exponents | None = None
    horizons: tuple[CriticalBatch, ...] = ()
    cost: precision_cost.Cost | None = None
    settled: str = ""
    untold: frozenset[tuple[str, str]] = frozenset()

    def of_rows(self, fingerprints: Mapping[str, str]) -> bool:
        """Whether these are fingerprints of the same rows, by this version or an earlier one."""
        return same(fingerprints, self.fingerprints, self.rows)

    @property
    def target(self) -> Run:
        """The run that the study is for; ConfigError for a history without one."""
        if self.large is None:
            raise ConfigError(
                "this needs a study with a target, but this history was made without one; make it again with "
                "`froude fit --from … --target target.toml`"
            )
        return self.large

    @property
    def peak_lr(self) -> Estimate | None:
        """Peak learning rate for the target (of the base width under muP), at 95%; None without a fitted line."""
        law = self.transfer.get(self.large.parametrization) if self.large is not None else None
        return peak_lr(law, self.target) if law is not None else None

    @property
    def half_life(self) -> float:
        """That of the search's best beta2, in tokens, where the search was over half-lives; else 0."""
        return float((self.best or {}).get("beta2_half_life") or 0.0)

    @property
    def beta2_is_prior(self) -> bool:
        """Whether the best beta2 is an end at which half-lives are cut off, and so was not found by the search."""
        return self.best is not None and times.cut_off(self.half_life, self.best["beta2"])

    @property
    def _elsewhere(self) -> str:
        """The batch of the search's best trial in words, where it is not the target's."""
        own = () if self.large is None else (self.large.batch, self.large.phases.mean)
        batch = (self.best or {}).get("batch")
        return f" (batch {batch:,}, the nearest searched)" if own and batch and batch not in own else ""

    def tells(self, row: Mapping[str, Any] | None, name: str) -> bool:
        """Whether a row's setting is the run's own, not the target's for want of it."""
        return row is not None and row[name] is not None and (row["run"], name) not in self.untold

    def _best_words(self, best: Mapping[str, Any]) -> str:
        """Its settings; a table of runs need not tell more than the rate."""
        parts = [f"lr {best['lr']:.3g}{self._elsewhere}"]
        if self.tells(best, "beta2"):
            parts.append(f"beta2 {best['beta2']:.3g}{' (prior)' * self.beta2_is_prior}")
        if self.tells(best, "warmup_tokens"):
            parts.append(f"warmup {100 * best['warmup_tokens'] / best['tokens']:.0f}%")
        return ", ".join(parts)

    @property
    def largest(self) -> Mapping[str, Any] | None:
        """The finished row of the loss law with most compute (params × tokens); of several the one of least loss."""
        rows = self.rows.get("loss_law")
        if rows is None:
            return None
        compute = pl.col("params").cast(pl.Float64) * pl.col("tokens")
        finished = rows.filter(pl.col("status") == "finished").sort(
            compute, "params", "loss", descending=[True, True, False]
        )
        return finished.row(0, named=True) if finished.height else None

    def predict(self, *, params: float, tokens: float) -> Prediction:
        """The loss of any run, as the loss law has it, at 90%; ConfigError where there is no law."""
        if self.loss is None:
            raise ConfigError(
                "a forecast needs a loss law, but this study has no finished rows for one; run some"
            )
        try:
            found = self.loss.predict(params=params, tokens=tokens, level=LEVEL)
        except ValueError as error:
            raise ConfigError(f"{error} Add runs of other sizes and horizons.") from None
        return self._doubted(found)

    def predict_sets(self, *, params: float, tokens: float) -> dict[str, Prediction]:
        """The loss of any run on each other validation set that has a law, by name, at 90%."""
        return {
            name: self._doubted(law.predict(params=params, tokens=tokens, level=LEVEL))
            for name, law in self.sets.items()
            if math.isfinite(law.E)
        }

    def _doubted(self, found: Prediction) -> Prediction:
        return replace(
            found, certified=found.certified and not self.doubts, reasons=(*found.reasons, *self.doubts)
        )

    def summary(self) -> dict[str, Any]:
        """The numbers of the fits in plain types, without those that do not exist."""
        content: dict[str, Any] = {}
        for key, row in (("best", self.best), ("best_overall", self.best_overall)):
            if row is not None:
                names = ("run", "lr", "warmup_tokens", "tokens", "beta2", "batch", "schedule", "loss")
                content[key] = {name: row[name] for name in names if self.tells(row, name)}
        if self.half_life:
            status = "prior" if self.beta2_is_prior else "ok"
            content["beta2"] = {"half_life": self.half_life, "status": status}
        if self.transfer:
            content["lr_transfer"] = {
                name: {
                    "slope": law.slope.value,
                    "low": law.slope.low,
                    "high": law.slope.high,
                    "status": law.status,
                }
                for name, law in self.transfer.items()
            }
        if (rate := self.peak_lr) is not None:
            content["peak_lr"] = {"lr": rate.value, "low": rate.low, "high": rate.high}
        if (law := self.critical) is not None:
            content["critical_batch"] = {
                "b_crit": law.b_crit,
                "low": law.low,
                "high": law.high,
                "status": law.status,
                "s_min": law.s_min,
                "e_min": law.e_min,
                "target_loss": self.target_loss,
            }
        if self.loss is not None:
            content["loss_law"] = _law_numbers(self.loss)
            content["loss_law"]["corrected"] = Corrected.count(self.rows["loss_law"]).to_dict()
            if self.loss.free is not None:
                content["loss_law"]["free"] = _law_numbers(self.loss.free)
        if self.exponents is not None:
            content["transfer_exponents"] = {
                name: {**asdict(law.measured), "posterior": law.posterior.value}
                | {"status": law.status, "source": law.source}
                for name, law in self.exponents.knobs.items()
            }
        if self.cost is not None:
            content["precision_cost"] = asdict(self.cost)
        if self.sets:
            content["sets"] = {name: _law_numbers(law) for name, law in self.sets.items()}
        cleaned: dict[str, Any] = _finite(content)
        return cleaned

    def lines(self) -> list[str]:
        """The same for people."""
        text = []
        if self.best is not None:
            text.append(f"search          best {self._best_words(self.best)}: loss {self.best['loss']:.3f}")
        for name, law in self.transfer.items():
            slope = law.slope
            text.append(
                f"lr transfer     {name}: slope {slope.value:+.2f} [{slope.low:+.2f}, {slope.high:+.2f}] ({law.status})"
            )
        if (rate := self.peak_lr) is not None:
            text.append(f"peak lr         {rate.value:.3g} [{rate.low:.3g}, {rate.high:.3g}]")
        if self.critical is not None:
            c = self.critical
            text.append(f"critical batch  {c.b_crit:.0f} tokens [{c.low:.0f}, {c.high:.0f}] ({c.status})")
        if self.loss is not None:
            text.append(f"loss law        {_law_words(self.loss)}")
            text.append(f"rate's cost     {Corrected.count(self.rows['loss_law'])}")
        text += [f"loss law        of set {name}: {_law_words(law)}" for name, law in self.sets.items()]
        if self.exponents is not None:
            text += [f"exponent        {line}" for line in [*self.exponents.lines(), USED]]
        text += [f"precision       {self.cost}"] if self.cost is not None else []
        text += [f"warning         {doubt}" for doubt in self.doubts]
        return text or ["no finished stage: nothing to fit"]


def fit(study: Study, loss: str = "loss") -> Fits:
    """Fit every law that the study has rows for; ConfigError if it is no study.

    `loss` is the column that counts as loss (froude.promote.ladder.measured_in).
    """
    if not study.exists:
        raise study.missing()
    meta, rows = study.meta, study.trials().collect()
    target = Run.from_dict(meta["target"]) if "target" in meta else None
    evaluated = validation_sets.evaluations(study, loss)
    stages, trials = goals_in(loss, meta["stages"], rows), measured_in(loss, rows)
    return fit_trials(trials, stages=stages, target=target, evaluated=evaluated)


def fit_trials(
    trials: pl.DataFrame,
    *,
    stages: Mapping[str, Mapping[str, Any]],
    target: Run | None,
    evaluated: pl.DataFrame | None = None,
) -> Fits:
    """Fit the laws to rows of `trials()`; `stages` maps a stage's name to its role and settings.

    `evaluated` has losses on other validation sets, as `ladder.validation_sets.evaluations` returns them.

    Rows of role `history` count for each law as far as they can: `froude.promote.imported_runs.history` says which.
    """
    counted = trials.filter(pl.col("status").is_in(["finished", "diverged"]))

    def of(role: str) -> pl.DataFrame:
        names = [name for name, stage in stages.items() if stage["role"] == role]
        return counted.filter(pl.col("stage").is_in(names))

    past = history.as_planned(of("history"))
    tried = pl.concat([of("search"), of("settled"), history.settings(past, target)])
    search = of_optimizer(tried, target.optimizer.name) if target is not None else tried
    here = like(search, target) if target is not None else search.clear()
    chosen = best(here.join(of("settled"), on="run", how="semi"))
    rows: dict[str, pl.DataFrame] = {"search": search}
    transfer = {}
    for rules in sorted(PARAMETRIZATIONS.values(), key=lambda each: not each.transfers):  # the controls last
        name = rules.name
        base_width = target.model.base_width if target is not None else 0
        told, others = history.rates(past, name, target)
        grid = pl.concat([transfer_rows(of("lr_transfer"), name, base_width), told])
        if grid["width"].n_unique() > 1:
            rows[f"lr_transfer_{name}"] = curves = one_curve_a_width(grid)
            transfer[name] = laws.lr_transfer(curves)
            grid = pl.concat([grid, others])
            if curves.height < grid.height:
                rows[f"lr_drift_{name}"] = grid
    batches = critical_batches(counted, stages)
    if batches is not None:
        rows["critical_batch"] = batches.rows
    moved, exponents = of("transfer_exponents"), None
    if moved.height:
        rows["transfer_exponents"], exponents = moved, laws.exponents(moved)
    ladder, loss = pl.concat([of("loss_law"), history.best(past)]), None
    if ladder.height:
        rows["loss_law"] = with_regret(ladder, transfer, exponents)
        loss = loss_law(corrected(rows["loss_law"]))
    if (scheduled := of("schedule")).height:
        rows["schedule"] = scheduled
    if (pairs := of("precision")).height:
        rows["precision"] = pairs
    cost = precision_cost.cost(pairs, target, ladder) if target is not None else None
    ladders = validation_sets.ladders(ladder, evaluated) if evaluated is not None else {}
    seen = {**rows, **{f"loss_law {name}": own for name, own in ladders.items()}}
    return Fits(
        large=target,
        best=chosen or best(here),
        settled=chosen["stage"] if chosen else "",
        best_overall=best(tried),
        transfer=transfer,
        critical=batches.law if batches else None,
        horizons=batches.horizons if batches else (),
        target_loss=batches.goal if batches else math.nan,
        loss=loss,
        rows=rows,
        doubts=(
            *history.doubts(past, stages),
            *regime.doubts(ladder),
            *outliers.doubts(loss),
            *shape.doubts(ladder, target, batches and batches.law, cost),
        ),
        sets={name: loss_law(own) for name, own in ladders.items()},
        untold=history.untold(past),
        exponents=exponents,
        cost=cost,
        fingerprints={name: fingerprint(frame) for name, frame in seen.items() if frame.height},
    )


def loss_law(rows: pl.DataFrame) -> LossLaw:
    """The law with free exponents where rows outweigh the prior, else the posterior's means; both forecast the same."""
    law = laws.loss_law(rows, prior=PRIOR, groups="trial")
    free = law.free
    return free if free is not None and free.status == "ok" and law.outweighs_prior else law


def _law_words(law: LossLaw) -> str:
    if math.isfinite(law.E):
        return f"E {law.E:.3g}, alpha {law.alpha:.3g}, beta {law.beta:.3g} ({law.status})"
    return f"none: {law.status} ({'; '.join(law.reasons)})"


def _law_numbers(law: LossLaw) -> dict[str, Any]:
    numbers = {key: getattr(law, key) for key in ("E", "A", "B", "alpha", "beta", "objective", "status")}
    return {**numbers, "reasons": list(law.reasons)}


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items() if not isinstance(v, float) or math.isfinite(v)}
    return value
