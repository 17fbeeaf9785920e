"""Speed of checkpoints: Parquet through DCP against torch's own writers, on tmpfs, on disk and on a real S3 server.

All sides save and load the same fp32 AdamW state in one process, through the same planner of DCP; they take turns, and
each turn gives ratios. Every file is synced by all. Then: for how long a save in the background keeps its caller, and
what it costs a training beside it, against torch's `async_save`. Writes benchmarks/checkpoint_speed.md from the
sections that were measured, each by the last call that had it. S3 is Ceph's RADOS Gateway (tests/data/gateway.py);
where that is not installed, its rows say so.

    python benchmarks/checkpoint_speed.py [--pairs 5] [--depth 12] [--disk runs] [--only tmpfs disk] [--seed 0]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import _machine
import torch
from _checkpoint_sides import BESIDE, SIDES, Side, State, adamw_state, size

from froude.checkpoint.reader import READ_THREADS
from froude.store import Location

HERE = Path(__file__).resolve().parent
RESULT = HERE / "checkpoint_speed.md"
SECTIONS = ("tmpfs", "disk", "S3", "background", "training")
SAVE, LOAD, COLD = "save", "load", "load, not in memory"
#: Least ratio of speeds to torch's with as many threads, on each kind of storage; 0: none.
GOALS = {
    "tmpfs": {SAVE: 1.0, LOAD: 3.0},
    "disk": {SAVE: 0.65, LOAD: 3.0, COLD: 0.0},
    "S3": {SAVE: 1.3, LOAD: 3.0},
}
MOST_BLOCKED = 0.15  # of a blocking save, for the call that starts one in the background
PEERS = tuple(SIDES)[1:]
METHOD = """\
The state of AdamW (parameters and both moments, fp32) of a GPT-2 with tied embeddings, in one process. All go through
DCP's planner, load in place, and sync each file that they write; each load is compared bit by bit. A load finds the
files as the save left them, in the kernel's memory where they fit, as after a failure of a worker; "not in memory" is
after the kernel has dropped them, and there the disk is what limits it: the last row of a disk says how fast. S3 is
Ceph's RADOS Gateway with a store in memory, on the same cores. Ratios are medians over turns: how many times as fast
froude is, least … most.

Not shown: several ranks, GPUs (copies off one), a network, disks that keep up with several threads, `async_save` in a
process of its own."""
Row = tuple[str, bool]  # a line of the result, and whether its goal is met


def seconds(work: Callable[[], Any]) -> float:
    gc.collect()
    os.sync()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def forget(folder: Path) -> None:
    """Have the kernel drop what it keeps of these (synced) files, so that a load reads the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_through(folder: Path) -> None:
    """As many threads as a load has, a block at a time, into memory that they have already: what the disk gives."""
    own = threading.local()

    def begin() -> None:
        own.buffer = bytearray(16 << 20)

    def read(place: tuple[Path, int]) -> None:
        with open(place[0], "rb", buffering=0) as file:
            file.seek(place[1])
            file.readinto(own.buffer)

    files = [path for path in folder.rglob("*") if path.is_file()]
    places = [(path, at) for path in files for at in range(0, path.stat().st_size, 16 << 20)]
    with ThreadPoolExecutor(READ_THREADS, initializer=begin) as pool:
        list(pool.map(read, places))


def compared(ours: Sequence[float], other: Sequence[float]) -> tuple[float, str]:
    """Median ratio of times, other over ours, and the same in words with its spread."""
    ratios = [b / a for a, b in zip(ours, other, strict=True)]
    middle = statistics.median(ratios)
    return middle, f"**{middle:.2f}** ({min(ratios):.2f} … {max(ratios):.2f})"


def against_torch(name: str, place: Location, state: State, pairs: int) -> Iterator[Row]:
    """Rows of speeds. Each side deletes its files before the next begins, so that all find the same memory free."""
    sides = [side for side in SIDES if name != "S3" or side != "safetensors"]
    times: dict[str, dict[str, list[float]]] = {what: {side: [] for side in sides} for what in GOALS[name]}
    raw: list[float] = []
    into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}

    def load(side: Side) -> float:
        for tensor in into.values():
            tensor.zero_()
        took = seconds(lambda: side.load(into))
        assert all(torch.equal(into[each], state[each]) for each in state)
        return took

    for pair in range(-1, pairs):  # the first warms up all, and is left out
        turn = pair % len(sides)
        for whose in sides[turn:] + sides[:turn]:
            side: Side = SIDES[whose][2](place / f"{whose}-{pair}")
            took = {SAVE: seconds(lambda side=side: side.save(state)), LOAD: load(side)}
            if COLD in times:
                forget(place.path)
                took[COLD] = load(side)
                forget(place.path)
                raw.append(seconds(lambda: read_through(place.path)))
            side.clear()
            for what in times if pair >= 0 else ():
                times[what][whose].append(took[what])
    for what, of in times.items():
        goal, peers = GOALS[name][what], {peer: compared(of["ours"], of[peer]) for peer in sides[1:]}
        cells = [
            f"{size(state) / statistics.median(of[peer]):.2f} | {peers[peer][1]}" if peer in peers else " | "
            for peer in PEERS
        ]
        yield (
            f"| {what}, {name} | {size(state) / statistics.median(of['ours']):.2f} | {' | '.join(cells)} | "
            f"{f'≥ {goal}' if goal else ''} |",
            peers["torch"][0] >= goal,
        )
    if raw:
        gives = f"{size(state) / statistics.median(raw):.2f}"
        yield f"| read by {READ_THREADS} threads and thrown away, {name} | {gives} |{' |' * 7}", True


def background(name: str, place: Location, state: State, pairs: int) -> Iterator[Row]:
    """How long the call of a save in the background takes, against a blocking save of the same state."""
    sides = {key: make(place) for key, (_, make) in BESIDE.items()}
    first, called, blocked = {}, {key: [] for key in BESIDE}, {key: [] for key in BESIDE}

    def begin(key: str) -> float:
        waits: list[Callable[[], None]] = []
        took = seconds(lambda: waits.append(sides[key].begin(state)))
        waits[0]()
        return took

    for pair in range(-1, pairs):
        turn = pair % len(sides)
        for key in [*sides][turn:] + [*sides][:turn]:
            call, whole = begin(key), seconds(lambda key=key: sides[key].save(state))
            if pair < 0:
                first[key] = call
            else:
                called[key].append(call)
                blocked[key].append(whole)
    for key, (title, _) in BESIDE.items():
        share, words = compared(blocked[key], called[key])
        against = "" if key == "ours" else compared(called["ours"], called[key])[1]
        yield (
            f"| {name} | {title} | {statistics.median(blocked[key]):.2f} s | {statistics.median(called[key]):.3f} s | "
            f"{words} | {first[key]:.2f} s | {against} |",
            key != "ours" or share <= MOST_BLOCKED,
        )


def training(name: str, place: Location, state: State, pairs: int, seed: int) -> Iterator[Row]:
    """Steps of a small model (one thread) while a save of `state` is written, against the steps before it."""
    from froude.config import Run
    from froude.train.parallel import World
    from froude.train.trainer import Trainer

    torch.set_num_threads(1)
    model = {"width": 128, "depth": 4, "context": 64}
    run = Run(tokens=768 * 100_000, batch=768, seed=seed, eval_windows=1, model=model)
    trainer = Trainer(run, World.current("cpu"))
    sides = {key: make(place) for key, (_, make) in BESIDE.items()}
    number = 0

    def step() -> float:
        nonlocal number
        number += 1
        began = time.perf_counter()
        trainer.step(run, number - 1)
        return time.perf_counter() - began

    found: dict[str, list[tuple[float, float, float]]] = {key: [] for key in sides}
    for pair in range(-1, pairs):
        for key, side in sides.items():
            before = statistics.median(step() for _ in range(30))
            began = time.perf_counter()
            wait = side.begin(state)
            written = threading.Event()
            threading.Thread(target=lambda wait=wait, written=written: (wait(), written.set())).start()
            beside = []
            while not written.is_set():
                beside.append(step())
            lost = time.perf_counter() - began - len(beside) * before
            if pair >= 0:
                found[key].append((before, statistics.median(beside) / before, lost))
    for key, (title, _) in BESIDE.items():
        before, slower, lost = zip(*found[key], strict=True)
        yield (
            f"| {name} | {title} | {1000 * statistics.median(before):.0f} ms | **{statistics.median(slower):.2f}** "
            f"({min(slower):.2f} … {max(slower):.2f}) | {statistics.median(lost):.2f} s ({min(lost):.2f} … "
            f"{max(lost):.2f}) |",
            True,
        )


@contextlib.contextmanager
def folder_on(root: str | Path) -> Iterator[Location]:
    Path(root).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix="checkpoint-speed-") as folder:
        yield Location.parse(folder)


def rows(section: str, state: State, given: argparse.Namespace) -> Iterator[Row]:
    sys.path.insert(0, str(HERE.parent / "tests" / "data"))
    import gateway

    places = {"tmpfs": "/dev/shm", "disk": given.disk}
    if section in places:
        with folder_on(places[section]) as place:
            yield from against_torch(section, place, state, given.pairs)
    elif section == "S3" and gateway.installed():
        with gateway.serve(capacity=12 << 30) as server, gateway.reached(server):
            place = Location.parse(f"s3://{gateway.new_bucket()}/checkpoints")
            yield from against_torch("S3", place, state, given.pairs)
    elif section == "S3":
        yield f"| S3: not measured, no Ceph gateway is installed |{' |' * 8}", False
    elif section == "background":
        for name, root in places.items():
            with folder_on(root) as place:
                yield from background(name, place, state, given.pairs)
    else:
        with folder_on(given.disk) as place:
            yield from training("disk", place, state, min(given.pairs, 3), given.seed)


def slower(rows: Iterable[str]) -> str:
    """Where a peer is faster, by the medians, as a sentence."""
    found = []
    for row in rows:
        name, _, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        for peer, cell in zip(PEERS, cells[1::2], strict=False):
            ratio = re.match(r"\*\*([\d.]+)\*\*", cell)
            if ratio and float(ratio[1]) < 1:
                found.append(f'{name} ({ratio[1]} of the speed of "{SIDES[peer][0]}")')
    return f"**Where froude, which alone hashes all it writes and reads, is slower:** {'; '.join(found) or 'nowhere'}."


def page(found: dict[str, dict[str, Any]], given: argparse.Namespace) -> str:
    """What was measured so far, as Markdown."""

    def lines(*sections: str) -> str:
        return "\n".join(line for each in sections if each in found for line, _ in found[each]["rows"])

    speeds = lines("tmpfs", "disk", "S3")
    kind = subprocess.check_output(["df", "--output=fstype", given.disk], text=True).split()[-1]
    heads = " | ".join(f"{SIDES[peer][0]}, GiB/s | ratio" for peer in PEERS)
    origin = "\n".join(
        f"- {name}: {one['pairs']} turns, depth {one['depth']}, seed {one['seed']}, commit {one['commit']}, "
        f"{one['date']}, load {one['load']:.1f} at the start"
        for name, one in found.items()
    )
    return f"""# Speed of checkpoints

{slower(speeds.splitlines())}

{METHOD}

| side | what it is |
|---|---|
{chr(10).join(f"| {title} | {words} |" for title, words, _ in SIDES.values())}

| | froude, GiB/s | {heads} | goal |
|---|---|{"---|" * 2 * len(PEERS)}---|
{speeds}

Saves in the background, all with one thread. `async_save` copies into fresh memory by default; "kept stager" gives it
one `DefaultStager` for all saves, whose memory is used again, as ours is. froude's goal for the call: ≤ {MOST_BLOCKED}
of a blocking save.

| saved to | | blocking save | call in the background | of a blocking save | first call | call over froude's |
|---|---|---|---|---|---|---|
{lines("background")}

A small model's steps while the state is written beside; "lost" is all time beyond that of as many steps before, with
the call:

| written to | | step before | steps while it is written | lost by a save |
|---|---|---|---|---|
{lines("training")}

`python benchmarks/checkpoint_speed.py`, torch {torch.__version__}, on {_machine.cpu()}, virtual disk with {kind}:

{origin}
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5, help="turns of all sides")
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--disk", type=Path, default=HERE.parent / "runs", help="a folder on that disk")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--table", action="store_true", help="only write the table again")
    parser.add_argument("--results", type=Path, default=HERE.parent / "runs" / "checkpoint_speed.json")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    given.disk.mkdir(parents=True, exist_ok=True)
    found = json.loads(given.results.read_text()) if given.results.exists() else {}
    if given.table:
        RESULT.write_text(page({name: found[name] for name in SECTIONS if name in found}, given))
        return 0
    state, missed = adamw_state(given.depth, given.seed), 0
    for section in given.only:
        about = {"pairs": given.pairs, "depth": given.depth, "seed": given.seed, "load": os.getloadavg()[0]}
        about["commit"] = _machine.commit("checkpoint_speed.py", "_checkpoint_sides.py")
        about["date"] = f"{datetime.now(UTC):%Y-%m-%d}"
        made = []
        for row in rows(section, state, given):
            print(row[0], flush=True)
            made.append(row)
        missed += sum(not fine for _, fine in made)
        found[section] = {**about, "rows": made}
        given.results.write_text(json.dumps({name: found[name] for name in SECTIONS if name in found}))
        RESULT.write_text(page({name: found[name] for name in SECTIONS if name in found}, given))
    print(f"goals missed: {missed}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
