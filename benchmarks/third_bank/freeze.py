"""What forecasts the third bank's larger runs, under one hash: laws, promotion, designs, rules and proxies.

python benchmarks/third_bank/freeze.py        # write frozen.json, to be committed before the first larger run begins
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "bank"))
from freezing import Frozen

HERE = Path(__file__).resolve().parent
FROZEN = Frozen(
    HERE / "frozen.json",
    (
        "platform/froude/laws/**/*.py",
        "platform/froude/promote/**/*.py",
        "benchmarks/bank/[drsv]*.py",
        "benchmarks/second_bank/smeared.py",
        "benchmarks/third_bank/*.py",
        "benchmarks/third_bank/proxies.parquet",
    ),
)

if __name__ == "__main__":
    FROZEN.write()
