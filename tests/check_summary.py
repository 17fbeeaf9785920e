"""Check a quickstart's summary.json against what its seed must show, and the recipe beside it; print each check.

Whether the loss is inside a 90% interval, and which comparator was nearer, is luck of one seed: that is printed, and
scored over seeds in benchmarks/quickstart_seeds.md.

Usage: python tests/check_summary.py runs/quickstart/summary.json      (exit code 1 if any check fails)
"""

from __future__ import annotations

import json
import math
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

KEYS: dict[str, tuple[str, ...]] = {
    "trials": ("finished", "diverged", "failed"),
    "seconds": ("sweep", "fit", "promote", "train", "total"),
    "best": ("lr", "warmup_tokens", "beta2", "batch", "schedule"),
    "lr_transfer.mup": ("slope", "low", "high"),
    "lr_transfer.sp": ("slope", "low", "high"),
    "critical_batch": ("b_crit", "low", "high", "status"),
    "forecast": (
        *("loss", "low", "high", "level", "certified", "sha256"),
        *("naive", "comparator", "reach", "proxy_cost"),
    ),
    "actual": ("loss", "inside", "relative_error"),
    "elastic": (
        "run",
        "world_sizes",
        "restarts",
        "recovery_seconds",
        "tokens_expected",
        "tokens_skipped",
        "tokens_repeated",
        "tokens_skipped_by_policy",
        "digest",
        "undisturbed_digest",
    ),
}

Check = tuple[str, bool, object]


def at(summary: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path, or None where the path ends early."""
    value: Any = summary
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def contains(sizes: object, wanted: list[int]) -> bool:
    """Whether `wanted` appears in `sizes` in a row, repeats of one size counted once."""
    if not isinstance(sizes, list):
        return False
    steps = [size for i, size in enumerate(sizes) if i == 0 or size != sizes[i - 1]]
    return any(steps[i : i + len(wanted)] == wanted for i in range(len(steps)))


def within(value: object, low: float, high: float) -> bool:
    """Whether `value` is a number in [low, high]."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def checks(summary: Mapping[str, Any], planned: int | None) -> Iterator[Check]:
    """Yield (what, passed, the value seen) for every requirement; `planned`: the recipe's tokens, if there is one."""
    for path, keys in KEYS.items():
        group = at(summary, path)
        missing = [key for key in keys if not isinstance(group, Mapping) or key not in group]
        yield f"{path} has {', '.join(keys)}", not missing, f"missing: {missing}" if missing else "all there"

    yield "no trial failed", at(summary, "trials.failed") == 0, at(summary, "trials.failed")
    yield (
        "some trials finished",
        within(at(summary, "trials.finished"), 1, math.inf),
        at(summary, "trials.finished"),
    )

    sp, mup = at(summary, "lr_transfer.sp.slope"), at(summary, "lr_transfer.mup.slope")
    yield "SP slope in [-1.4, -0.6]", within(sp, -1.4, -0.6), sp
    yield "muP slope in [-0.35, 0.35]", within(mup, -0.35, 0.35), mup
    apart = mup - sp if within(sp, -math.inf, math.inf) and within(mup, -math.inf, math.inf) else None
    yield "muP slope exceeds SP's by >= 0.6", within(apart, 0.6, math.inf), apart

    status, critical = at(summary, "critical_batch.status"), at(summary, "critical_batch.b_crit")
    yield "critical batch: status ok", status == "ok", status
    yield "critical batch in [150, 900] tokens", within(critical, 150, 900), critical

    sealed = at(summary, "forecast.sha256")
    yield "forecast sealed (sha256 of 64 hex digits)", is_sha256(sealed), sealed
    error = at(summary, "actual.relative_error")
    yield "error of the forecast within ±3%", within(error, -0.03, 0.03), error

    sizes, restarts = at(summary, "elastic.world_sizes"), at(summary, "elastic.restarts")
    yield "world sizes went 3, 2, 3", contains(sizes, [3, 2, 3]), sizes
    yield "two restarts or more", within(restarts, 2, math.inf), restarts
    expected = at(summary, "elastic.tokens_expected")
    yield f"tokens expected are the recipe's {planned}", bool(planned) and expected == planned, expected
    for key in ("tokens_skipped", "tokens_repeated"):
        yield f"{key} = 0", at(summary, f"elastic.{key}") == 0, at(summary, f"elastic.{key}")


def printed(summary: Mapping[str, Any]) -> Iterator[str]:
    """What is worth a look, and no check: one seed's luck."""
    yield f"actual inside the interval: {at(summary, 'actual.inside')}"
    actual = at(summary, "actual.loss")
    others = {"forecast": "loss", "largest proxy's loss": "naive", "published exponents": "comparator"}
    for what, key in others.items():
        loss = at(summary, f"forecast.{key}")
        if within(actual, 1e-9, math.inf) and within(loss, 0, math.inf):
            yield f"error of the {what}: {100 * (loss / actual - 1):+.1f}%"
    reach, cost = at(summary, "forecast.reach"), at(summary, "forecast.proxy_cost")
    yield f"target over the largest proxy: {reach}; all proxies' compute over the target's: {cost}"


def planned_tokens(recipe: Path) -> int | None:
    """Tokens of the run that a recipe seals; None if there is no such file."""
    if not recipe.is_file():
        return None
    return int(tomllib.loads(recipe.read_text(encoding="utf-8"))["run"]["tokens"])


def is_sha256(value: object) -> bool:
    """Whether `value` is a SHA-256 in hexadecimal."""
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def main(path: Path) -> int:
    """Print every check of the summary at `path`; 0 if all pass, else 1."""
    summary = json.loads(path.read_text(encoding="utf-8"))
    results = list(checks(summary, planned_tokens(path.with_name("recipe.toml"))))
    for line in printed(summary):
        print(f"look  {line}")
    for what, passed, seen in results:
        print(f"{'ok  ' if passed else 'FAIL'}  {what}: {seen}")
    failed = sum(not passed for _, passed, _ in results)
    print(f"{path}: {len(results) - failed} of {len(results)} checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
