"""What forecasts the third bank's larger runs, under one hash: laws, promotion, training, designs, rules, proxies.

python benchmarks/third_bank/freeze.py        # write frozen.json, to be committed before the first larger run begins
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "bank"))
from freezing import Frozen
from train import Kept, proxies

HERE = Path(__file__).resolve().parent
PARTS = ("laws", "promote", "sweep", "space", "train", "optimizers", "parametrizations", "schedules")
FROZEN = Frozen(
    HERE / "frozen.json",
    (
        *(f"platform/froude/{part}/**/*.py" for part in PARTS),
        "platform/froude/*.py",
        "benchmarks/bank/*.py",
        "benchmarks/second_bank/smeared.py",
        "benchmarks/second_bank/texts.py",
        "benchmarks/third_bank/*.py",
        "benchmarks/third_bank/proxies.parquet",
    ),
)

if __name__ == "__main__":
    if left := proxies(Kept(HERE / "proxies.parquet")):
        raise SystemExit(
            f"{len(left)} proxies are missing; run `python benchmarks/third_bank/train.py proxies`"
        )
    if (HERE / "larger.parquet").exists():
        raise SystemExit(
            "larger.parquet is there: what forecasts the larger runs is frozen before they begin"
        )
    FROZEN.write()
