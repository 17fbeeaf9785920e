"""Whether a change of structure changed results: two versions of froude, compared value by value.

Collected are every law's numbers, statuses, reasons and intervals on the published runs in tests/data and on ten
generated studies, what `froude fit` says of each of those, and, with `--quickstart`, digest, losses and forecast of the
quickstart's seed 0. The other version is a git revision, checked out into a temporary folder; this script's own code
collects under both, by the public API alone. Exit code 1 where a value differs; `--collect` only prints them as JSON.

    python benchmarks/held_still.py REVISION [--quickstart] [--seeds 10]
    python benchmarks/held_still.py --collect
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from _machine import HERE, checkout_of

DATA = HERE.parent / "tests" / "data"
PRIOR = {"alpha": (0.35, 0.1), "beta": (0.35, 0.1)}
COMMAND = [sys.executable, "-c", "import sys; from froude.cli import main; sys.exit(main())"]
Collected = dict[str, Any]  # what was computed, by its name


def plain(value: Any) -> Any:
    """JSON with every bit of every number; private fields, functions and whole frames of rows are left out."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | np.floating):
        return repr(float(value))
    if isinstance(value, np.ndarray):
        return [plain(each) for each in value.tolist()]
    if isinstance(value, pl.DataFrame):
        return plain(value.to_dicts())
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if is_dataclass(value):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        return {name: plain(each) for name, each in named.items() if not name.startswith("_")}
    return str(value)


def whole(law: Any) -> Any:
    """A law with its table, its rows and, where it predicts a loss, three forecasts beyond them."""
    content = {"law": plain(law), "table": plain(law.table()), "rows": plain(law.rows)}
    if {"params", "tokens"} <= set(law.rows.columns) and hasattr(law, "predict"):
        names = ["params", "tokens", *(["unique_tokens"] if hasattr(law, "r_data") else [])]
        largest = {name: float(law.rows[name].max()) for name in names}
        for reach in (1.0, 4.0, 20.0):
            try:
                content[f"predict {reach:g}"] = plain(
                    law.predict(**{name: reach * value for name, value in largest.items()})
                )
            except ValueError as error:
                content[f"predict {reach:g}"] = str(error)
    return content


def published() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Laws on the published runs that come with the tests."""
    from froude import laws

    cbs = pl.read_csv(DATA / "cbs_zhang2024.csv").rename(
        {"batch_tokens": "batch", "steps_to_target_used_in_fit": "steps"}
    )
    for (model,), rows in cbs.group_by("model", maintain_order=True):
        yield (
            f"critical batch of {model}",
            lambda rows=rows: laws.critical_batch(rows.select("batch", "steps")),
        )
    tables = {
        "gemstones_hot": {"params_N": "params", "tokens_D": "tokens", "run_name": "trial"},
        "gemstones_cool_end": {"params_N": "params", "tokens_D": "tokens", "run_name": "trial"},
        "gadre_redpajama": {
            "params_N": "params",
            "tokens_D": "tokens",
            "loss_c4_val": "loss",
            "name": "trial",
        },
    }
    for name, renamed in tables.items():
        rows = pl.read_csv(DATA / f"{name}.csv").rename(renamed)
        yield f"loss law of {name}", lambda rows=rows: laws.loss_law(rows, groups="trial")
        yield f"tied loss law of {name}", lambda rows=rows: laws.loss_law(rows, form="tied", groups="trial")
        yield (
            f"loss law of {name} under a prior",
            lambda rows=rows: laws.loss_law(rows, prior=PRIOR, groups="trial"),
        )
        yield f"Kaplan's law of {name}", lambda rows=rows: laws.kaplan(rows, groups="trial")
    points = pl.read_csv(DATA / "porian_refinedweb_points.csv").rename(
        {"flops_C": "flops", "params_N": "params", "tokens_D": "tokens"}
    )
    for key, rows in points.group_by("hparams", "param_count", "decay", maintain_order=True):
        name = " ".join(map(str, key))
        yield f"IsoFLOP of {name}", lambda rows=rows: laws.iso_flop(rows)
        best = rows.sort("loss").unique("flops", keep="first", maintain_order=True).sort("flops")
        yield (
            f"optimum of {name}",
            lambda best=best: laws.optimum_law(best, target="params", over=["flops"]),
        )
    cifar = (
        pl.read_csv(DATA / "mup_mlp_cifar10.csv").filter(~pl.col("diverged")).rename({"train_loss": "loss"})
    )
    for key, rows in cifar.group_by("parametrization", "epoch", maintain_order=True):
        name = " ".join(map(str, key))
        yield f"transfer of {name}", lambda rows=rows: laws.lr_transfer(rows)
        for (width,), curve in rows.group_by("width", maintain_order=True):
            yield f"rates of {name} at width {width}", lambda curve=curve: laws.lr_curve(curve)


def generated(seed: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Laws on one study drawn by `seed`: its ladder, rates, batches, schedules, gradients and repeated data."""
    from froude import laws

    draw = np.random.default_rng(seed)
    frames = study(draw)
    yield f"study {seed}: loss law", lambda: laws.loss_law(frames["ladder"], groups="trial")
    yield (
        f"study {seed}: loss law under a prior",
        lambda: laws.loss_law(frames["ladder"], prior=PRIOR),
    )
    yield f"study {seed}: transfer", lambda: laws.lr_transfer(frames["rates"])
    yield (
        f"study {seed}: rates of the narrowest",
        lambda: laws.lr_curve(frames["rates"].filter(pl.col("width") == 32)),
    )
    yield f"study {seed}: critical batch", lambda: laws.critical_batch(frames["batches"])
    yield f"study {seed}: rate and batch", lambda: laws.batch_lr_law(frames["best_rates"])
    yield f"study {seed}: noise scale", lambda: laws.noise_scale(frames["gradients"])
    yield f"study {seed}: annealing", lambda: laws.curve.annealing(frames["steps"], floor="params")
    yield f"study {seed}: repeated data", lambda: laws.data_constrained(frames["repeated"])


def study(draw: np.random.Generator) -> dict[str, pl.DataFrame]:
    """Frames of a study whose laws are drawn near published ones, with noise of half a percent."""
    alpha, beta, floor = draw.uniform(0.3, 0.4), draw.uniform(0.28, 0.38), draw.uniform(1.5, 2.0)

    def loss(params: float, tokens: float) -> float:
        exact = floor + 400 / params**alpha + 400 / tokens**beta
        return float(exact * math.exp(0.005 * draw.standard_normal()))

    sizes, horizons = np.geomspace(1e6, 6e7, 4), np.geomspace(2e7, 1e9, 4)
    ladder = [
        {"trial": f"{n:.0f}", "params": round(n), "tokens": round(d), "loss": loss(n, d)}
        for n in sizes
        for d in horizons
    ]
    slope, best = draw.uniform(-1.0, 0.1), 2**-7.3
    rates = [
        {
            "width": width,
            "lr": lr,
            "seed": seed,
            "loss": 3
            - 0.1 * math.log(width)
            + 0.08 * math.log(lr / (best * (width / 32) ** slope)) ** 2
            + 0.004 * draw.standard_normal(),
        }
        for width in (32, 64, 128, 256)
        for lr in 2.0 ** np.arange(-11, -3)
        for seed in (0, 1)
    ]
    b_crit = 10 ** draw.uniform(2.5, 4)
    sizes_of_batch = 64 * 2.0 ** np.arange(8)
    batches = [
        {"batch": b, "steps": 100 * (1 + b_crit / b) * math.exp(0.02 * draw.standard_normal())}
        for b in sizes_of_batch
    ]
    best_rates = [
        {"batch": b, "lr": 0.01 / (1 + b_crit / b) * math.exp(0.05 * draw.standard_normal())}
        for b in sizes_of_batch
    ]
    gradients = [
        {
            "step": step,
            "batch_small": 64.0,
            "batch_big": 768.0,
            "small_sq_norm": (1 + b_crit / 64) * draw.gamma(40, 1 / 40),
            "big_sq_norm": (1 + b_crit / 768) * draw.gamma(40, 1 / 40),
        }
        for step in range(1, 301)
    ]
    steps = []
    for params in (1e6, 4e6):
        for run, count in (("short", 300), ("long", 600)):
            done = np.arange(1, count + 1) / count
            lr = 0.01 * np.minimum(1.0, np.minimum(done * count / 20, (1 - done) / 0.2 + 0.01))
            total = np.cumsum(lr)
            curve = floor + 40 / params**0.35 + 0.8 / (0.2 + total) ** 0.5 - 0.2 * (1 - lr / 0.01)
            steps += [
                {"run": f"{run} {params:g}", "params": params, "step": i + 1, "lr": lr[i], "loss": curve[i]}
                for i in range(count)
            ]
    repeated = [
        {
            "params": n,
            "tokens": d,
            "unique_tokens": u,
            "loss": loss(n, u * (1 + 15 * (1 - math.exp(-(d / u - 1) / 15)))) if d > u else loss(n, d),
        }
        for n in sizes
        for d in horizons
        for u in (d, d / 4)
    ]
    frames = {"ladder": ladder, "rates": rates, "batches": batches, "best_rates": best_rates}
    frames |= {"gradients": gradients, "steps": steps, "repeated": repeated}
    return {name: pl.DataFrame(rows) for name, rows in frames.items()}


def fitted(seed: int, folder: Path) -> Any:
    """What `froude fit` says of the ladder and the rates of one generated study, given as a table of runs."""
    frames = study(np.random.default_rng(seed))
    ladder = frames["ladder"].with_columns(run=pl.format("ladder-{}", pl.int_range(pl.len())))
    rates = frames["rates"].with_columns(
        run=pl.format("rate-{}", pl.int_range(pl.len())),
        tokens=pl.lit(50_000_000),
        params=(26 * pl.col("width") ** 2).cast(pl.Int64),
    )
    table = folder / f"{seed}.csv"
    pl.concat([ladder, rates], how="diagonal_relaxed").write_csv(table)
    command = ["fit", "--from", str(table), "--out", str(folder / f"study-{seed}"), "--json"]
    done = subprocess.run(
        [*COMMAND, *command, "--predict", "params=2e8,tokens=4e9"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {key: value for key, value in json.loads(done.stdout).items() if key != "table"}


def quickstart(out: Path) -> Any:
    """Digest, losses and forecast of the quickstart's seed 0."""
    import froude
    from froude.promote.recipe import read

    subprocess.run([*COMMAND, "quickstart", "--seed", "0", "--out", str(out)], check=True, stdout=sys.stderr)
    digest = subprocess.run(
        [*COMMAND, "checkpoints", "digest", str(out)], check=True, capture_output=True, text=True
    ).stdout.strip()
    recipe = read(froude.Study(str(out)).location / "recipe.toml")
    found = froude.Study(str(out))
    steps = found.steps().filter(pl.col("run") == recipe.run.name).sort("step").collect()
    trials = found.trials().sort("stage", "run").collect()
    return {
        "digest": digest,
        "losses": plain(steps["loss"].to_list()),
        "forecast": plain(recipe.forecast.to_dict()),
        "trials": plain(trials.select("stage", "run", "fingerprint", "status", "loss").to_dicts()),
    }


def collect(seeds: int, *, with_quickstart: bool) -> Collected:
    found: Collected = {}
    of_seeds = (pair for seed in range(seeds) for pair in generated(seed))
    for source in (published(), of_seeds):
        for name, compute in source:
            try:
                found[name] = whole(compute())
            except (ValueError, TypeError) as error:
                found[name] = f"{type(error).__name__}: {error}"
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            found[f"study {seed}: froude fit"] = fitted(seed, Path(folder))
        if with_quickstart:
            found["quickstart"] = quickstart(Path(folder) / "quickstart")
    return found


def differences(before: Any, after: Any, at: str = "") -> Iterator[str]:
    """Each value that is not the same, by where it stands; keys that were added are none."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key not in after:
                yield f"{at}/{key}: gone"
            else:
                yield from differences(value, after[key], f"{at}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{at}[{i}]")
    elif before != after:
        yield f"{at}: {before!r:.80} became {after!r:.80}"


def collected_by(checkout: Path, arguments: list[str]) -> Collected:
    """What this script collects with the package of another checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "platform")}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--collect", *arguments],
        env=environment,
        cwd=checkout,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    content: Collected = json.loads(done.stdout)
    return content


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revision", nargs="?", help="of git: the version before")
    parser.add_argument("--quickstart", action="store_true", help="train it as well, five minutes a version")
    parser.add_argument("--seeds", type=int, default=10, help="generated studies")
    parser.add_argument("--collect", action="store_true", help="print what this version computes, as JSON")
    given = parser.parse_args()
    if given.collect:
        json.dump(collect(given.seeds, with_quickstart=given.quickstart), sys.stdout, indent=0)
        return 0
    if not given.revision:
        parser.error("name the revision to compare with, for instance HEAD~1")
    arguments = ["--seeds", str(given.seeds), *(["--quickstart"] if given.quickstart else [])]
    with checkout_of(given.revision) as other:
        before = collected_by(other, arguments)
    after = collected_by(HERE.parent, arguments)
    found = list(differences(before, after))
    print("\n".join(found) if found else f"{len(before)} results are the same to the last bit")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
