"""What forecasts the second bank's larger runs, under one hash: the laws, the promotion, the designs, the rules.

The proxies are trained in the same go as the larger runs, by what is under the hash, and from seeds that are in it.

python benchmarks/second_bank/freeze.py        # write frozen.json, to be committed before anything is trained
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
        "benchmarks/bank/[dprv]*.py",
        "benchmarks/second_bank/*.py",
    ),
)

if __name__ == "__main__":
    FROZEN.write()
