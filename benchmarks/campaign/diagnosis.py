"""Bugs planted in the code of model and optimizer: does the best rate still transfer, and which cause is named first?

Each bug of tests/data/planted.py, and correct μP and SP: a grid of real trainings over three widths and six rates, the
slope of the best rate over width, and the diagnosis of those runs. Writes benchmarks/diagnosis.md. A case that is in
the file of an earlier call is not trained again.

    python benchmarks/campaign/diagnosis.py [--steps 100] [--out runs/campaign/diagnosis.jsonl]
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import polars as pl
import torch

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "data")]

from _machine import commit, cpu  # noqa: E402
from planted import BUGS, WIDTHS, Bug, runs  # noqa: E402

from froude import laws  # noqa: E402
from froude.promote.diagnosis.diagnose import diagnose  # noqa: E402
from froude.train import parametrization  # noqa: E402
from froude.train.trial import run_trial  # noqa: E402

RATES = [2.0**-k for k in (9.0, 8.0, 7.0, 6.0, 5.0, 4.0)]  # of the base width
CASES = {
    "none, μP": Bug("", runs()),
    "none, SP": Bug("", runs(parametrization="sp")),
    **BUGS,
}
HEAD = [
    "planted",
    "slope of the best rate [95%]",
    "named first",
    "where",
    "measured",
    "rule",
    "named next",
    "runs",
]


def case(planted: str, bug: Bug, steps: int) -> list[str]:
    """Train the grid, fit, diagnose: a row of the table."""
    rows, trained = [], []
    with mock.patch.object(parametrization, "scales", bug.rules):
        for run in bug.runs:
            # Under SP the best rate falls with the width; the grid goes along, so that it has no edge.
            shift = run.model.width / WIDTHS[0] if run.parametrization == "sp" else 1.0
            for rate in RATES:
                changes = {"optimizer.lr": rate / shift, "tokens": run.batch * steps}
                trained.append(run.replace({**changes, "schedule.warmup_tokens": run.batch * steps // 10}))
                rows += run_trial([trained[-1]], trial="t").trials
        frame = pl.DataFrame(rows)
        found = diagnose(trained, frame)
    law = laws.lr_transfer(frame)
    slope = law.slope
    placed = math.isfinite(slope.value)
    text = f"{slope.value:+.2f} [{slope.low:+.2f}, {slope.high:+.2f}]" if placed else f"none ({law.status})"
    first, *others = found.code or (None,)
    cells = [planted, text]
    cells += (
        ["none", "", "", ""]
        if first is None
        else [
            first.name,
            first.where,
            f"{first.measured:+.2f}",
            f"{first.expected:+.2f}",
        ]
    )
    return [*cells, ", ".join(cause.name for cause in others), ", ".join(cause.name for cause in found.runs)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("runs/campaign/diagnosis.jsonl"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.touch()
    table = [json.loads(line) for line in arguments.out.read_text().splitlines()]
    for planted in [name for name in CASES if name not in {row[0] for row in table}]:
        table.append(case(planted, CASES[planted], arguments.steps))
        with arguments.out.open("a") as file:
            file.write(json.dumps(table[-1]) + "\n")
        print("| " + " | ".join(table[-1]) + " |", flush=True)
    table.sort(key=lambda row: list(CASES).index(row[0]))
    right = sum(row[2] == (CASES[row[0]].name or "none") for row in table)
    lines = [
        "# Planted bugs and what is named",
        "",
        f"`python benchmarks/campaign/diagnosis.py --steps {arguments.steps}` at commit {commit()}, "
        f"{datetime.now(UTC):%Y-%m-%d}, on {cpu()} (shared), Python {platform.python_version()}. Widths "
        f"{', '.join(map(str, WIDTHS))}, two blocks, {len(RATES)} rates, King James Bible, seed 0. Measured and rule "
        "are exponents of the width (for epsilon the share of an update that is left). Runs: what their rows show.",
        "",
        "**What it does not show.** Each planted bug breaks one rule, and there is a detector for each rule: this says",
        "that the detectors work, not that a bug which is none of these eight would be named. Transfer curves",
        "themselves show hardly any of them at this size.",
        "",
        "| " + " | ".join(HEAD) + " |",
        "|" + "---|" * len(HEAD),
        *("| " + " | ".join(row) + " |" for row in table),
        "",
        f"Named as planted: {right} of {len(table)}.",
        "",
    ]
    (HERE / "diagnosis.md").write_text("\n".join(lines))
    print("\n".join(lines[-2:]))
    return 0 if right == len(table) else 1


if __name__ == "__main__":
    sys.exit(main())
