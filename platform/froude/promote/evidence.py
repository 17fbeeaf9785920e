"""What a study has to show to the gate, measured from its frames."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import polars as pl

from froude import laws
from froude.config import Run
from froude.laws import LrTransfer
from froude.promote.checks import NO_STAGE, Evidence
from froude.promote.fits import Fits
from froude.promote.forecast import Forecast
from froude.study import Study
from froude.train.stability import RECOVERY, RISE, SPIKE, WARN, Detector

#: Level of the interval in which the law of the other sizes must see a size.
OFF_LEVEL = 0.99
LARGEST = 2  # proxies that are looked at for spikes


def collect(study: Study, fits: Fits, forecast: Forecast | None, ratios: Mapping[str, float]) -> Evidence:
    """What the gate looks at; NaN for what no fit could say. `ratios` are target over largest proxy, by axis."""
    target, rate, critical = fits.target, fits.peak_lr, fits.critical
    law = fits.transfer[target.parametrization]
    grid = fits.rows[f"lr_transfer_{target.parametrization}"]
    diverged = grid.filter(pl.col("status") == "diverged")["lr"].to_list()
    b_crit = critical.b_crit if critical is not None else math.nan
    trials = study.trials().collect()
    used = pl.concat([rows for rows in fits.rows.values() if rows.height]).unique("run")
    shares = used["leaked"].drop_nulls()
    assert fits.loss is not None
    return Evidence(
        failed=trials.filter(pl.col("status") == "failed").height,
        unfinished=unfinished(study, trials),
        precisions=sorted({target.precision, *used["precision"].fill_null("unknown").to_list()}),
        leaked=float(shares.max()) if shares.len() else None,  # type: ignore[arg-type]
        seeds={
            "lr_transfer": fewest_seeds(grid, "width"),
            "loss_law": fewest_seeds(fits.rows["loss_law"], "params"),
        },
        spikes=spikes(study, fits.rows["loss_law"]),
        lr_curves={
            int(row["width"]): (row["rates"], row["status"]) for row in law.curves.iter_rows(named=True)
        },
        lr_bumps=bumps(law),
        lr_status=law.status,
        lr_half_width=math.log(rate.high / rate.low) / 2 if rate else math.nan,
        lr_drift=drift(law, target),
        diverged_ratio=min((max(lr / rate.value, rate.value / lr) for lr in diverged), default=math.inf)
        if rate
        else math.nan,
        ratios=ratios,
        sizes_off=sizes_off(fits),
        forecast_half_width=forecast.half_width if forecast else math.nan,
        forecast_certified=forecast.certified if forecast else False,
        forecast_reasons=forecast.reasons if forecast else fits.loss.reasons,
        batch=target.batch,
        critical_batch=b_crit,
        critical_status=critical.status if critical is not None else NO_STAGE,
        critical_reasons=critical.reasons if critical is not None else (),
        token_overhead=target.batch / b_crit,
        lr_left_out={int(size): rates for size, rates in law.curves.select("width", "left_out").iter_rows()},
    )


def unfinished(study: Study, trials: pl.DataFrame) -> list[str]:
    """Largest runs of stages that a law is fitted to, where they did not finish, and trials that never came."""
    found = []
    for name, stage in study.meta["stages"].items():
        rows = trials.filter(pl.col("stage") == name)
        missing = int(stage.get("trials", 0)) - rows["trial"].n_unique()
        if missing > 0:
            found.append(f"{missing} trials of stage {name}")
        if stage["role"] in ("loss_law", "lr_transfer") and rows.height:
            largest = rows.filter(pl.col("params") == pl.col("params").max())
            if stage["role"] == "loss_law":
                lost = largest.filter(pl.col("status") != "finished")
            else:  # rates too high are meant to diverge
                lost = largest.filter(~pl.col("status").is_in(["finished", "diverged"]))
            found += [f"{row['run']} ({row['status']})" for row in lost.iter_rows(named=True)]
    return found


def fewest_seeds(rows: pl.DataFrame, over: str) -> int:
    """Number of seeds of the size that has fewest."""
    counted = rows.filter(pl.col("status") == "finished").group_by(over).agg(pl.col("seed").n_unique())
    return int(counted["seed"].min()) if counted.height else 0  # type: ignore[arg-type]


def bumps(law: LrTransfer) -> dict[int, float]:
    """By how much the mean loss rises between two lower ones over the rates, by size; 0 where it may be noise.

    Noise is the pooled scatter of seeds, where there are at least two repeated rates, else that of the residuals
    (1.4826 MAD); four of its standard deviations are no rise.
    """
    rows = law.rows.filter(pl.col("fitted").is_not_null()).with_columns(pl.col("loss").cast(pl.Float64))
    points = (
        rows.group_by(law.over, "lr")
        .agg(pl.col("loss").mean(), pl.len().alias("runs"), squares=pl.col("loss").var() * (pl.len() - 1))
        .sort(law.over, "lr")
    )
    spare = int((points["runs"] - 1).sum())
    if spare >= 2:
        noise = math.sqrt(float(points["squares"].fill_null(0.0).sum()) / spare)
    else:
        noise = 1.4826 * float(rows["residual"].abs().median() or 0.0)  # type: ignore[arg-type]
    found = {}
    for size, curve in points.group_by(law.over, maintain_order=True):
        loss = curve["loss"].to_numpy()
        rise = 0.0
        if loss.size >= 3:
            before, after = np.minimum.accumulate(loss)[:-2], np.minimum.accumulate(loss[::-1])[::-1][2:]
            rise = float((loss[1:-1] - np.maximum(before, after)).max())
        runs = float(curve["runs"].min())  # type: ignore[arg-type]
        found[int(size[0])] = rise if rise > 4 * noise / math.sqrt(runs) else 0.0
    return found


def drift(law: LrTransfer, target: Run) -> float:
    """How far in ln lr the optimum moves from the middle of the sizes tried to the target's, 0 if it may be noise."""
    if not target.width_rules.transfers or law.slope.low <= 0 <= law.slope.high:
        return 0.0
    sizes = law.curves.filter(pl.col("status").is_in(["ok", "flat"]))[law.over].log()
    middle = float(sizes.mean()) if sizes.len() else math.nan  # type: ignore[arg-type]
    return abs(law.slope.value * (math.log(target.model.width) - middle))


def sizes_off(fits: Fits) -> list[str]:
    """The size that the law of all others misses most, if most of its runs lie outside the interval at OFF_LEVEL."""
    law, rows = fits.loss, fits.rows["loss_law"].filter(pl.col("status") == "finished")
    assert law is not None
    worst, name = 0.0, ""
    for (size,), own in rows.group_by("params", maintain_order=True):
        rest = laws.loss_law(rows.filter(pl.col("params") != size), prior=law.prior, groups="trial")
        if not math.isfinite(rest.E):
            continue
        misses = []
        for row in own.iter_rows(named=True):
            seen = rest.predict(params=row["params"], tokens=row["tokens"], level=OFF_LEVEL)
            bound = seen.high - seen.loss if row["loss"] > seen.loss else seen.loss - seen.low
            misses.append(abs(row["loss"] - seen.loss) / max(bound, 1e-12))
        miss = float(np.median(misses))
        if miss > max(worst, 1.0):
            worst, name = miss, f"{size:,}"
    return [name] if name else []


def spikes(study: Study, rows: pl.DataFrame) -> dict[str, int]:
    """Spikes from which the largest proxies of the loss law did not recover; {} where no steps were kept."""
    finished = rows.filter(pl.col("status") == "finished").with_columns(
        compute=pl.col("params").cast(pl.Float64) * pl.col("tokens")
    )
    ranked = finished.sort("compute", descending=True).unique("trial", keep="first", maintain_order=True)
    largest = ranked.head(LARGEST).select("run", "warmup_tokens")
    kept = study.steps().filter(pl.col("run").is_in(largest["run"].implode())).sort("step").collect()
    found = {}
    for run, warmup in largest.iter_rows():
        steps = kept.filter(pl.col("run") == run)
        if steps.height:
            found[run] = unrecovered(steps.filter(pl.col("tokens") > warmup))
    return found


def unrecovered(steps: pl.DataFrame) -> int:
    """Spikes of the loss (as the spike policy sees them) that did not come back in RECOVERY steps, or until the end."""
    detector, since, count = Detector(), None, 0
    for step, loss in steps.select("step", "loss").iter_rows():
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
