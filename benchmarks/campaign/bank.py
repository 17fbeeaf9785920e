"""The bank's verdict: forecasts of its larger runs, by the version that was frozen before them, and by today's.

Replays `benchmarks/bank/replay.py` in a checkout of the commit that froze it, then in this tree. The frozen version's
page comes first in benchmarks/bank.md, what today's version makes of the same runs after it. What is done is kept in
--out, and the same command goes on.

    python benchmarks/campaign/bank.py [--workers 2] [--out runs/bank/replay]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE), str(HERE / "bank")]
from _machine import checkout_of  # noqa: E402
from corpora import CORPORA, text  # noqa: E402
from proxies import FOLDER  # noqa: E402

FROZEN = "bank/frozen.json"
TWICE = """Counts of forecasts include twelve designs in width and depth that are listed twice
(`benchmarks/bank/designs.py`, frozen with the rest); the weights undo that everywhere else.
`deep` and `far` have one seed each."""


def replayed(tree: Path, workers: int, out: Path) -> tuple[str, int]:
    """The page that a tree's replay writes, and its exit code."""
    script = tree / "benchmarks" / "bank" / "replay.py"
    environment = {**os.environ, "PYTHONPATH": str(tree / "platform")}
    call = [sys.executable, str(script), "--workers", str(workers), "--out", str(out)]
    code = subprocess.run(call, cwd=tree, env=environment, check=False).returncode
    page = tree / "benchmarks" / "bank.md"
    if not page.exists():
        raise SystemExit(code or 1)
    return page.read_text(), code


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/bank/replay"))
    given = parser.parse_args()
    out = given.out.resolve()
    targets = sorted((HERE / "bank").glob("*-targets.parquet"))
    if not targets:
        raise SystemExit(
            "the bank has no larger runs yet; train them: python benchmarks/bank/targets.py CORPUS"
        )
    log = ["git", "log", "-1", "--format=%H", "--", FROZEN]
    commit = subprocess.run(log, cwd=HERE, capture_output=True, text=True, check=True).stdout.strip()
    with checkout_of(commit) as tree:
        for file in targets:
            shutil.copy(file, tree / "benchmarks" / "bank")
        # Made here, once: that version's two workers would each fetch a corpus into the same file.
        texts = tree / FOLDER.relative_to(HERE.parent)
        texts.mkdir(parents=True)
        for corpus in CORPORA:
            shutil.copy(text(corpus, FOLDER), texts)
        frozen, code = replayed(tree, given.workers, out)
    today, _ = replayed(HERE.parent, given.workers, out)
    later = today.partition("\n")[2].replace("\n## ", "\n### ").strip()
    (HERE / "bank.md").write_text(
        f"{frozen}\n{TWICE}\n\n## The same by today's version: a later look\n\n{later}\n"
    )
    return code


if __name__ == "__main__":
    raise SystemExit(main())
