"""All checks in turn, within a time."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from froude.config import Run
from froude.doctor import environment, places, verdicts
from froude.doctor.finding import Examination, Finding
from froude.doctor.ranks import Work, work
from froude.doctor.works import EXACT, TIMED
from froude.hardware.memory import memory
from froude.hardware.sizes import Place
from froude.sweep.sizes import sizes_of

#: Seconds below which a check is not begun.
LEAST = 5.0
#: Numbers of workers at which exactness is tried besides all devices, as far as there are any; on a CPU the first two.
WORLDS = (1, 2, 3, 4, 8)
#: What is done at each number of workers; by one also what comes before and after.
EACH = ("links", "exact")
ALONE = ("devices", "matmul", *EACH, "again")
#: Works whose check has another name.
CHECKS = {"matmul": "matrix products", "exact": "exactness", "again": "determinism"}


def examine(
    *, gpu: bool, store: str = "", minutes: float = 10.0, progress: Callable[[float, str], None] | None = None
) -> Examination:
    """Look at this machine's CPUs, or with `gpu` at its GPUs; `progress` is told the share of the checks and the next.

    A warning names what was not done after so many minutes.
    """
    until, device = time.monotonic() + 60 * minutes, "cuda" if gpu else "cpu"
    findings: list[Finding] = []

    def told(share: float, what: str) -> None:
        if progress:
            progress(share, what)

    told(0.0, "environment")
    findings.append(environment.check(gpu))
    told(0.05, "store")
    findings.append(_guarded("store", lambda: places.check(store)))
    if any(each.verdict == "fail" for each in findings if each.check == "environment"):
        return Examination(gpu, findings)
    steps = [f"step {name}" for name in TIMED[device]]
    alone = _within(until, [*ALONE, *steps], 1, device, told, (0.1, 0.5))
    found = alone.found
    worlds = _worlds(len(found.get("devices") or ()) if gpu else 2)
    many = {1: alone}
    for number, size in enumerate(worlds[1:]):
        shares = [0.5 + 0.5 * each / len(worlds[1:]) for each in (number, number + 1)]
        many[size] = _within(until, EACH, size, device, told, (shares[0], shares[1]))
    if gpu and "devices" in found:
        findings.append(verdicts.devices(found["devices"]))
    findings += _of_one(found, many, steps, gpu)
    findings += _missing(many, steps, minutes)
    told(1.0, "done")
    return Examination(gpu, findings)


def planned_bytes(run: Run, *, gpu: bool) -> int:
    """Bytes of tensors at once that `froude plan --device` counts of one worker."""
    return round(memory(run, sizes_of(run), Place(1, 1), gpu=gpu).peak)


def _worlds(devices: int) -> list[int]:
    """Numbers of workers at which exactness is tried: some, and all that there are devices and slots for."""
    return sorted({size for size in WORLDS if size <= devices} | {min(devices, EXACT.slots)})


def _of_one(
    found: dict[str, Any], many: dict[int, Work], steps: Sequence[str], gpu: bool
) -> Iterator[Finding]:
    if "matmul" in found:
        yield verdicts.matmul(found["matmul"])
    linked = {size: each.found["links"] for size, each in many.items() if each.found.get("links")}
    if linked:
        yield verdicts.links(linked)
    if "again" in found:
        yield verdicts.repeats(found["exact"], found["again"])
    digests = {size: each.found["exact"]["digest"] for size, each in many.items() if "exact" in each.found}
    if len(digests) > 1:
        yield verdicts.exactness(digests)
    for name in steps:
        if name in found:
            short = name.removeprefix("step ")
            run = TIMED["cuda" if gpu else "cpu"][short]
            yield from verdicts.step(short, found[name], planned_bytes(run, gpu=gpu))


def _missing(many: dict[int, Work], steps: Sequence[str], minutes: float) -> Iterator[Finding]:
    """What went wrong, and what there was no time for."""
    left = []
    for size, each in many.items():
        who = f"{size} workers" if size > 1 else ""
        wanted = EACH if size > 1 else [*ALONE, *steps]
        missing = [CHECKS.get(name, name) for name in wanted if name not in each.found]
        if each.ended:
            first = (*missing, wanted[-1])[0]
            yield Finding(f"{first}, {who}" if who else first, "fail", each.ended, "send the file")
        elif each.late and missing:
            left.append(", ".join(missing) + (f" at {who}" if who else ""))
    if left:
        line = f"{minutes:g} minutes are too few for {'; '.join(left)}"
        yield Finding("left out", "warn", line, "give more --minutes")


def _within(
    until: float,
    names: Sequence[str],
    world: int,
    device: str,
    told: Callable[[float, str], None],
    shares: tuple[float, float],
) -> Work:
    left = until - time.monotonic()
    if left < LEAST:
        return Work({}, late=True)
    low, high = shares
    who = f", {world} workers" if world > 1 else ""

    def begun(number: int) -> None:
        told(low + (high - low) * number / len(names), names[min(number, len(names) - 1)] + who)

    return work(names, world=world, device=device, seconds=left, begun=begun)


def _guarded(check: str, action: Callable[[], Finding]) -> Finding:
    """The finding, or the error as one; what a user can correct among them."""
    try:
        return action()
    except (OSError, ValueError) as error:
        return Finding(check, "fail", _words(error), "correct it, or name another")


def _words(error: OSError | ValueError) -> str:
    """An error for people, without this host's name, which a file that is sent must not have, however short it is."""
    if isinstance(error, OSError) and error.strerror:
        said = f"{error.strerror.lower()}: {error.filename}" if error.filename else error.strerror
    else:
        ours = type(error).__module__.partition(".")[0] == "froude"
        said = str(error) if ours else f"{type(error).__name__}: {error}"
    host = re.escape(socket.gethostname())
    return re.sub(rf"(?<!\w)(?:host )?{host}(?!\w)", "this host", said) if host else said
