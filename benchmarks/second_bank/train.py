"""Train the second bank, proxies and larger runs, many at once on one GPU, and keep what they ended at.

Nothing is begun unless what forecasts is as it was frozen (frozen.json). Each of PROCESSES takes one trial after
another (NVIDIA's MPS lets their kernels run side by side; start it first). No loss is printed. What has ended stays in
OUT, a line a run, and the same command goes on; a trial that can't end by --until is not begun.

    python benchmarks/second_bank/train.py [--out runs/second_bank] [--processes 16] [--until SECONDS]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

from freeze import FROZEN
from runs import CORPORA, Job, ladders, larger, rates


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
    parser.add_argument("--out", type=Path, default=Path("runs/second_bank"))
    parser.add_argument("--texts", type=Path, default=Path("runs/second_bank/texts"))
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--until", type=float, default=float("inf"), help="seconds from now")
    given = parser.parse_args()
    FROZEN.refuse_unless()
    given.out.mkdir(parents=True, exist_ok=True)
    kept, began = given.out / "runs.jsonl", time.monotonic()
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    of = {corpus: [row for row in rows if row["corpus"] == corpus] for corpus in CORPORA}
    have = {(row["corpus"], row["trial"]) for row in rows}

    def left(jobs: list[Job]) -> list[Job]:
        return [job for job in jobs if (job.corpus, job.trial) not in have]

    def after_rates(corpus: str) -> list[Job]:
        found = [*ladders(corpus, given.texts, of[corpus]), *larger(corpus, given.texts, of[corpus])]
        return left(found)

    waiting: list[Job] = []
    searching: dict[str, int] = {}
    for corpus in CORPORA:
        first = left(rates(corpus, given.texts))
        searching[corpus] = len(first)
        waiting += first or after_rates(corpus)
    context = multiprocessing.get_context("spawn")
    jobs, done = context.Queue(), context.Queue()
    workers = [context.Process(target=work, args=(given.device, jobs, done)) for _ in range(given.processes)]
    for worker in workers:
        worker.start()
    running, pace, failed, late = 0, 0.0, 0, 0

    def send() -> None:
        """Keep every process busy."""
        nonlocal running, late
        waiting.sort(key=lambda job: job.turn, reverse=True)
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
            with kept.open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
        if job.stage == "rates":
            searching[job.corpus] -= 1
            if not searching[job.corpus]:
                waiting += after_rates(job.corpus)
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
