"""The command line: a file per verb; what a verb needs is imported when it runs, so that help is quick."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (see DONE … INTERRUPTED in `froude.cli.common`)."""
    try:
        from froude.cli.app import app

        app(list(sys.argv[1:] if argv is None else argv), prog_name="froude")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:  # while modules are imported: later a verb says what to do next
        return 130
    return 0
