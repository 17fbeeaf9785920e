"""What all verbs share: options, the way from errors to exit codes, and JSON output."""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

if TYPE_CHECKING:
    from froude.store import Location

DONE, FAILED, USAGE, REFUSED, NO_PROGRESS = 0, 1, 2, 3, 4
#: As a shell says of a program that a signal ended: SIGINT, SIGPIPE (nobody read on), SIGTERM.
INTERRUPTED, UNREAD, TERMINATED = 130, 141, 143

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Trust = Annotated[bool, typer.Option("--trust", help="Let runs import code from outside the package.")]
SkipProbe = Annotated[
    list[str] | None,
    typer.Option(
        "--skip-probe",
        metavar="CHECK",
        help="Skip one check of models and data (repeat it for more): corpus, forward, dense, random, gradients, "
        "state, independent, causal.",
        show_default=False,
    ),
]
Address = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="Address of a Ray cluster, e.g. auto; without it RAY_ADDRESS, else --simulate.",
    ),
]
Simulate = Annotated[
    int,
    typer.Option(
        metavar="NODES",
        help="Worker nodes of a cluster simulated here; without a cluster's address one per core, at most 4.",
        min=0,
        show_default=False,
    ),
]
Shared = Annotated[
    bool,
    typer.Option("--shared", help="Say that the local study path is on a file system that all hosts share."),
]
Register = Annotated[
    str,
    typer.Option(
        "--register",
        metavar="URL",
        envvar="FROUDE_REGISTER",
        help="Folder or s3:// URL that keeps the score of every finished study's forecast.",
        show_default=False,
    ),
]

Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="TRACKER",
        help="Send what is committed to wandb:PROJECT, mlflow:URI or tensorboard:DIR (repeat it for more).",
        show_default=False,
    ),
]

P = ParamSpec("P")


def verb(function: Callable[P, int | None]) -> Callable[P, None]:
    """Make a command of a function that returns an exit code: errors go to stderr in a line or two."""

    @functools.wraps(function)
    def command(*args: P.args, **kwargs: P.kwargs) -> None:
        debug, fresh = bool(kwargs.get("debug")), bool(kwargs.get("fresh"))
        code = guarded(lambda: function(*args, **kwargs), debug=debug, fresh=fresh)
        if code:
            raise typer.Exit(code)

    return command


def guarded(action: Callable[[], int | None], *, debug: bool = False, fresh: bool = False) -> int:
    """Run `action` and turn its outcome into an exit code; one that is `fresh` deletes what was there first."""
    from froude.config import ConfigError
    from froude.s3 import Refused
    from froude.sweep.progress import hush

    again = "the same command without --fresh resumes" if fresh else "the same command resumes"
    try:
        return action() or DONE
    except KeyboardInterrupt:
        return say(f"interrupted; {again}", INTERRUPTED)
    except SystemExit as end:
        if end.code != TERMINATED:
            raise
        return say(f"terminated; {again}", TERMINATED)
    except BrokenPipeError:
        hush(sys.stdout)
        return UNREAD
    except Exception as error:  # noqa: BLE001  the one place where any error becomes an exit code
        if debug:
            traceback.print_exc()
        if isinstance(error, ConfigError | Refused):
            return say(str(error), USAGE)
        code = int(getattr(error, "exit_code", FAILED))
        if code == REFUSED:
            return refused(error)
        if type(error).__module__.partition(".")[0] == "polars":
            first = next(iter(str(error).strip().splitlines()), "") or "no message"
            remedy = "`froude checkpoints verify` names the damaged part of a run"
            return say(f"a stored table must be readable, but Polars says: {first}; {remedy}", code)
        hint = "" if debug else " (--debug shows the traceback)"
        return say(f"{type(error).__name__}: {message(error)}{hint}", code)


def message(error: Exception) -> str:
    """An error's message as one line of at most 400 characters; only the last line of another process's traceback."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if any(line.lstrip().startswith(("Traceback (most recent", 'File "')) for line in lines):
        lines = lines[-1:]
    return textwrap.shorten(" ".join(lines), 400, placeholder=" …") or "no message"


def say(text: str, code: int) -> int:
    """Print an error to stderr and return its exit code."""
    print(f"froude: {text}", file=sys.stderr, flush=True)
    return code


def refused(error: Exception) -> int:
    """Print every reason of a refused promotion to stderr, first the one that no override helps against."""
    reasons: tuple[str, ...] = getattr(error, "reasons", (str(error),))
    beyond = getattr(error, "beyond", "")
    print(
        "froude: promotion refused, nothing written" + ("" if beyond else "; failed checks:"), file=sys.stderr
    )
    if beyond:
        print(f"  {beyond}", file=sys.stderr)
        print("failed checks:" if reasons else "all failed checks are overridden", file=sys.stderr)
    for reason in reasons:
        print(f"  {reason}", file=sys.stderr, flush=True)
    return REFUSED


def skipped(names: list[str] | None) -> tuple[str, ...]:
    """The checks of the probe to pass over, printed to stderr; ConfigError for an unknown one."""
    from froude.train.probe.contract import check_names

    if found := check_names(names or ()):
        print(f"froude: the probe skips {', '.join(found)}", file=sys.stderr, flush=True)
    return found


def counted(n: int, noun: str) -> str:
    """A number with its noun, for people."""
    return f"{n:,} {noun if n == 1 else noun + 's'}"


def emit(content: Mapping[str, Any]) -> None:
    """Print one JSON object; NaN and infinities become null."""
    print(json.dumps(plain(content), indent=2, default=str), flush=True)


def plain(value: Any) -> Any:
    """The value, with null in place of anything that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


@contextmanager
def cluster(
    address: str, simulate: int, location: Location, *, shared: bool, what: str = "a study", cpus: int = 1
) -> Iterator[Any]:
    """A running cluster: the one at `address` or RAY_ADDRESS, else a simulated one on this machine.

    One that has only its head yet is waited for. ConfigError if there is none, or if several hosts would use a local
    path, of `what`, that they do not share. A simulated node has `cpus` CPUs.
    """
    from froude.config import ConfigError
    from froude.launch.cluster import connect, log_dir, simulated
    from froude.launch.readiness import check_shared, wait_for_nodes

    if address and simulate:
        raise ConfigError(
            f"a verb runs on one cluster, but got --address {address} and --simulate {simulate}; drop one"
        )
    nodes = simulated_nodes(address, simulate, cpus)
    address = address or os.environ.get("RAY_ADDRESS", "")
    with ExitStack() as stack:
        if nodes:
            yield stack.enter_context(simulated(nodes, cpus_per_node=cpus, log_dir=log_dir(location)))
            return
        try:
            connected = stack.enter_context(connect(address))
        except ConnectionError:
            raise ConfigError(
                f"a Ray cluster must answer at {address}, but none does; start one, or pass --simulate 3"
            ) from None
        except ValueError:
            raise ConfigError(
                f"a Ray cluster's address must be auto or HOST:PORT, but got {address}; a dashboard's URL is for "
                "`ray job submit --address`"
            ) from None
        wait_for_nodes(cpus)
        check_shared(location, shared=shared, what=what)
        yield connected


def simulated_nodes(address: str, simulate: int, cpus: int = 1) -> int:
    """Worker nodes to simulate here: as asked for, else as there are cores for and at most four; 0 with a cluster."""
    from froude.train.speed.timing import cores

    if simulate or address or os.environ.get("RAY_ADDRESS"):
        return simulate
    return min(4, max(1, cores() // cpus))
