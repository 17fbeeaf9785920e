"""What forecasts the bank's larger runs, under one hash: the laws, the promotion, the designs and rules, the proxies.

python benchmarks/bank/frozen.py        # write frozen.json, to be committed before the first larger run begins
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FILE = HERE / "frozen.json"
COVERED = (
    "platform/froude/laws/**/*.py",
    "platform/froude/promote/**/*.py",
    "benchmarks/bank/[!f]*.py",
    "benchmarks/bank/*-proxies.parquet",
)


def digests() -> dict[str, str]:
    """SHA-256 of each file that is covered, by its path."""
    files = sorted({file for pattern in COVERED for file in ROOT.glob(pattern)})
    return {
        file.relative_to(ROOT).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    }


def whole(found: dict[str, str]) -> str:
    """One hash over paths and digests."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def changed() -> list[str]:
    """The files that are not as they were frozen."""
    kept, now = json.loads(FILE.read_text())["files"], digests()
    return sorted(name for name in kept.keys() | now.keys() if kept.get(name) != now.get(name))


def frozen() -> str:
    """The hash that was committed."""
    return str(json.loads(FILE.read_text())["sha256"])


def refuse_unless_frozen() -> str:
    """Return the committed hash; SystemExit where there is none. `changed` says what is no longer as it was then."""
    tracked = subprocess.run(
        ["git", "ls-files", "--error-unmatch", str(FILE)], cwd=ROOT, capture_output=True, check=False
    )
    edited = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", str(FILE)], cwd=ROOT, check=False)
    if tracked.returncode or edited.returncode:
        raise SystemExit(
            "larger runs begin once what will forecast them is committed, but frozen.json is not; "
            "run `python benchmarks/bank/frozen.py` and commit the file"
        )
    return frozen()


def main() -> None:
    found = digests()
    FILE.write_text(
        json.dumps(
            {"sha256": whole(found), "time": datetime.now(UTC).isoformat(timespec="seconds"), "files": found},
            indent=1,
        )
        + "\n"
    )
    print(f"{len(found)} files, {whole(found)}")


if __name__ == "__main__":
    main()
