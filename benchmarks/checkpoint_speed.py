"""Speed of checkpoints: Parquet through DCP against torch's own writers, on tmpfs, on disk and on a real S3 server.

Both sides save and load the same fp32 AdamW state in one process, through the same planner of DCP; they alternate, and
each pair gives one ratio. Every file is synced by both. Then: for how long a save in the background keeps its caller,
and by how much it slows training down. Writes benchmarks/checkpoint_speed.md. S3 is Ceph's RADOS Gateway
(tests/data/gateway.py); where that is not installed, its rows say so.

    python benchmarks/checkpoint_speed.py [--pairs 5] [--depth 12] [--disk runs/checkpoint_speed] [--seed 0]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import _machine
import torch
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from froude.checkpoint.reader import READ_THREADS
from froude.checkpoint.retention import Keep
from froude.checkpoint.run_store import RunStore, load_state, save_state
from froude.store import Location

HERE = Path(__file__).resolve().parent
RESULT = HERE / "checkpoint_speed.md"
SAVE, LOAD, COLD = "save", "load", "load, not in memory"
#: Least ratio of speeds to torch's, on each kind of storage; 0: none.
GOALS = {
    "tmpfs": {SAVE: 1.0, LOAD: 3.0},
    "disk": {SAVE: 0.65, LOAD: 3.0, COLD: 0.0},
    "S3": {SAVE: 1.3, LOAD: 3.0},
}
MOST_BLOCKED = 0.15  # of a blocking save, for the call that starts one in the background
WIDTH, VOCAB = 768, 50304
METHOD = """\
The state of AdamW (parameters and both moments, fp32) of a GPT-2 with tied embeddings, in one process. froude:
`save_state` and `load_state` as a run uses them, every block and file hashed and checked. torch: DCP's
FileSystemWriter and -Reader, on S3 FsspecWriter and -Reader with s3fs, as by default, which hash nothing. Both go
through DCP's planner, load in place, and sync each file that they write; each load is compared bit by bit. A load finds
the files as the save left them, in the kernel's memory where they fit, as after a failure of a worker; "not in memory"
is after the kernel has dropped them, and there the disk is what limits it: the last row of a disk says how fast. S3 is
Ceph's RADOS Gateway with a store in memory, on the same cores. Ratios are medians over pairs that take turns."""
SECTIONS = ("tmpfs", "disk", "S3", "background", "training")
State = dict[str, torch.Tensor]
Row = tuple[str, bool]  # a line of the result, and whether its goal is met


def adamw_state(depth: int, seed: int) -> State:
    """Parameters and both moments of a GPT-2 of `depth` layers with tied embeddings: 1.38 GiB with 12."""
    shapes = {"embedding.weight": (VOCAB, WIDTH), "norm.weight": (WIDTH,)}
    for layer in range(depth):
        for name, shape in {
            "attention.qkv": (3 * WIDTH, WIDTH),
            "attention.out": (WIDTH, WIDTH),
            "mlp.up": (4 * WIDTH, WIDTH),
            "mlp.down": (WIDTH, 4 * WIDTH),
            "norm1": (WIDTH,),
            "norm2": (WIDTH,),
        }.items():
            shapes[f"blocks.{layer}.{name}.weight"] = shape
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes.items():
        state[f"model.{name}"] = 0.02 * torch.randn(shape, generator=generator)
        state[f"optimizer.{name}.exp_avg"] = 1e-3 * torch.randn(shape, generator=generator)
        state[f"optimizer.{name}.exp_avg_sq"] = (1e-3 * torch.randn(shape, generator=generator)).square()
    return state


def size(state: State) -> float:
    """GiB."""
    return sum(tensor.nbytes for tensor in state.values()) / 2**30


class Ours:
    def __init__(self, place: Location) -> None:
        self._place = place

    def save(self, state: State) -> None:
        self._parts = save_state(self._place, "data", state)

    def load(self, state: State) -> None:
        load_state(self._place, self._parts, state)

    def clear(self) -> None:
        for part in self._parts:
            (self._place / part.path).delete()


class Torch:
    """DCP's FileSystemWriter and -Reader; on S3 FsspecWriter and -Reader, whose client is s3fs. All as by default."""

    def __init__(self, place: Location) -> None:
        self._place = place
        endpoint = {"client_kwargs": {"endpoint_url": os.environ.get("AWS_ENDPOINT_URL")}}
        self._kinds: Any = (
            (FileSystemWriter, FileSystemReader) if place.is_local else (FsspecWriter, FsspecReader)
        )
        self._options = {} if place.is_local else endpoint

    def save(self, state: State) -> None:
        dcp_save(state, storage_writer=self._kinds[0](self._place.url, **self._options))

    def load(self, state: State) -> None:
        dcp_load(state, storage_reader=self._kinds[1](self._place.url, **self._options))

    def clear(self) -> None:
        for file in self._place.walk():
            file.delete()


def seconds(work: Callable[[], None]) -> float:
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


def against_torch(name: str, place: Location, state: State, pairs: int) -> Iterator[Row]:
    """Rows of speeds. Each side deletes its files before the other begins, so that both find the same memory free."""
    times: dict[str, list[dict[str, float]]] = {what: [] for what in GOALS[name]}
    raw: list[float] = []
    into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}

    def load(side: Ours | Torch) -> float:
        for tensor in into.values():
            tensor.zero_()
        took = seconds(lambda: side.load(into))
        assert all(torch.equal(into[each], state[each]) for each in state)
        return took

    for pair in range(-(name == "tmpfs"), pairs):  # the very first warms up both, and is left out
        sides = {"ours": Ours(place / f"ours-{pair}"), "torch": Torch(place / f"torch-{pair}")}
        took = {}
        for whose in sorted(sides, reverse=pair % 2 == 0):
            side = sides[whose]
            found = took[whose] = {SAVE: seconds(lambda side=side: side.save(state)), LOAD: load(side)}
            if COLD in times:
                forget(place.path)
                found[COLD] = load(side)
                forget(place.path)
                raw.append(seconds(lambda: read_through(place.path)))
            side.clear()
        for what, rows in times.items() if pair >= 0 else ():
            rows.append({whose: took[whose][what] for whose in sides})
    for what, rows in times.items():
        goal, ratios = GOALS[name][what], [row["torch"] / row["ours"] for row in rows]
        speeds = (f"{size(state) / statistics.median(row[whose] for row in rows):.2f}" for whose in sides)
        yield (
            f"| {what}, {name} | {' | '.join(speeds)} | **{statistics.median(ratios):.2f}** "
            f"| {min(ratios):.2f} … {max(ratios):.2f} | {f'≥ {goal}' if goal else ''} |",
            statistics.median(ratios) >= goal,
        )
    if raw:
        gives = f"{size(state) / statistics.median(raw):.2f}"
        yield f"| read by {READ_THREADS} threads and thrown away, {name} | {gives} | | | | |", True


def background(name: str, place: Location, state: State, pairs: int) -> Iterator[Row]:
    """How long the call of a save in the background takes, against a blocking save of the same state."""
    store = RunStore(place, "large", Keep(last=1))
    store.open_attempt("recipe")
    step = 0

    def save(beside: bool) -> float:
        nonlocal step
        step += 1
        return seconds(lambda: store.save(state, step=step, tokens=step, tables={}, background=beside))

    first = save(True)
    store.wait()
    save(False)
    called, blocked = [], []
    for pair in range(pairs):
        for beside in (True, False) if pair % 2 else (False, True):
            (called if beside else blocked).append(save(beside))
            store.wait()
    ratios = [c / b for c, b in zip(called, blocked, strict=True)]
    middle = statistics.median(ratios)
    yield (
        f"| {name} | {statistics.median(blocked):.2f} s | {statistics.median(called):.3f} s | **{middle:.3f}** | "
        f"{min(ratios):.3f} … {max(ratios):.3f} | ≤ {MOST_BLOCKED} | {first:.2f} s |",
        middle <= MOST_BLOCKED,
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
    store = RunStore(place, "large", Keep(last=1))
    store.open_attempt("recipe")
    number = 0

    def step() -> float:
        nonlocal number
        number += 1
        began = time.perf_counter()
        trainer.step(run, number - 1)
        return time.perf_counter() - began

    slower, lost, quiet = [], [], []
    for pair in range(-1, pairs):
        before = statistics.median(step() for _ in range(30))
        store.save(state, step=number, tokens=number, tables={}, background=True)
        written = threading.Event()
        threading.Thread(target=lambda written=written: (store.wait(), written.set())).start()
        beside = []
        while not written.is_set():
            beside.append(step())
        if pair >= 0:
            quiet.append(before)
            slower.append(statistics.median(beside) / before)
            lost.append(sum(beside) - len(beside) * before)
    yield (
        f"| {name} | {1000 * statistics.median(quiet):.0f} ms | **{statistics.median(slower):.2f}** | "
        f"{min(slower):.2f} … {max(slower):.2f} | {statistics.median(lost):.2f} s |",
        True,
    )


@contextlib.contextmanager
def folder_on(root: str | Path) -> Iterator[Location]:
    Path(root).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix="checkpoint-speed-") as folder:
        yield Location.parse(folder)


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    sys.path.insert(0, str(HERE.parent / "tests" / "data"))
    import gateway

    state, pairs = adamw_state(arguments.depth, arguments.seed), arguments.pairs
    places = {"tmpfs": "/dev/shm", "disk": arguments.disk}
    yield "| | froude, GiB/s | torch, GiB/s | ratio | least … most | goal |\n|---|---|---|---|---|---|", True
    for name, root in places.items():
        if name in arguments.only:
            with folder_on(root) as place:
                yield from against_torch(name, place, state, pairs)
    if "S3" in arguments.only and gateway.installed():
        with gateway.serve(capacity=12 << 30) as server, gateway.reached(server):
            place = Location.parse(f"s3://{gateway.new_bucket()}/checkpoints")
            yield from against_torch("S3", place, state, pairs)
    elif "S3" in arguments.only:
        yield "| S3 | not measured: no Ceph gateway is installed | | | | |", False
    yield (
        "\n| saved to | blocking save | call in the background | ratio | least … most | goal | first call |\n"
        "|---|---|---|---|---|---|---|",
        True,
    )
    for name, root in places.items() if "background" in arguments.only else ():
        with folder_on(root) as place:
            yield from background(name, place, state, pairs)
    yield (
        "\n| written to | step before | steps while it is written | least … most | lost by a save |\n"
        "|---|---|---|---|---|",
        True,
    )
    if "training" in arguments.only:
        with folder_on(arguments.disk) as place:
            yield from training("disk", place, state, min(pairs, 3), arguments.seed)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--disk", type=Path, default=HERE.parent / "runs", help="a folder on that disk")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="and write nothing")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    arguments.disk.mkdir(parents=True, exist_ok=True)
    kind = subprocess.check_output(["df", "--output=fstype", arguments.disk], text=True).split()[-1]
    head = f"""# Speed of checkpoints

`python benchmarks/checkpoint_speed.py --pairs {arguments.pairs} --depth {arguments.depth} --seed {arguments.seed}` at
commit {_machine.commit()}, {datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__}, on {_machine.hardware()},
virtual disk with {kind}.

{METHOD}
"""
    found: list[Row] = []
    for row in rows(arguments):
        print(row[0], flush=True)
        found.append(row)
        if arguments.only == SECTIONS:
            RESULT.write_text("\n".join([head, *(line for line, _ in found), ""]))
    missed = [line for line, fine in found if not fine]
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
