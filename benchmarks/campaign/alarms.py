"""Does the monitor speak when a run goes wrong, and is it silent when none does? On real trainings.

The laws and curves of a finished study (the quickstart's) forecast a smaller target and the band of its loss, as
`froude promote` does. Then that target is trained again and again with other seeds: clean, with a stretch of damaged
data, or with a wrong learning rate, and the monitor is fed with its steps. Those are kept: the same command goes on
where it was stopped. Writes benchmarks/alarms.md.

    python benchmarks/campaign/alarms.py [--study runs/quickstart] [--clean 20] [--out runs/alarms]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import torch

from froude import Study
from froude.config import Run
from froude.promote.band import with_band
from froude.promote.choice.choose import promoted_run
from froude.promote.fits import fit
from froude.promote.forecast import Forecast
from froude.promote.monitor import alarms
from froude.promote.promotion import parameters, predict
from froude.train.data.ledger import Drawn
from froude.train.trainer import Trainer

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))
from _machine import commit, hardware  # noqa: E402

WIDTH, STEPS = 64, 600
WITHIN = 0.05  # of the run's tokens


def noise(windows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 256, windows.shape, generator=generator, dtype=windows.dtype)


def shuffled(windows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return windows[:, torch.randperm(windows.shape[1], generator=generator)]


def repeated(windows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The same window in every place of every batch."""
    text = b"And it came to pass in those days, that there went out a decree from Caesar Augustus, that all. "
    row = torch.tensor(
        list((text * (1 + windows.shape[1] // len(text)))[: windows.shape[1]]), dtype=windows.dtype
    )
    return row.expand(windows.shape).clone()


@dataclass(frozen=True)
class Fault:
    """What goes wrong from `start` on, a share of the run; for data until `end`, for the rate for good."""

    name: str
    start: float
    end: float = 1.0
    data: Callable[[torch.Tensor, torch.Generator], torch.Tensor] | None = None
    rate: float = 1.0
    schedule: str = ""


FAULTS = (
    *(
        Fault(f"{name} for 5% of the run, from {start:.0%}", start, start + 0.05, data)
        for name, data in (("random bytes", noise), ("shuffled text", shuffled), ("one passage", repeated))
        for start in (0.25, 0.6)
    ),
    *(
        Fault(f"rate × {factor:g}, from {start:.0%}", start, rate=factor)
        for factor in (8, 1 / 8)
        for start in (0.0, 0.5)
    ),
    Fault("no decay of the rate", 0.8, schedule="constant"),
)


class Faulty(Trainer):
    """Trains with the fault's data where it has any."""

    fault: Fault | None = None

    def draw(self, batch: int, factor: int = 1) -> Drawn:
        drawn, fault = super().draw(batch, factor), self.fault
        if fault is None or fault.data is None or not fault.start <= batch / self.run.steps < fault.end:
            return drawn
        generator = torch.Generator().manual_seed(batch)
        return drawn._replace(windows=fault.data(drawn.windows, generator))


def target(study: Study) -> tuple[Run, Forecast]:
    """The smaller target with the rate that the study gives it, and its forecast with a band."""
    fits = fit(study)
    smaller = fits.target.replace(
        {"model.width": WIDTH, "tokens": fits.target.batch * STEPS, "workers": 1, "reduction": "fast"},
        name="small",
    )
    fits = replace(fits, large=smaller)
    params = parameters(fits.target)
    run, forecast = promoted_run(fits), predict(fits, params)
    assert run is not None
    assert forecast is not None
    return run, with_band(forecast, study, fits, run, params)


def train(run: Run, fault: Fault | None) -> pl.DataFrame:
    """`tokens`, `loss` and `lr` of every step; a factor on the rate is the optimizer's, behind the schedule's back."""
    trainer = Faulty(run)
    trainer.fault = fault
    factor, update = 1.0, trainer.optimizer.step

    def spoiled() -> None:
        for group in trainer.optimizer.param_groups:
            group["lr"] *= factor
        update()

    trainer.optimizer.step = spoiled  # type: ignore[method-assign]
    wrong = run.replace({"schedule.name": fault.schedule}) if fault and fault.schedule else run
    rows = []
    for step in range(run.steps):
        late = fault is not None and step >= fault.start * run.steps
        factor = fault.rate if fault and late else 1.0
        result = trainer.step(wrong if late else run, step)
        rows.append(((step + 1) * run.batch, result.loss, result.lr))
    return pl.DataFrame(rows, schema=["tokens", "loss", "lr"], orient="row")


def judge(
    run: Run, forecast: Forecast, seed: int, fault: Fault | None, steps: pl.DataFrame
) -> dict[str, Any]:
    """When the monitor spoke: shares of the run's tokens, after the fault began; and by the loss alone."""
    found = alarms(forecast, run, steps)
    began = fault.start * run.tokens if fault is not None else 0.0
    after = [alarm for alarm in found if alarm.tokens > began]
    return {
        "fault": fault.name if fault is not None else "",
        "seed": seed,
        "alarms": len(found),
        "early": len(found) - len(after) if fault is not None else 0,
        "delay": (after[0].tokens - began) / run.tokens if after and fault is not None else None,
        "kind": after[0].kind if after else "",
        "by loss": next(((a.tokens - began) / run.tokens for a in after if a.kind != "rate"), None),
    }


def page(rows: list[dict[str, Any]], run: Run, forecast: Forecast, machine: str) -> str:
    clean = [row for row in rows if not row["fault"]]
    false = sum(row["alarms"] for row in clean)
    faulty = [row for row in rows if row["fault"]]
    caught = sum(row["delay"] is not None and row["delay"] <= WITHIN for row in faulty)

    def share(delay: float | None) -> str:
        return "never" if delay is None else f"{delay:.2%}"

    lines = [
        f"| {row['fault']} | {row['kind'] or 'none'} | {share(row['delay'])} | {share(row['by loss'])} |"
        for row in faulty
    ]
    return f"""# Alarms of a run that leaves its forecast

Width {run.model.width}, {run.steps} steps, forecast {forecast.loss:.3f} [{forecast.low:.3f}, {forecast.high:.3f}] nats
per token with a band from the study's proxies; every row is a training of its own, with a seed of its own.

Clean runs: {len(clean)}, with {false} false alarms. Faulty runs: {len(faulty)}, of which the alarm came in {caught}
within {WITHIN:.0%} of the run's tokens after the fault. A factor on the rate is planted in the optimizer, a missing
decay in the schedule; the monitor compares what the optimizer had with the sealed schedule. The last column is what
the loss alone would have said, whose band begins where the warmup ends, at {forecast.band[0].tokens / run.tokens:.1%}.

**What it does not show.** The first version named 8 of the 11 in time: the comparison of rates was written for just
the three that were missed (the last column has them), so 11 of 11 is no blind test. One width, one length, faults
of one kind each; at these sizes 20 clean runs without a false alarm leave a rate of up to 14% possible (95%).

| fault | alarm | tokens until the alarm, of the run's | by the loss alone |
|---|---|---|---|
{chr(10).join(lines)}

{machine}; {datetime.now(UTC):%Y-%m-%d}, commit {commit("campaign/alarms.py")}.
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--study", default="runs/quickstart")
    parser.add_argument("--clean", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/alarms"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    machine = hardware()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    run, forecast = target(Study(args.study))
    if not forecast.band:
        raise SystemExit("the study's proxies determine no curve: there is no band to leave")
    wanted: list[tuple[int, Fault | None]] = [(seed, None) for seed in range(args.clean)]
    wanted += [(100 + i, fault) for i, fault in enumerate(FAULTS)]
    for seed, fault in wanted:
        file = args.out / f"{seed:03d}.parquet"
        if not file.exists():
            train(run.replace(seed=seed), fault).write_parquet(file)
        rows.append(judge(run, forecast, seed, fault, pl.read_parquet(file)))
        print(rows[-1], flush=True)
    text = page(rows, run, forecast, machine)
    (HERE / "alarms.md").write_text(text)
    print(text)
    false = sum(row["alarms"] for row in rows if not row["fault"])
    missed = [row for row in rows if row["fault"] and (row["delay"] is None or row["delay"] > WITHIN)]
    return 0 if false <= 1 and not missed else 1


if __name__ == "__main__":
    sys.exit(main())
