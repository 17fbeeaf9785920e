"""Train many independent runs, several at once on one device, and keep what each ended at.

A job is a line of JSON: {"name", "run"}. Needs no Polars and no Ray, so that a bare machine with a GPU will do. What
has ended stays in the file of results, a line a run, and the same command goes on.

    python benchmarks/_many_runs.py JOBS RESULTS [--processes 2] [--device cpu] [--minutes 60]
    nvidia-cuda-mps-control -d      # on a GPU first, so that kernels of several processes run side by side
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any


def work(device: str, jobs: Any, done: Any) -> None:
    """Train what comes, until None does."""
    import torch

    from froude.config import Run
    from froude.train.trial import run_trial

    torch.set_num_threads(1)
    for name, settings in iter(jobs.get, None):
        began = time.monotonic()
        try:
            (row,) = run_trial([Run.from_dict(settings)], trial="one", device=device).trials
            result = {"name": name, "status": row["status"], "loss": row["loss"]}
        except (RuntimeError, ValueError, OSError) as error:  # the others go on
            result = {
                "name": name,
                "status": "failed",
                "loss": None,
                "error": f"{type(error).__name__}: {error}",
            }
        done.put(result | {"seconds": round(time.monotonic() - began, 1), "device": device})


def lines(file: Path) -> list[dict[str, Any]]:
    """What a file of JSON lines holds; nothing where there is none."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def train(jobs: Path, results: Path, *, processes: int, device: str, minutes: float = float("inf")) -> int:
    """Train the jobs that have no result yet; return how many are left. None is begun after `minutes`."""
    have = {line["name"] for line in lines(results) if line["status"] != "failed"}
    left = [job for job in lines(jobs) if job["name"] not in have]
    # What takes many steps first: the last to end are short then.
    left.sort(key=lambda job: job["run"]["tokens"] / job["run"]["batch"])
    context = multiprocessing.get_context("spawn")
    todo, done = context.Queue(), context.Queue()
    workers = [context.Process(target=work, args=(device, todo, done)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    began, running, ended, total = time.monotonic(), 0, 0, len(left)

    def send() -> None:
        nonlocal running
        while left and running < processes and time.monotonic() - began < 60 * minutes:
            job = left.pop()
            todo.put((job["name"], job["run"]))
            running += 1

    send()
    while running:
        result = done.get()
        running, ended = running - 1, ended + 1
        with results.open("a") as file:
            file.write(json.dumps(result) + "\n")
        send()
        passed = time.monotonic() - began
        rest = passed / ended * (total - ended) / 60
        print(f"{ended} of {total}: {result['name']} {result['status']}, ~{rest:.0f} min left", flush=True)
    for _ in workers:
        todo.put(None)
    for worker in workers:
        worker.join()
    return len(left)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no run is begun")
    given = parser.parse_args()
    return train(
        given.jobs,
        given.results,
        processes=given.processes,
        device=given.device,
        minutes=given.minutes,
    )


if __name__ == "__main__":
    raise SystemExit(main())
