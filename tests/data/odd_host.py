"""Data that one host of a cluster lacks: where the environment variable ODD_HOST says 2."""

import os

from froude.config import ConfigError
from froude.train.data.markov import Markov


class Mounted(Markov):
    def __init__(self, run, split):
        if os.environ.get("ODD_HOST") == "2":
            raise ConfigError(
                "`data.path` must name at least one file, but '/data' has no file; correct the path"
            )
        super().__init__(run, split)
