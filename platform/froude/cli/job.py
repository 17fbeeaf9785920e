"""A verb as the entry point of a Ray job."""

from __future__ import annotations

import sys

from froude.cli import main


def job(verb: str) -> int:
    """Run the verb with the process's arguments; the last line printed holds the exit code."""
    code = main([verb, *sys.argv[1:]])
    print(f"froude {verb}: exit code {code}", flush=True)
    return code
