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
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import polars as pl
from packages import text
from trials import CORPORA, TEXTS, Job, ladders, larger, rates

HERE = Path(__file__).resolve().parent
SETTINGS = ("run", "trial", "seed", "width", "depth", "params", "tokens", "batch", "lr", "warmup_tokens")
KEPT = (*SETTINGS, "schedule", "parametrization", "flops", "status", "loss")


def work(job: Job) -> tuple[list[dict[str, Any]], float, str]:
    """Train one trial; its rows (settings and final loss, nats per token), the seconds it took, and what went wrong."""
    import torch

    from froude.train.trial import run_trial

    torch.set_num_threads(1)
    began = time.time()
    try:
        rows = run_trial(job.runs, trial=job.trial, device="cpu").trials
    except (RuntimeError, ValueError, OSError) as failed:  # the others go on
        return [], 0.0, f"{type(failed).__name__}: {failed}"
    of = {"corpus": job.corpus, "stage": job.stage, "began": began}
    return [{**of, **{name: row[name] for name in KEPT}} for row in rows], time.time() - began, ""


class Kept:
    """What has ended, in a Parquet file."""

    def __init__(self, file: Path, **more: str) -> None:
        self.file, self.more = file, more
        self.rows = pl.read_parquet(file).to_dicts() if file.exists() else []

    def add(self, rows: list[dict[str, Any]]) -> None:
        self.rows += [row | self.more for row in rows]
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
    """The larger runs, the longest first, but last those that the bank can do without."""
    found = [job for corpus in CORPORA for job in kept.left(larger(corpus, rows.of(corpus)))]
    return sorted(found, key=lambda job: (job.runs[0].seed, -job.work))


def train(kept: Kept, jobs: Callable[[], list[Job]], processes: int, until: float) -> int:
    """Train what `jobs` gives until it gives nothing; return how many were not begun for want of time, or failed."""
    os.environ["OMP_NUM_THREADS"] = "1"
    began, pace, running, set_aside = time.monotonic(), 0.0, {}, set()

    def keep(future: Future[Any]) -> None:
        nonlocal pace
        job = running.pop(future)
        rows, seconds, error = future.result()
        told = f"[{time.monotonic() - began:.0f} s] {job.corpus} {job.trial}: {error or f'{seconds:.0f} s'}"
        if error:
            set_aside.add((job.corpus, job.trial))
        else:
            kept.add(rows)
            pace = max(pace, seconds / job.work) if job.stage != "rates" else pace
        left = sum(other.work for other in waiting) * pace / processes / 60
        print(f"{told}; {len(waiting)} wait, ~{left:.0f} min", flush=True)

    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        try:
            while True:
                busy = {(job.corpus, job.trial) for job in running.values()} | set_aside
                waiting = [job for job in jobs() if (job.corpus, job.trial) not in busy]
                while waiting and len(running) < processes:
                    job = waiting.pop(0)
                    if time.monotonic() - began + pace * job.work > until:
                        set_aside.add((job.corpus, job.trial))
                    else:
                        running[pool.submit(work, job)] = job
                if not running:
                    return len(set_aside)
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    keep(future)
        finally:  # what ends after a Ctrl-C is kept, too
            for future in [future for future in running if future.done()]:
                keep(future)


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
        from freeze import FROZEN

        FROZEN.refuse_unless()
        kept = Kept(HERE / "larger.parquet", frozen=FROZEN.whole())
        late = train(kept, lambda: largest(kept, rows), given.processes, given.until)
    if late:
        print(f"{late} trials failed, or were not begun for want of time; the same command goes on")
    return 1 if late else 0


if __name__ == "__main__":
    raise SystemExit(main())
