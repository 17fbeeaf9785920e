"""Train the third bank's proxies, and once what forecasts is frozen its larger runs; keep what they ended at.

PROCESSES take one trial after another, each with one thread. No loss is printed. What has ended goes into
proxies.parquet or larger.parquet beside this file, and the same command goes on from there; a trial that can't end by
--until is not begun.

    python benchmarks/third_bank/train.py proxies [--processes 2] [--until SECONDS]
    python benchmarks/third_bank/train.py larger      # refused until frozen.json is committed
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import polars as pl
from packages import text
from trials import CORPORA, TEXTS, Job, ladders, larger, rates

HERE = Path(__file__).resolve().parent
SETTINGS = ("run", "trial", "seed", "width", "depth", "params", "tokens", "batch", "lr", "warmup_tokens")
KEPT = (*SETTINGS, "schedule", "parametrization", "flops", "status", "loss")


def work(job: Job) -> tuple[list[dict[str, Any]], float]:
    """Train one trial; its rows (settings and final loss, nats per token) and the seconds it took."""
    import torch

    from froude.train.trial import run_trial

    torch.set_num_threads(1)
    began = time.time()
    rows = run_trial(job.runs, trial=job.trial, device="cpu").trials
    of = {"corpus": job.corpus, "stage": job.stage, "began": began}
    return [{**of, **{name: row[name] for name in KEPT}} for row in rows], time.time() - began


class Kept:
    """What has ended, in a Parquet file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows = pl.read_parquet(file).to_dicts() if file.exists() else []

    def add(self, rows: list[dict[str, Any]]) -> None:
        self.rows += rows
        part = self.file.with_suffix(".part")
        pl.DataFrame(self.rows).sort("corpus", "stage", "trial", "tokens").write_parquet(part)
        part.replace(self.file)

    def of(self, corpus: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["corpus"] == corpus]

    def left(self, jobs: list[Job]) -> list[Job]:
        have = {(row["corpus"], row["trial"]) for row in self.rows}
        return [job for job in jobs if (job.corpus, job.trial) not in have]


def proxies(kept: Kept) -> list[Job]:
    """What can be trained now: rates, and where they have all ended the ladders."""
    found = []
    for corpus in CORPORA:
        searching = kept.left(rates(corpus))
        found += searching or kept.left(ladders(corpus, kept.of(corpus)))
    return found


def largest(kept: Kept, rows: Kept) -> list[Job]:
    """The larger runs, those that the bank can do without last."""
    found = [job for corpus in CORPORA for job in kept.left(larger(corpus, rows.of(corpus)))]
    return sorted(found, key=lambda job: job.runs[0].seed)


def train(kept: Kept, jobs: Any, processes: int, until: float) -> int:
    """Train what `jobs` gives until it gives nothing; return how many were not begun for want of time."""
    os.environ["OMP_NUM_THREADS"] = "1"
    began, pace, running, late = time.monotonic(), 0.0, {}, set()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        while True:
            busy = {(job.corpus, job.trial) for job in running.values()} | late
            waiting = [job for job in jobs() if (job.corpus, job.trial) not in busy]
            for job in waiting:
                if time.monotonic() - began + pace * job.work > until:
                    late.add((job.corpus, job.trial))
                    continue
                if len(running) == processes:
                    break
                future: Future[Any] = pool.submit(work, job)
                running[future] = job
            if not running:
                return len(late)
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                rows, seconds = future.result()
                kept.add(rows)
                pace = max(pace, seconds / job.work) if job.stage != "rates" else pace
                passed = time.monotonic() - began
                left = sum(other.work for other in waiting) * pace / processes
                print(
                    f"[{passed:.0f} s] {job.corpus} {job.trial}: {seconds:.0f} s; "
                    f"{len(waiting)} wait, ~{left / 60:.0f} min",
                    flush=True,
                )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["proxies", "larger"])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--until", type=float, default=float("inf"), help="seconds from now")
    given = parser.parse_args()
    for corpus in CORPORA:
        text(corpus, TEXTS)
    rows = Kept(HERE / "proxies.parquet")
    if given.what == "proxies":
        late = train(rows, lambda: proxies(rows), given.processes, given.until)
    else:
        from freeze import refuse_unless_frozen

        refuse_unless_frozen()
        kept = Kept(HERE / "larger.parquet")
        late = train(kept, lambda: largest(kept, rows), given.processes, given.until)
    if late:
        print(f"{late} trials not begun for want of time; the same command goes on")
    return 1 if late else 0


if __name__ == "__main__":
    raise SystemExit(main())
