"""Train many independent runs, several at once on one device, and keep what each ended at.

A job is a line of JSON: {"name", "fingerprint", "run"}. Needs no Polars and no Ray, so that a bare machine with a GPU
will do. What has ended stays in the file of results, a line a run, and the same command goes on: it trains what has no
result, what failed, and what is another run now under an old name. A process that dies fails its run only.

    python benchmarks/_many_runs.py JOBS RESULTS [--processes 2] [--device cpu] [--minutes 60]
    nvidia-cuda-mps-control -d      # on a GPU first, so that kernels of several processes run side by side
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from _machine import cpu

from froude.config import Run

NOTHING: Mapping[str, str] = {}


def work(device: str, pipe: Any) -> None:
    """Train what comes through the pipe, until None does or nobody is at its other end."""
    import torch

    from froude.train.trial import run_trial

    torch.set_num_threads(1)
    where = torch.cuda.get_device_name(device) if device.startswith("cuda") else cpu()
    with suppress(EOFError, OSError):  # whoever sent jobs is gone
        while (job := pipe.recv()) is not None:
            began = time.monotonic()
            try:
                (row,) = run_trial([Run.from_dict(job["run"])], trial="one", device=device).trials
                result = ended(job, row["status"], row["loss"])
            except (RuntimeError, ValueError, OSError) as error:  # the others go on
                result = ended(job, "failed", error=f"{type(error).__name__}: {error}")
            pipe.send(result | {"seconds": round(time.monotonic() - began, 1), "device": where})


def job_of(name: str, run: Run) -> dict[str, Any]:
    """A line of the file of jobs, which is the same whether the corpus lies here, and a run knows its hash, or not."""
    anywhere = run.model_copy(update={"data": run.data.model_copy(update={"sha256": ""})})
    return {"name": name, "fingerprint": anywhere.fingerprint, "run": run.to_dict()}


def ended(job: dict[str, Any], status: str, loss: float | None = None, error: str = "") -> dict[str, Any]:
    """A line of the file of results; without seconds and device where a run's process died."""
    found = {"name": job["name"], "fingerprint": job["fingerprint"], "status": status, "loss": loss}
    return found | ({"error": error} if error else {})


def lines(file: Path) -> list[dict[str, Any]]:
    """What a file of JSON lines holds, but for a last one that was cut off; nothing where there is none."""
    whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def results_of(
    jobs: Iterable[dict[str, Any]], results: Iterable[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """What each job ended at, by name; those that have not, or failed, are left out."""
    kept = {(line["name"], line["fingerprint"]): line for line in results if line["status"] != "failed"}
    found = {job["name"]: kept.get((job["name"], job["fingerprint"])) for job in jobs}
    return {name: line for name, line in found.items() if line is not None}


def loss_of(line: dict[str, Any]) -> float:
    """Final loss of a result, nats per token; infinite where the run diverged."""
    return math.inf if line["loss"] is None else float(line["loss"])


class Worker:
    """A process that trains one job after another, and the job that it has."""

    def __init__(self, device: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=work, args=(device, other), daemon=True)
        self.process.start()
        other.close()  # so that the pipe ends with the process
        self.job: dict[str, Any] = {}

    def give(self, job: dict[str, Any] | None) -> None:
        self.job = job or {}
        with suppress(OSError):  # it died: `result` says so
            self.pipe.send(job)

    def result(self) -> dict[str, Any]:
        """What its job ended at; "failed", and the process is over, where it died."""
        try:
            found: dict[str, Any] = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return ended(self.job, "failed", error=f"its process died with exit code {self.process.exitcode}")
        return found


def train(
    jobs: Path,
    results: Path,
    *,
    processes: int,
    device: str,
    minutes: float = float("inf"),
    about: Mapping[str, str] = NOTHING,
) -> int:
    """Train the jobs that have no result yet, in their order; return how many have none then.

    None is begun after `minutes`, nor when more processes have died one after another than there are. `about` is what
    each line of results says besides.
    """
    listed, began = lines(jobs), time.monotonic()
    have = results_of(listed, lines(results))
    left = [job for job in reversed(listed) if job["name"] not in have]
    steps = {job["name"]: job["run"]["tokens"] / job["run"]["batch"] for job in left}
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("ab+") as file:  # a line that was cut off would spoil the next one
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
    busy: dict[Any, Worker] = {}
    total, missing, made, died = sum(steps.values()), len(left), 0.0, 0

    def send(worker: Worker | None) -> None:
        if left and died <= processes and time.monotonic() - began < 60 * minutes:
            worker = worker or Worker(device)
            worker.give(left.pop())
            busy[worker.pipe] = worker
        elif worker:
            worker.give(None)
            worker.process.join()

    for _ in range(processes):
        send(None)
    while busy:
        for pipe in wait(list(busy)):
            worker = busy.pop(pipe)
            result = worker.result()
            with results.open("a") as file:
                file.write(json.dumps({**result, **about}) + "\n")
            missing -= result["status"] != "failed"
            made += steps[result["name"]]
            died = died + 1 if not worker.process.is_alive() else 0
            send(worker if worker.process.is_alive() else None)
            rest = (time.monotonic() - began) * (total / made - 1) / 60
            told = result.get("error", result["status"])
            print(f"{made / total:.1%}: {result['name']} {told}, ~{rest:.0f} min left", flush=True)
    if missing:
        print(f"{missing} runs have no result; the same command goes on", flush=True)
    return missing


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", type=Path)
    parser.add_argument("results", type=Path)
    options(parser)
    given = parser.parse_args()
    missing = train(
        given.jobs,
        given.results,
        processes=given.processes,
        device=given.device,
        minutes=given.minutes,
    )
    return 1 if missing else 0


def options(parser: argparse.ArgumentParser) -> None:
    """What says how to train, as `train` takes it."""
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no run is begun")


if __name__ == "__main__":
    raise SystemExit(main())
