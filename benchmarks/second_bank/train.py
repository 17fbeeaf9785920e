"""Train the second bank's proxies, or its larger runs, many at once on one GPU, and keep what they ended at.

Each of PROCESSES takes one trial after another (NVIDIA's MPS lets their kernels run side by side; start it first). No
loss of a larger run is printed. What has ended stays in OUT, a line a trial, and the same command goes on; a trial that
can't end by --until is not begun.

    python benchmarks/second_bank/train.py proxies --out runs/second_bank [--processes 16] [--until SECONDS]
    python benchmarks/second_bank/train.py larger --out runs/second_bank
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

from runs import CORPORA, Job, ladders, larger, rates

ROWS = {"proxies": "proxies.jsonl", "larger": "larger.jsonl"}


def work(device: str, jobs: Any, done: Any) -> None:
    """Train what comes, until None does."""
    import torch

    from froude.train.trial import run_trial

    torch.set_num_threads(1)
    for job in iter(jobs.get, None):
        began, error, rows = time.time(), "", []
        try:
            rows = run_trial(job.runs, trial=job.trial, device=device).trials
        except (RuntimeError, ValueError, OSError) as failed:  # the others go on
            error = f"{type(failed).__name__}: {failed}"
        done.put((job, rows, began, time.time(), error))


def told(row: dict[str, Any], job: Job, began: float) -> dict[str, Any]:
    """What is kept of a run: settings and final loss (nats per token)."""
    names = ("run", "trial", "seed", "width", "depth", "params", "tokens", "batch", "lr", "warmup_tokens")
    more = ("schedule", "parametrization", "flops", "status", "loss")
    kept = {name: row[name] for name in (*names, *more)}
    return {"corpus": job.corpus, "stage": job.stage, **kept, "began": began}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=list(ROWS))
    parser.add_argument("--out", type=Path, default=Path("runs/second_bank"))
    parser.add_argument("--texts", type=Path, default=Path("runs/second_bank/texts"))
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--until", type=float, default=float("inf"), help="seconds from now")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    kept = {name: given.out / file for name, file in ROWS.items()}
    rows = {
        name: [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        for name, file in kept.items()
    }
    began = time.monotonic()
    of = {corpus: [row for row in rows["proxies"] if row["corpus"] == corpus] for corpus in CORPORA}
    have = {(row["corpus"], row["trial"]) for row in rows[given.what]}

    def left(jobs: list[Job]) -> list[Job]:
        return [job for job in jobs if (job.corpus, job.trial) not in have]

    waiting: list[Job] = []
    searching: dict[str, int] = {}
    for corpus in CORPORA:
        if given.what == "larger":
            waiting += left(larger(corpus, given.texts, of[corpus]))
            continue
        first = left(rates(corpus, given.texts))
        searching[corpus] = len(first)
        waiting += first or left(ladders(corpus, given.texts, of[corpus]))
    context = multiprocessing.get_context("spawn")
    jobs, done = context.Queue(), context.Queue()
    workers = [context.Process(target=work, args=(given.device, jobs, done)) for _ in range(given.processes)]
    for worker in workers:
        worker.start()
    running, pace, failed, late = 0, 0.0, 0, 0

    def send() -> None:
        """Keep every process busy, the longest trial first."""
        nonlocal running, late
        waiting.sort(key=lambda job: job.work)
        while waiting and running < given.processes:
            job = waiting.pop()
            if time.monotonic() - began + pace * job.work > given.until:
                late += 1
                continue
            jobs.put(job)
            running += 1

    send()
    while running:
        job, found, started, ended, error = done.get()
        running -= 1
        if error:
            failed += 1
            print(f"{job.corpus} {job.trial}: {error}", flush=True)
        else:
            pace = max(pace, (ended - started) / job.work)
            lines = [told(row, job, started) for row in found]
            of[job.corpus] += lines
            with kept[given.what].open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
        if job.stage in ("rates", "horizon_rates"):
            searching[job.corpus] -= 1
            if not searching[job.corpus]:
                waiting += left(ladders(job.corpus, given.texts, of[job.corpus]))
        send()
        seconds = time.monotonic() - began
        print(
            f"[{seconds:.0f} s] {job.corpus} {job.trial} {ended - started:.0f} s; {len(waiting)} wait",
            flush=True,
        )
    for _ in workers:
        jobs.put(None)
    for worker in workers:
        worker.join()
    print(f"{failed} failed, {late} not begun for want of time", flush=True)
    return 1 if failed or late else 0


if __name__ == "__main__":
    raise SystemExit(main())
