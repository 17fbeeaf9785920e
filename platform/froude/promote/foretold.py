"""What a search space's plan says already about its promotion: the gate's checks that need no trial, and its cost."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from froude.config import Run
from froude.laws.loss.law import RATIO
from froude.promote.checks import Evidence, table
from froude.promote.fits import transfer_rows
from froude.promote.gate import Check, Profile
from froude.space import Space
from froude.train.api import build_model, count_parameters
from froude.train.data.leak import leaked
from froude.train.rows import describe

#: Without a stage of each of these roles there is nothing to promote.
NEEDED = ("search", "lr_transfer", "loss_law")
#: Checks of the gate that the planned runs decide.
DECIDED = (
    "one_precision",
    "validation_leak",
    "seeds",
    "lr_points",
    "extrapolation_params",
    "extrapolation_tokens",
    "extrapolation_compute",
    "extrapolation_batch",
)


@dataclass(frozen=True)
class Foretold:
    """Reach of the target over the largest proxy of the loss law, by axis ({} without that stage); what fails.

    A failed check of kind "refuse" is one by which promote would refuse the study as it is planned.
    """

    reach: Mapping[str, float]
    warnings: tuple[Check, ...]

    def lines(self) -> list[str]:
        """Each warning in a line."""
        words = {"refuse": "promote would refuse", "warn": "worth knowing"}
        return [f"{words[check.kind]}: {check.line()}" for check in self.warnings]


def foretell(space: Space, profile: Profile, *, proxies: float, target: float) -> Foretold:
    """Look at the planned runs; `proxies` and `target` are FLOPs. The runs' code has been trusted."""
    runs = [run for trials in space.planned().values() for trial in trials for run in trial.runs]
    sizes: dict[str, int] = {}
    rows = pl.DataFrame(
        [{**describe(run), "params": _params(run, sizes)} for run in runs], infer_schema_length=None
    )

    def of(role: str) -> pl.DataFrame:
        return rows.filter(
            pl.col("stage").is_in([stage.name for stage in space.stages if stage.role == role])
        )

    large, law = space.target, of("loss_law")
    grid = transfer_rows(of("lr_transfer"), large.parametrization, large.model.base_width)
    reach = _reach(law, large, _params(large, sizes))
    known = set(DECIDED)
    if not reach:
        known -= {name for name in DECIDED if name.startswith("extrapolation")}
    if not grid.height:
        known.discard("lr_points")
    evidence = _evidence(runs, large, grid, law, reach)
    checks = [check for check in table(evidence, profile) if check.name in known]
    checks += [*_roles(space), *_ratio(law), _cost(proxies / target)]
    return Foretold(reach, tuple(check for check in checks if not check.passed))


def _params(run: Run, sizes: dict[str, int]) -> int:
    """Parameters without embedding and readout, counted once a shape."""
    key = json.dumps([run.to_dict()["model"], run.parametrization], sort_keys=True)
    if key not in sizes:
        sizes[key] = count_parameters(build_model(run, "meta")).params
    return sizes[key]


def _reach(law: pl.DataFrame, large: Run, params: int) -> dict[str, float]:
    if not law.height:
        return {}
    counts = {axis: law[axis].cast(pl.Float64) for axis in ("params", "tokens", "batch")}
    largest = {**counts, "compute": counts["params"] * counts["tokens"]}
    tokens = float(large.tokens)
    over = {"params": params, "tokens": tokens, "compute": params * tokens, "batch": large.batch}
    return {axis: value / float(largest[axis].max()) for axis, value in over.items()}  # type: ignore[arg-type]


def _evidence(
    runs: Sequence[Run], large: Run, grid: pl.DataFrame, law: pl.DataFrame, reach: Mapping[str, float]
) -> Evidence:
    """The gate's evidence as far as the plan decides it; the rest is never read (DECIDED)."""
    counted = {"lr_transfer": (grid, "width"), "loss_law": (law, "params")}
    rates = grid.group_by("width").agg(pl.col("lr").n_unique())
    return Evidence(
        precisions=sorted({large.precision, *(run.precision for run in runs)}),
        leaked=max(leaked(run) for run in runs),
        seeds={role: _fewest_seeds(rows, over) for role, (rows, over) in counted.items() if rows.height},
        lr_curves={int(width): (int(n), "ok") for width, n in rates.iter_rows()},
        ratios=reach or dict.fromkeys(("params", "tokens", "compute", "batch"), 1.0),
        batch=large.batch,
        failed=0,
        unfinished=(),
        spikes={},
        lr_bumps={},
        lr_status="ok",
        lr_half_width=0.0,
        lr_drift=0.0,
        diverged_ratio=float("inf"),
        sizes_off=(),
        forecast_half_width=0.0,
        forecast_certified=True,
        forecast_reasons=(),
        critical_batch=float("nan"),
        critical_status="ok",
        critical_reasons=(),
        token_overhead=0.0,
    )


def _fewest_seeds(rows: pl.DataFrame, over: str) -> int:
    counted = rows.group_by(over).agg(pl.col("seed").n_unique())
    return int(counted["seed"].min())  # type: ignore[arg-type]


def _roles(space: Space) -> list[Check]:
    have = {stage.role for stage in space.stages}
    missing = [role for role in NEEDED if role not in have]
    return [
        Check(
            "roles",
            not missing,
            f"without {', '.join(missing)}" if missing else "all",
            f"a study with stages of the roles {', '.join(NEEDED)}",
            "add them here, or sweep another space into the same study",
        )
    ]


def _ratio(law: pl.DataFrame) -> list[Check]:
    if not law.height:
        return []
    ratio = law["tokens"] / law["params"]
    low, high = float(ratio.min()), float(ratio.max())  # type: ignore[arg-type]
    return [
        Check(
            "tokens_per_parameter",
            RATIO[0] <= low and high <= RATIO[1],
            f"{low:.3g} to {high:.3g} in stage `loss_law`",
            f"{RATIO[0]:g} to {RATIO[1]:g}, where the law's form is tested",
            "move its sizes or horizons into that range",
            kind="warn",
        )
    ]


def _cost(ratio: float) -> Check:
    return Check(
        "proxies_cost",
        ratio <= 1,
        f"{ratio:.2g}×",
        "at most 1× the target's FLOPs for all proxies",
        "so small a target tries the method out, and saves nothing",
        kind="warn",
    )
