"""Seconds from a failure to the first new step: froude's elastic run against Ray Train V2 on the same failures.

All sides train the same model with the same FSDP2 code over gloo on a simulated cluster of a head and three nodes, with
a state of half a MiB or of 1 GiB. Sessions (one side, one cluster, a few events) take turns until each side has
`--repeats` of each event; results are kept as JSON lines, so that a later call goes on. Writes benchmarks/recovery.md.

    python benchmarks/recovery.py [--state small] [--repeats 5] [--only ours,spares,tuned,knobs,defaults]
                                  [--events worker,node] [--sessions N] [--table]
    python benchmarks/recovery.py --state large --repeats 3 --only ours,spares,tuned --events worker,node
    python benchmarks/recovery.py --quiet-check MINUTES
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from _machine import commit, cpu
from _recovery_session import EVENT_TIMEOUT, NOTICE_SECONDS
from _recovery_sides import NODES, RUNS, SIDES, START_TIMEOUT, STATES

from froude.launch.knobs import RAY_KNOBS

HERE = Path(__file__).resolve().parent
RESULT = HERE / "recovery.md"
ROWS = HERE.parent / "runs" / "recovery.jsonl"
PEERS = ("tuned", "knobs", "defaults")
#: Events of each side, and what share of `--repeats` is asked of them.
WANTED: dict[str, dict[str, float]] = {
    "ours": {"worker": 1, "node": 1, "added": 0.2, "drain": 0.2, "silent": 0.2},
    "spares": {"worker": 1, "node": 1, "added": 0.2, "drain": 0.2, "silent": 0.2},
    "tuned": {"worker": 1, "node": 1, "silent": 0.2},
    "knobs": {"worker": 1, "node": 1, "silent": 0.2},
    "defaults": {"worker": 1, "node": 1, "silent": 0.2},
}
TITLES = {
    "worker": "worker SIGKILL",
    "node": "node killed",
    "silent": "node silent (SIGSTOP)",
    "added": "node added",
    "drain": f"drain, {NOTICE_SECONDS} s notice",
}
#: What the sides of Ray Train have set, and what it is by default.
SETTINGS = {
    START_TIMEOUT: "60",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "2",
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "600",
    **RAY_KNOBS,
    "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "30",
}

Result = dict[str, Any]


def missing(side: str, state: str, results: Sequence[Result], repeats: int) -> list[str]:
    """Events that this side still owes, in turn, the slowest last."""
    have = Counter(row["event"] for row in results if (row["side"], row["state"]) == (side, state))
    owed = {event: max(math.ceil(share * repeats) - have[event], 0) for event, share in WANTED[side].items()}
    turns = range(max(owed.values(), default=0))
    order = [event for turn in turns for event in owed if owed[event] > turn and event != "silent"]
    return order + ["silent"] * owed["silent"]


def session(side: str, state: str, events: Sequence[str], seconds: float, seed: str) -> Iterator[Result]:
    """Let one side meet these events, or as many as begin in time; ends when its cluster is gone."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        script = str(HERE / "_recovery_session.py")
        words = [script, side, state, json.dumps(events), str(seconds), folder, seed]
        load = os.getloadavg()[0]
        hosts: list[int] = []
        with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    row = json.loads(line)
                    if "host" in row:
                        hosts.append(row["host"])
                    else:
                        yield {
                            "side": side,
                            "state": state,
                            **row,
                            "load": load,
                            "commit": commit("recovery.py", "_recovery_session.py", "_recovery_sides.py"),
                            "niceness": os.nice(0),
                        }
        if process.returncode:
            raise RuntimeError(f"a session of {side} failed, exit code {process.returncode}")
        psutil.wait_procs([psutil.Process(pid) for pid in hosts if psutil.pid_exists(pid)], timeout=60)


def median(rows: Iterable[Result], field: str) -> float:
    """Infinite where most ran into the time-out; nan without rows."""
    values = [math.inf if row[field] is None else row[field] for row in rows if field in row]
    return statistics.median_high(values) if values else math.nan


def number(value: float) -> str:
    return f"> {EVENT_TIMEOUT:.0f}" if math.isinf(value) else "" if math.isnan(value) else f"{value:.1f}"


def spread(rows: Sequence[Result]) -> str:
    """Median (least … greatest)."""
    if not rows:
        return ""
    values = [math.inf if row["seconds"] is None else row["seconds"] for row in rows]
    return (
        f"{number(median(rows, 'seconds'))} ({number(min(values))} … {number(max(values))}), n = {len(rows)}"
    )


def ratio(ours: Sequence[Result], other: Sequence[Result]) -> str:
    """Ratio of medians, and between which values it would be with any two events; empty without events."""
    if not ours or not other:
        return ""
    a, b = (
        [math.inf if row["seconds"] is None else row["seconds"] for row in rows] for rows in (ours, other)
    )
    middle = median(other, "seconds") / median(ours, "seconds")
    return f"**{middle:.1f}×** ({min(b) / max(a):.1f} … {max(b) / min(a):.1f})"


def table(results: Sequence[Result], machine: str, seed: int) -> str:
    """The results as Markdown."""
    cases = [(state, event) for state in STATES for event in TITLES]
    sides = [side for side in SIDES if any(row["side"] == side for row in results)]
    peers = [side for side in PEERS if side in sides]

    def of(side: str, state: str, event: str) -> list[Result]:
        return [row for row in results if (row["side"], row["state"], row["event"]) == (side, state, event)]

    def name(state: str, event: str) -> str:
        return f"{TITLES[event]}, {STATES[state]}"

    lines, detail, ratios = [], [], []
    for state, event in cases:
        cells = [spread(of(side, state, event)) for side in sides]
        if any(cells):
            lines.append(f"| {name(state, event)} | " + " | ".join(cells) + " |")
        for side in ("ours", "spares"):
            against = [ratio(of(side, state, event), of(peer, state, event)) for peer in peers]
            if any(against):
                ratios.append(f"| {name(state, event)} | {SIDES[side].title} | {' | '.join(against)} |")
        for side in sides:
            whole = [row for row in of(side, state, event) if row["seconds"] is not None]
            if whole:
                steps = [row["repeated"] for row in whole]
                detail.append(
                    f"| {name(state, event)} | {SIDES[side].title} | {median(whole, 'seconds'):.1f} | "
                    f"{median(whole, 'loop'):.1f} | {median(whole, 'still'):.1f} "
                    f"({min(r['still'] for r in whole):.1f} … {max(r['still'] for r in whole):.1f}) | "
                    f"{min(steps)} … {max(steps)} |"
                )
    settings = [
        f"| `{key}` | {' | '.join(SIDES[peer].knobs.get(key, value) for peer in peers)} |"
        for key, value in SETTINGS.items()
    ]
    looks = [f"{SIDES[peer].resize:.0f}" if SIDES[peer].resize else "60" for peer in peers]
    every = " and ".join(f"{run.checkpoint_every} ({STATES[state]})" for state, run in RUNS.items())
    titles, dashes = [SIDES[peer].title for peer in peers], "---|" * len(peers)
    return f"""# Recovery of an elastic run

Seconds from a failure to the first step that had not been reached before it: median (least … greatest), number of
events. A head and {NODES} nodes simulated on one machine, one worker each; the same model and FSDP2 code over gloo, a
checkpoint every {every} steps. Events come when the run is settled: {NODES} workers, one checkpoint at least, spares
idle where there are some. An event without a new step after {EVENT_TIMEOUT:.0f} s counts as longer.

**Spares do not run by default here**, where all cores work: they start two minutes into an attempt (at once where nodes
have a core to spare; docs/guide/recovery.md), so a first failure, or the second within two minutes, is met without. The
columns without them come first.

| | {" | ".join(SIDES[side].title for side in sides)} |
|---|{"---|" * len(sides)}
{chr(10).join(lines)}

Ratios of medians, and of the extremes:

| | against | {" | ".join(titles)} |
|---|---|{dashes}
{chr(10).join(ratios)}

Ray is Ray Train V2's TorchTrainer with `num_workers=(1, {NODES})`, plain DCP through `report(checkpoint=…)`, a
large `max_failures`, and these settings; froude's are those of "tuned" with 60 s for a start. After a node's death
Ray goes on asking for that node until its list of nodes, made anew every 20 s, leaves it out; each such try takes
the whole time-out of a start.

| | {" | ".join(titles)} |
|---|{dashes}
{chr(10).join(settings)}
| `elastic_resize_monitor_interval_s` | {" | ".join(looks)} |

Where the time goes (medians), how long no step ends, and how many steps are done twice:

| | | first new step, s | training loop begins, s | stands still, s | steps repeated |
|---|---|---|---|---|---|
{chr(10).join(detail)}

Not shown: separate machines, where nodes have cores of their own and a start takes less; GPUs and NCCL; states beyond
1 GiB; hundreds of workers. The processes of all nodes share these cores, so most of a restart without spares is {NODES}
imports of torch at once.

{quiet_lines(results)}{datetime.now(UTC):%Y-%m-%d}, {origin(results)}, seed {seed}; {machine};
Python {platform.python_version()}, ray {version("ray")}, torch {version("torch")}.
"""


def origin(results: Sequence[Result]) -> str:
    """Commits that were measured, and the priority that the measured processes had."""
    commits = sorted({row["commit"] for row in results if "commit" in row}) or [
        commit("recovery.py", "_recovery_session.py", "_recovery_sides.py")
    ]
    levels = sorted({row["niceness"] for row in results if "niceness" in row})
    loads = [row["load"] for row in results if "load" in row] or [math.nan]
    return (
        f"commit {', '.join(commits)}, niceness {', '.join(map(str, levels))} (Ray's workers: 15 more), "
        f"load before a session {min(loads):.1f} to {max(loads):.1f}"
    )


def quiet_lines(results: Sequence[Result]) -> str:
    """What the quiet checks saw."""
    checks = [row for row in results if row["event"] == "quiet"]
    if not checks:
        return ""
    minutes, restarts = sum(row["minutes"] for row in checks), sum(row["restarts"] for row in checks)
    return (
        f"False alarms of the knobs: {restarts} restarts and {sum(row['dead_nodes'] for row in checks)} dead nodes in "
        f"{minutes:.0f} minutes with {checks[-1]['burners']} processes of other work on all cores "
        f"({sum(row['steps'] for row in checks)} steps).\n\n"
    )


def quiet_check(minutes: float) -> Result:
    """Train with the fast knobs while every core has other work; nothing fails, so nothing may restart."""
    from froude.launch.cluster import simulated
    from froude.launch.elastic import Progress, result_of, train
    from froude.store import Location
    from froude.train.speed.timing import cores

    begun: list[float] = []

    def watch(now: Progress) -> None:
        if now.step:
            begun.append(time.monotonic())
        if begun and time.monotonic() - begun[0] > 60 * minutes:
            raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as folder, simulated(NODES, log_dir=Path(folder) / "logs") as cluster:
        study = Location.parse(folder) / "study"
        burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores())]
        try:
            train(RUNS["small"], study, cluster=cluster, progress=watch, spares=False)
        except KeyboardInterrupt:
            pass
        finally:
            for burner in burners:
                burner.kill()
                burner.wait()
        found = result_of(RUNS["small"], study)
        import ray

        dead = sum(not node["Alive"] for node in ray.nodes())
    return {
        "side": "ours",
        "state": "small",
        "event": "quiet",
        "minutes": minutes,
        "burners": len(burners),
        "restarts": found.restarts,
        "dead_nodes": dead,
        "steps": found.step,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--state", choices=STATES, default="small")
    parser.add_argument("--only", default=",".join(SIDES), help="sides, separated by commas")
    parser.add_argument("--events", default=",".join(TITLES), help="events, separated by commas")
    parser.add_argument("--sessions", type=int, default=1000, help="end after so many sessions")
    parser.add_argument("--session-seconds", type=float, default=180.0, help="no event begins later")
    parser.add_argument("--results", type=Path, default=ROWS, help="JSON lines, added to")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    parser.add_argument("--quiet-check", type=float, metavar="MINUTES", help="only look for false alarms")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.results.parent.mkdir(parents=True, exist_ok=True)
    given.results.touch()

    def results() -> list[Result]:
        return [json.loads(line) for line in given.results.read_text().splitlines()]

    def keep(rows: Iterable[Result]) -> None:
        with given.results.open("a") as file:
            for row in rows:
                print(json.dumps(row), flush=True)
                file.write(json.dumps(row) + "\n")
                file.flush()

    def owed(side: str) -> list[str]:
        chosen = given.events.split(",")
        return [event for event in missing(side, given.state, results(), given.repeats) if event in chosen]

    left = 0 if given.table else given.sessions
    if given.quiet_check:
        keep([quiet_check(given.quiet_check)])
        left = 0
    while left > 0 and any(map(owed, given.only.split(","))):
        for side in given.only.split(","):
            if (events := owed(side)) and left > 0:
                left -= 1
                seed = f"{given.seed} {given.state} {side} {len(results())}"
                keep(session(side, given.state, events, given.session_seconds, seed))
    text = table(results(), cpu(), given.seed)
    RESULT.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
