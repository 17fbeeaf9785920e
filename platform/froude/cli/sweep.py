"""froude sweep."""

from froude.cli.common import Debug, Json, verb


@verb
def sweep(as_json: Json = False, debug: Debug = False) -> int | None:
    """TODO.

    Example: froude sweep
    """
    return 1
