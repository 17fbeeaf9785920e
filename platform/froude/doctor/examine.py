"""All checks in turn, within a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from froude.config import Run
from froude.doctor import environment, places, verdicts
from froude.doctor.finding import Examination, Finding
from froude.doctor.ranks import Work, work
from froude.doctor.works import TIMED
from froude.hardware.memory import memory
from froude.hardware.sizes import Place
from froude.sweep.plan import worker_bytes
from froude.sweep.sizes import sizes_of

#: Seconds below which a check is not begun.
LEAST = 5.0
#: Numbers of workers at which exactness is tried, as far as there are devices; on a CPU the first two.
WORLDS = (1, 2, 3, 4, 8)


def examine(
    *, gpu: bool, store: str = "", minutes: float = 10.0, progress: Callable[[float, str], None] | None = None
) -> Examination:
    """Look at this machine's CPUs, or with `gpu` at its GPUs; `progress` is told the share of the checks and the next.

    What has not begun after so many minutes is a warning that says so.
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
    alone = _within(
        until, ["devices", "matmul", "links", "exact", "again", *steps], 1, device, told, (0.1, 0.5)
    )
    found = alone.found
    worlds = [size for size in WORLDS if size <= (len(found.get("devices") or ()) if gpu else 2)]
    many = {1: alone}
    for number, size in enumerate(worlds[1:]):
        shares = [0.5 + 0.5 * each / len(worlds[1:]) for each in (number, number + 1)]
        many[size] = _within(until, ["links", "exact"], size, device, told, (shares[0], shares[1]))
    if gpu and "devices" in found:
        findings.append(verdicts.devices(found["devices"]))
    findings += _of_one(found, many, steps, gpu)
    findings += _missing(many, steps)
    told(1.0, "done")
    return Examination(gpu, findings)


def planned_bytes(run: Run, *, gpu: bool) -> int:
    """Bytes that the plan says a worker needs: on a GPU of tensors, else of its process."""
    if not gpu:
        return worker_bytes(run)
    return round(memory(run, sizes_of(run), Place(1, 1), gpu=True).peak)


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


def _missing(many: dict[int, Work], steps: Sequence[str]) -> Iterator[Finding]:
    """What did not come to its end."""
    for size, each in many.items():
        if not each.ended:
            continue
        wanted = ["devices", "matmul", "links", "exact", "again", *steps] if size == 1 else ["links", "exact"]
        first = next((name for name in wanted if name not in each.found), wanted[-1])
        late = each.ended.startswith("not begun")
        remedy = "give more --minutes" if late or "no answer" in each.ended else "send the file"
        what = f"{first}, {size} workers" if size > 1 else first
        yield Finding(what, "warn" if late else "fail", each.ended, remedy)


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
        return Work({}, "not begun: no time left")
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
        return Finding(check, "fail", f"{type(error).__name__}: {error}", "correct it, or name another")
