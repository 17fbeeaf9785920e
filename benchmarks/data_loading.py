"""Loading of tokens: froude, a plain memory map, Hugging Face datasets and Mosaic Streaming, in one go, by turns.

The same random tokens for all, in each one's own form: windows of 1,024 in batches of 16, in random order, as int64
arrays, each side in a process of its own without further workers. Then how long it takes to go to a place in mid-epoch,
and to sample 10^8 of a sparse file. The peers are installed into environments of their own, in a folder that
may be named. Writes benchmarks/data_loading.md.

    OMP_NUM_THREADS=1 python benchmarks/data_loading.py [--folder FOLDER] [--rounds 9] [--batches 200]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from _loading_sides import BATCH, CONTEXT
from _machine import commit, hardware

from froude.config import Run
from froude.store import Location
from froude.train.api import build_source
from froude.train.data import kjv
from froude.train.data.order import Batches
from froude.train.trainer import Trainer

HERE = Path(__file__).resolve().parent
RESULT = HERE / "data_loading.md"
TOKENS = 1 << 26
PEERS = {"datasets": "datasets", "streaming": "mosaicml-streaming"}
NAMES = {
    "plain": "a plain memory map",
    "ours": "froude, the same file",
    "ours-arrow": "froude, the files of datasets",
    "datasets": "Hugging Face datasets",
    "streaming": "Mosaic Streaming",
}
FAR = 10**8
STEPS = 60
WIDTH = 160  # of the quickstart's large run
HEAD = """# Loading of tokens

{TOKENS:,} random ids of 16 bits, the same for all; windows of {CONTEXT:,} in batches of {BATCH}, in random order, as
int64 arrays; {rounds} rounds of {batches} batches, the sides by turns, each a process without further workers. Medians,
and the lowest and highest.

| side | million tokens/s | froude's over it, paired | open, ms | go to a place, ms | its time over froude's |
|---|---|---|---|---|---|
"""
NOTES = """
To go to a place: `load_state_dict` of `IterableDataset` (8 shards, a buffer of 1,000) and of `StreamingDataset`, then a
batch; froude computes which windows come next. In a source that is open: opening is a column of its own. froude then
hashes files of up to 256 MiB whole, and the peers hash nothing, so at this size a process that opens and resumes takes
longer in all than theirs. `datasets` is compared with froude on the same Arrow files, of which froude holds out
documents by a hash, which is most of its opening there. Not shown: several loader processes a side, compressed shards,
data that are not in the page cache, a store that is far away.
"""


class Side:
    """A side's process."""

    def __init__(self, name: str, python: str, folder: Path) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        if name in PEERS:
            environment.pop("PYTHONPATH", None)
        self.process = subprocess.Popen(
            [python, str(HERE / "_loading_sides.py"), name, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def ask(self, request: str) -> float:
        """Seconds that it took."""
        assert self.process.stdin
        assert self.process.stdout
        print(request, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.process.args} ended at {request!r}")
        return float(json.loads(answer))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def installed(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The Python of each peer, and its version; those that can't be installed are left out."""
    pythons, versions = {}, {}
    for name, package in PEERS.items():
        python = folder / "venvs" / name / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder / "venvs" / name)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--no-compile", package]
        ask = [str(python), "-c", f"import importlib.metadata as m; print(m.version({package!r}))"]
        if subprocess.run(install, check=False).returncode == 0:
            pythons[name] = str(python)
            versions[name] = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
    return pythons, versions


def write_tokens(folder: Path) -> None:
    """The file that all sides' tokens are from, and one to hold out."""
    draw = np.random.default_rng(0)
    (folder / "tokens").mkdir(parents=True, exist_ok=True)
    for name, count in (("train", TOKENS), ("held", 1 << 14)):
        draw.integers(0, 50_000, count, dtype=np.uint16).tofile(folder / "tokens" / f"{name}.bin")


def seek(folder: Path) -> tuple[float, float]:
    """Milliseconds to open a sparse file of 10^8 windows and more, and to read sample 10^8 of a run."""
    (folder / "far").mkdir(exist_ok=True)
    np.zeros(1 << 14, np.uint16).tofile(folder / "far" / "held.bin")
    with (folder / "far" / "train.bin").open("wb") as file:
        file.truncate(2 * CONTEXT * (FAR + 1000))
    data = {
        "source": "froude.train.data.shards:Shards",
        "path": str(folder / "far"),
        "options": {"validation": "held.bin"},
    }
    began = time.perf_counter()
    run = Run(batch=CONTEXT, tokens=CONTEXT, model={"context": CONTEXT, "vocab": 50304}, data=data)
    batches = Batches(build_source(run, "train"), 0, 1, 1)
    opened = time.perf_counter()
    assert batches.slot(FAR, 0).tokens.shape == (1, CONTEXT + 1)
    return 1e3 * (opened - began), 1e3 * (time.perf_counter() - opened)


def training(folder: Path, rounds: int, steps: int) -> list[tuple[float, float]] | None:
    """Seconds of as many steps on shards of the embedded text on disk, and on S3, by turns; None without a gateway."""
    sys.path.insert(0, str(HERE.parent / "tests" / "data"))
    import gateway

    if not gateway.installed():
        return None
    place = folder / "text"
    place.mkdir(exist_ok=True)
    for name, stream in kjv.streams()._asdict().items():
        stream.astype(np.uint16).tofile(place / f"{name}.bin")
    with gateway.serve() as server, gateway.reached(server):
        bucket = Location.parse(f"s3://{gateway.new_bucket()}")
        for path in place.iterdir():
            (bucket / path.name).replace(path.read_bytes())
        local, remote = (Trainer(large_run(path, rounds * steps)) for path in (str(place), bucket.url))
        local.step(local.run, 0)
        remote.step(remote.run, 0)
        found = []
        for i in range(rounds):
            seconds = []
            for trainer in (local, remote) if i % 2 else (remote, local):
                began = time.perf_counter()
                for step in range(1 + i * steps, 1 + (i + 1) * steps):
                    trainer.step(trainer.run, step)
                seconds.append(time.perf_counter() - began)
            found.append((seconds[0], seconds[1]) if i % 2 else (seconds[1], seconds[0]))
    return found


def large_run(path: str, steps: int) -> Run:
    """The shape of the quickstart's large run, on shards."""
    data = {
        "source": "froude.train.data.shards:Shards",
        "path": path,
        "options": {"validation": "validation.bin"},
    }
    return Run(
        batch=768,
        tokens=768 * (steps + 1),
        slots=12,
        reduction="exact",
        model={"width": WIDTH, "depth": 2},
        data=data,
    )


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median, and lowest to highest."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f} … {high:,.{digits}f})"


def measure(
    sides: dict[str, Side], rounds: int, batches: int
) -> tuple[dict[str, list[float]], dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of each round by side: of loading, of opening, of going to a place."""
    loads: dict[str, list[float]] = {name: [] for name in sides}
    opens: dict[str, list[float]] = {name: [] for name in sides}
    resumes: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        side.ask("open")
        side.ask(f"next {batches}")
    for i in range(rounds):
        for name, side in sides.items():
            loads[name].append(side.ask(f"next {batches}"))
        print(f"round {i + 1}: " + ", ".join(f"{n} {v[-1]:.3f} s" for n, v in loads.items()), flush=True)
    for i in range(rounds):
        after = 1000 + 300 * i  # another piece of the permutation each time
        for name, side in sides.items():
            side.ask(f"keep {after}") if name == "datasets" else None
            opens[name].append(side.ask("open"))
            resumes[name].append(side.ask(f"resume {after}"))
    return loads, opens, resumes


def page(
    results: tuple[dict[str, list[float]], ...],
    versions: dict[str, str],
    far: list[tuple[float, float]],
    trained: list[tuple[float, float]] | None,
    rounds: int,
    batches: int,
) -> str:
    """The result page."""
    loads, opens, resumes = results
    lines = HEAD.format(
        TOKENS=TOKENS, CONTEXT=CONTEXT, BATCH=BATCH, rounds=rounds, batches=batches
    ).splitlines()
    work = batches * BATCH * CONTEXT / 1e6
    for name, seconds in loads.items():
        base = "ours-arrow" if name == "datasets" else "ours"
        ratios = [theirs / own for theirs, own in zip(seconds, loads[base], strict=True)]
        places = [theirs / own for theirs, own in zip(resumes[name], resumes[base], strict=True)]
        label = NAMES[name] + (f" {versions[name]}" if name in versions else "")
        peer = name in PEERS
        own = {
            "speed": spread([work / s for s in seconds], 1),
            "ratio": spread(ratios) if peer or name == "plain" else "",
            "open": spread([1e3 * s for s in opens[name]], 1),
            "place": "" if name == "plain" else spread([1e3 * s for s in resumes[name]]),
            "places": spread(places, 0) if peer else "",
        }
        lines.append(f"| {label} | {' | '.join(own.values())} |")
    missing = [NAMES[name] for name in PEERS if name not in loads]
    lines += [
        "",
        *([f"Could not be installed, so not measured: {', '.join(missing)}."] if missing else []),
        "",
    ]
    size = 2 * CONTEXT * FAR / 1e9
    lines += [
        f"Sample 10^8 of a run on a sparse file of {size:,.0f} GB: {spread([t for _, t in far])} ms, in a source that",
        f"took {spread([t for t, _ in far], 0)} ms to open.",
        "",
        on_s3(trained),
        NOTES,
        f"Measured on {datetime.now(UTC):%Y-%m-%d}, commit {commit('data_loading.py', '_loading_sides.py')}, seed 0; "
        f"{hardware()}.",
    ]
    return "\n".join(lines) + "\n"


def on_s3(trained: list[tuple[float, float]] | None) -> str:
    """What training on S3 took."""
    if trained is None:
        return "Ceph's RADOS Gateway is not installed, so training on S3 was not measured."
    ratio = spread([remote / local for local, remote in trained])
    alone = spread([remote for _, remote in trained], 1)
    return (
        f"Training of the shape of the quickstart's large run (width {WIDTH}), on shards of the embedded text in\n"
        f"Ceph's RADOS Gateway on this machine takes {ratio} times what it takes on disk, paired;\n"
        f"{alone} s for {STEPS} steps."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="where the peers' environments and the tokens are; kept")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batches", type=int, default=200)
    chosen = parser.parse_args()
    with ExitStack() as stack:
        folder = chosen.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pythons, versions = installed(folder)
        if not (folder / "tokens" / "train.bin").exists():
            write_tokens(folder)
        pythons = {"plain": sys.executable, "ours": sys.executable} | pythons
        if "datasets" in pythons:
            pythons["ours-arrow"] = sys.executable
        sides = {name: Side(name, pythons[name], folder) for name in NAMES if name in pythons}
        for side in sides.values():
            stack.callback(side.close)
        for name in PEERS:
            if name in sides and not (folder / "made" / name).exists():
                sides[name].ask("make")
                (folder / "made" / name).mkdir(parents=True)
        results = measure(sides, chosen.rounds, chosen.batches)
        far = [seek(folder) for _ in range(chosen.rounds)]
        trained = training(folder, chosen.rounds, STEPS)
        text = page(results, versions, far, trained, chosen.rounds, chosen.batches)
    RESULT.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
