"""What forecasts the second bank's larger runs, under one hash: the laws, the promotion, the designs, the rules.

The proxies are trained in the same go as the larger runs, by what is under the hash, and from seeds that are in it.

python benchmarks/second_bank/freeze.py        # write frozen.json, to be committed before anything is trained
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FILE = HERE / "frozen.json"
COVERED = (
    "platform/froude/laws/**/*.py",
    "platform/froude/promote/**/*.py",
    "benchmarks/bank/[dprv]*.py",
    "benchmarks/second_bank/*.py",
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


def frozen() -> str:
    """The hash that was committed."""
    return str(json.loads(FILE.read_text())["sha256"])


def changed() -> list[str]:
    """The files that are not as they were frozen."""
    kept, now = json.loads(FILE.read_text())["files"], digests()
    return sorted(name for name in kept.keys() | now.keys() if kept.get(name) != now.get(name))


def refuse_unless_frozen() -> None:
    """SystemExit where there is no hash, or something is no longer as it was frozen."""
    if not FILE.exists() or changed():
        raise SystemExit(
            "larger runs begin once what forecasts them is frozen, and here it is not "
            f"({', '.join(changed()) if FILE.exists() else 'no frozen.json'}); "
            "run `python benchmarks/second_bank/freeze.py` and commit the file"
        )


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
