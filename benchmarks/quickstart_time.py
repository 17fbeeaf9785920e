"""Whether the quickstart became slower: two versions of froude, one after the other and then the other way round.

Each plays seed 0 from an empty folder, as `make quickstart` does, at the default number of proxies at once. Printed are
the seconds of each whole loop, as its own summary.json has them, the ratio of each pair and their median, and
whether digest, laws, forecast and loss are the same. The other version is a git revision, checked out into a temporary
folder. Written to benchmarks/quickstart_time.md.

    python benchmarks/quickstart_time.py REVISION [--pairs 2]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _machine import HERE, checkout_of, commit, hardware
from held_still import COMMAND, differences


def play(checkout: Path, out: Path) -> dict[str, Any]:
    """The summary of one quickstart with the package of this checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "platform")}
    command = [*COMMAND, "quickstart", "--seed", "0", "--out", str(out)]
    subprocess.run(command, env=environment, cwd=checkout, check=True, stdout=subprocess.DEVNULL)
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def told(summary: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on the clock; the seal is left out, which names the proxies' fingerprints."""
    forecast = {key: value for key, value in summary["forecast"].items() if key != "sha256"}
    laws = {key: summary[key] for key in ("best", "lr_transfer", "critical_batch", "actual")}
    return {**laws, "forecast": forecast, "digest": summary["elastic"]["digest"]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revision", help="of git: the version before")
    parser.add_argument("--pairs", type=int, default=2)
    given = parser.parse_args()
    started, rows, same = hardware(), [], True
    with checkout_of(given.revision) as before, tempfile.TemporaryDirectory() as folder:
        sides = [("before", before), ("after", HERE.parent)]
        for pair in range(given.pairs):
            found = {
                name: play(checkout, Path(folder) / f"{name}-{pair}")
                for name, checkout in (sides if pair % 2 == 0 else reversed(sides))
            }
            others = list(differences(told(found["before"]), told(found["after"])))
            print("\n".join(others), end="\n" if others else "", flush=True)
            same = same and not others
            seconds = [float(found[name]["seconds"]["total"]) for name in ("before", "after")]
            rows.append((*seconds, seconds[1] / seconds[0]))
            print(f"pair {pair + 1}: {seconds[0]:.0f} s, {seconds[1]:.0f} s, {rows[-1][2]:.3f}", flush=True)
    ratios = [row[2] for row in rows]
    lines = [
        "# The quickstart's time",
        "",
        f"Commit {commit()} against {given.revision}, seed 0, from an empty folder. {started}. "
        "Written by benchmarks/quickstart_time.py.",
        "",
        "| pair | before, s | after, s | ratio |",
        "|---|---|---|---|",
        *(
            f"| {i} | {one:.0f} | {other:.0f} | {ratio:.3f} |"
            for i, (one, other, ratio) in enumerate(rows, 1)
        ),
        "",
        f"Median ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} … {max(ratios):.3f}). Digest, laws, "
        f"forecast and loss are {'the same' if same else '**not the same**'}.",
        "",
    ]
    (HERE / "quickstart_time.md").write_text("\n".join(lines))
    print("\n".join(lines))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
