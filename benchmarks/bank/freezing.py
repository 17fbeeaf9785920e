"""What forecasts a bank's larger runs, under one hash that is committed before these begin."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Frozen:
    """The files that match `covered`, seen from the repository's root, as `file` has their digests."""

    file: Path
    covered: tuple[str, ...]

    def digests(self) -> dict[str, str]:
        """SHA-256 of each file that is covered, by its path."""
        files = sorted({file for pattern in self.covered for file in ROOT.glob(pattern)})
        return {
            file.relative_to(ROOT).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
        }

    def whole(self) -> str:
        """The hash that was written down."""
        return str(json.loads(self.file.read_text())["sha256"])

    def when(self) -> datetime:
        """When it was written down."""
        return datetime.fromisoformat(json.loads(self.file.read_text())["time"])

    def changed(self) -> list[str]:
        """The files that are not as they were frozen."""
        kept, now = json.loads(self.file.read_text())["files"], self.digests()
        return sorted(name for name in kept.keys() | now.keys() if kept.get(name) != now.get(name))

    def refuse_unless(self) -> None:
        """SystemExit where the hash is not committed, or something is no longer as it was frozen."""
        of = ["git", "ls-files", "--error-unmatch"], ["git", "diff", "--quiet", "HEAD", "--"]
        committed = self.file.exists() and all(
            subprocess.run([*command, self.file], cwd=ROOT, capture_output=True, check=False).returncode == 0
            for command in of
        )
        if not committed or self.changed():
            why = ", ".join(self.changed()) if committed else f"{self.file.name} is not committed"
            raise SystemExit(
                f"larger runs begin once what forecasts them is frozen, and here it is not ({why}); "
                f"run `python {self.file.parent.relative_to(ROOT)}/freeze.py` and commit the file"
            )

    def write(self) -> None:
        """Write the digests down."""
        found = self.digests()
        sha256 = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
        time = datetime.now(UTC).isoformat(timespec="seconds")
        self.file.write_text(json.dumps({"sha256": sha256, "time": time, "files": found}, indent=1) + "\n")
        print(f"{len(found)} files, {sha256}")
