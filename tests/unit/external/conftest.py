"""A run of ten steps that a command trains, and commands in a few lines of Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from froude.config import Run

TELL = """
import json, os, sys, time
def tell(**line):
    with open(os.environ["FROUDE_METRICS"], "a") as file:
        print(json.dumps(line), file=file)
attempt = int(os.environ["FROUDE_ATTEMPT"])
"""
TRAIN = """
run = json.load(open(os.environ["FROUDE_RUN"]))
tell(params=100, flops_per_token=600)
for step in range(1, 11):
    tell(step=step, loss=4 - step / 10, lr=run["optimizer"]["lr"])
tell(step=10, validation_loss=3.0 + run["seed"] / 100)
"""


@pytest.fixture
def commanded() -> Callable[..., Run]:
    """A run whose command is Python code, started without site-packages, so quickly; `tell` appends a line."""

    def make(code: str = TRAIN, *, name: str = "r", steps: int = 10, **changes: Any) -> Run:
        trainer = {"command": [sys.executable, "-I", "-S", "-c", TELL + code], "retries": 0, "params": 100}
        base = Run(name=name, tokens=768 * steps, slots=1, trainer=trainer)
        return base.replace({key.replace("__", "."): value for key, value in changes.items()}, name=name)

    return make
