"""What becomes of a run on several hosts: each scenario of tests/data/host_scenarios.py alone, from a cluster's start.

A head, three workers, the user and Ceph's RADOS Gateway are hosts made of namespaces (tests/data/host_network.py),
which needs root. Each run ends in `froude verify-run --rerun`, which trains it once more, undisturbed in one process,
and compares every bit. Results are kept as JSON lines, so that the same command goes on where it was stopped. Writes
benchmarks/hosts.md.

    python benchmarks/campaign/hosts.py [--only "lost head"] [--out runs/hosts]
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "data")]
import gateway  # noqa: E402
import host_network  # noqa: E402
import host_scenarios as scenarios  # noqa: E402
from _machine import commit, hardware  # noqa: E402
from host_scenarios import Life  # noqa: E402

PLAIN: dict[str, dict[str, Any]] = {"one": {}, "two": {}, "three": {}}
Play = tuple[dict[str, dict[str, Any]], Callable[[Life], object]]


def rejoin(life: Life) -> None:
    """A cut host comes back, as cluster.yaml would have it: `ray stop`, `ray start`."""
    host = life.workers["three"]
    scenarios.partition(life, "three", left=2)
    before = life.attempt
    host.run("ray", "stop", "--force", environment={})
    life.cluster.join(host)
    life.workers["three"] = host
    life.until(3, "three is back", before)


#: Which workers begin, and what befalls them.
PLAYS: dict[str, Play] = {
    "nothing": (PLAIN, lambda life: None),
    "hostname is 127.0.1.1 on all": ({name: {"names": "loopback"} for name in PLAIN}, lambda life: None),
    "hostname does not resolve on any": ({name: {"names": "none"} for name in PLAIN}, lambda life: None),
    "lost host": (PLAIN, lambda life: scenarios.lost_host(life, "three", left=2)),
    "fresh host": (
        {name: PLAIN[name] for name in ("one", "two")},
        lambda life: scenarios.fresh_host(life, "three", world=3),
    ),
    "partition, then back": (PLAIN, rejoin),
    "lost head": (PLAIN, lambda life: scenarios.lost_head(life, workers=2)),
    "unlike host joins": (
        {name: PLAIN[name] for name in ("one", "two")},
        lambda life: scenarios.unlike_host(life, "unlike", world=2),
    ),
    "clocks 10 minutes apart": (
        {"one": {"clock": -600}, "two": {"clock": -300}, "three": {"clock": -600}},  # behind the promoter's
        lambda life: None,
    ),
    "wrong secret on one host": (
        {"one": {}, "two": {}, "three": {"environment": {"AWS_SECRET_ACCESS_KEY": "mistyped"}}},
        lambda life: None,
    ),
}


def play(name: str, logs: Path) -> dict[str, Any]:
    """One scenario, from the first host to the verdict."""
    workers, befalls = PLAYS[name]
    began = time.monotonic()
    with host_network.Network(logs) as network:
        life = Life(network, steps=600)
        life.begin(workers)
        life.follower.until(lambda record: record["kind"] == "checkpoint", "a checkpoint", life.job)
        befalls(life)
        life.finish()
        verdict = life.verify()
    words = [line for line in life.job.text.splitlines() if "left out" in line or line.startswith("froude:")]
    same = life.finished and "FAIL" not in verdict and verdict.endswith("exit code 0")
    worlds = [record["world"] for record in life.follower.records() if record["kind"] == "attempt"]
    return {
        "name": name,
        "commit": commit("../tests/data"),
        "finished": life.finished,
        "same": same,
        "worlds": worlds,
        "words": words,
        "verdict": verdict,
        "seconds": time.monotonic() - began,
    }


def page(results: list[dict[str, Any]]) -> list[str]:
    """The results as Markdown."""
    lines = [
        "# A run on several hosts, and what befalls it",
        "",
        f"`python benchmarks/campaign/hosts.py`, {datetime.now(UTC):%Y-%m-%d}, on {hardware()}, Python "
        f"{platform.python_version()}. Six hosts or more, made of namespaces on one machine; a run of 600 steps; the "
        "store is Ceph's RADOS Gateway. `Same` is `froude verify-run --rerun`: every parameter, optimizer state and "
        "loss is that of an undisturbed run in one process.",
        "",
        "| what befalls the run | workers of its attempts | finished | same | seconds, all | said | commit |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in results:
        worlds = " → ".join(map(str, one["worlds"]))
        said = "; ".join(one["words"]).replace("|", "/")
        finished, same = ("yes" if one[key] else "NO" for key in ("finished", "same"))
        cells = [one["name"], worlds, finished, same, f"{one['seconds']:.0f}", said, one["commit"]]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=sorted(PLAYS), help="this scenario, again if it has been played")
    parser.add_argument("--out", type=Path, default=Path("runs/hosts"))
    arguments = parser.parse_args()
    if why := host_network.missing() or ("" if gateway.installed() else gateway.MISSING):
        print(f"skipped: {why}", file=sys.stderr)
        return 0
    home = arguments.out.resolve()
    home.mkdir(parents=True, exist_ok=True)
    kept = home / "scenarios.jsonl"
    results = (
        {one["name"]: one for one in map(json.loads, kept.read_text().splitlines())} if kept.exists() else {}
    )
    for name in [arguments.only] if arguments.only else [name for name in PLAYS if name not in results]:
        folder = home / f"{datetime.now(UTC):%Y%m%dT%H%M%S}"
        results[name] = play(name, folder)
        with kept.open("a") as file:
            file.write(json.dumps(results[name]) + "\n")
        print(
            f"{name}: {results[name]['worlds']}, same: {results[name]['same']}; logs in {folder}", flush=True
        )
    lines = page([results[name] for name in PLAYS if name in results])
    print("\n".join(lines))
    (HERE / "hosts.md").write_text("\n".join(lines))
    return 0 if all(one["same"] for one in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
