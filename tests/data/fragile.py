"""A model that raises while a file is there."""

from pathlib import Path

from froude.config import ConfigError
from froude.train.model import Transformer


class Fragile(Transformer):
    """OSError, or with the option `for_good` ConfigError."""

    def __init__(self, run):
        super().__init__(run)
        self.broken = Path(run.model.options["broken"])
        self.kind = ConfigError if run.model.options.get("for_good") else OSError

    def forward(self, tokens):
        if self.broken.exists():
            raise self.kind("the disk is on fire")
        return super().forward(tokens)
