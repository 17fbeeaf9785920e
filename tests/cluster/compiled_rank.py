"""One rank of an exact run whose blocks are compiled without a C++ compiler: the arguments of exact_rank.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from exact_rank import main

from froude.train.speed import compiled

compiled.BACKEND = "aot_eager"
main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
