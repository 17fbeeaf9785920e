"""Importing and calling code of a user's: what it raises becomes an error that names the user's own file and line."""

from __future__ import annotations

import importlib
import os
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from froude.section import ConfigError

_OURS = Path(__file__).parent
#: Code that a user did not write: the package's, the standard library's, what pip installed.
_OTHERS = (
    _OURS,
    *{Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
)

#: What a user's code may meet that a second try may get past: it stays what it is, and a run is restarted.
PASSING = (OSError, MemoryError)


class Raised(ConfigError):
    """A user's code raised something that is no ConfigError."""


def call_user(
    what: str,
    function: Callable[..., Any],
    *arguments: Any,
    but: tuple[type[Exception], ...] = (),
    remedy: str = "correct it there",
) -> Any:
    """Call a user's function; what it raises becomes a ConfigError that says where, except errors of the types `but`.

    The place is the innermost line of the user's own, which need not be where a library raised. A ConfigError keeps
    its words, and gets the place added.
    """
    try:
        return function(*arguments)
    except but:
        raise
    except ConfigError as error:
        at = place(error)
        if not at or "(at " in str(error):
            raise
        raise ConfigError(f"{error} (at {at})") from error
    except Exception as error:
        at = place(error)
        where = f" (at {at})" if at else ""
        raise Raised(f"{what} must not raise, but got {told(error)}{where}; {remedy}") from error


def load(path: str) -> Any:
    """The object at "package.module:Name"; ConfigError when there is none. `check_trust` comes before."""
    module, _, name = path.partition(":")
    try:
        imported = call_user(
            f"module {module!r}", importlib.import_module, module, but=(ImportError, *PASSING)
        )
        found = getattr(imported, name, None)
    except ImportError as error:
        at = f" (at {where})" if (where := place(error)) else ""
        raise ConfigError(
            f"an import path must name an importable module, but {path!r} does not: {error}{at}; "
            "correct the path or PYTHONPATH"
        ) from None
    if found is None:
        raise ConfigError(f"module {module!r} has no {name!r}; correct the import path {path!r}")
    return found


def told(error: Exception) -> str:
    """An exception's class and message, in one line; of a syntax error also the line that it is about."""
    if isinstance(error, SyntaxError):
        line = (error.text or "").strip()
        return f"{type(error).__name__}: {error.msg}" + (f" in `{line}`" if line else "")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # A line that ends in a colon only announces the one that says it.
    first = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def place(error: BaseException) -> str:
    """file:line of the user's innermost line that led to an error; empty if none did."""
    if isinstance(error, SyntaxError) and error.filename and _own(error.filename):
        return f"{_short(error.filename)}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _own(frame.filename)]
    return f"{_short(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""


def _own(file: str) -> bool:
    path = Path(file)
    if file.startswith("<") or {"site-packages", "dist-packages"} & set(path.parts):
        return False
    return not any(path.is_relative_to(other) for other in _OTHERS)


def _short(file: str) -> str:
    """The path as it is from here, if it is below; else the whole."""
    relative = os.path.relpath(file)
    return os.path.abspath(file) if relative.startswith("..") else relative
