"""A hundred seeded failures of all kinds: what each costs, and whether a run is still what it would have been.

Works in pieces of `--failures` failures with seeds 0, 1, …, each a run of its own (`froude chaos`), the last of them
on S3; results are kept as JSON lines, so that the same command goes on where it was stopped. `--pieces` ends a call
after so many. Writes benchmarks/chaos.md from what there is. S3 is the server at AWS_ENDPOINT_URL, else Ceph's RADOS
Gateway (tests/data/gateway.py).
The run is that of a recipe, such as the quickstart's, but for its checkpoints, which come every 20 steps, so that many
failures fit between its first and its last.

    python benchmarks/campaign/chaos.py [--recipe runs/quickstart/recipe.toml] [--failures 20] [--seeds 5] [--pieces 1]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from froude.launch.chaos import KINDS
from froude.promote.recipe import FILE, read, seal
from froude.store import Location

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "data")]
import gateway  # noqa: E402
from _machine import commit, cpu  # noqa: E402

EVERY = 20


@contextmanager
def s3_server() -> Iterator[tuple[str, Location]]:
    """Which S3 server it is, and a bucket there: the one at AWS_ENDPOINT_URL, else a gateway of our own."""
    with ExitStack() as stack:
        name = os.environ.get("AWS_ENDPOINT_URL", "")
        if not name:
            name = "Ceph's RADOS Gateway"
            stack.enter_context(gateway.reached(stack.enter_context(gateway.serve())))
        yield name, Location.parse(f"s3://{gateway.new_bucket()}")


def prepared(given: Path, home: Path) -> Path:
    """The recipe with a checkpoint every EVERY steps, sealed again."""
    file = home / "recipe" / FILE
    if not file.exists():
        old = read(Location.parse(given))
        made = seal(
            run=old.run.replace(checkpoint_every=EVERY),
            profile=old.profile,
            fits=old.fits,
            fingerprints=old.fingerprints,
            extrapolation=old.extrapolation,
            checks=old.checks,
            forecast=old.forecast,
        )
        made.write(Location.parse(file))
    return file


def piece(recipe: Path, seed: int, failures: int, kinds: str, where: Location, store: str) -> dict[str, Any]:
    """One run under chaos: what the verb says of it, with what it ran on."""
    steps = read(Location.parse(recipe)).run.steps
    out = where / f"seed-{seed}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    froude = str(Path(sys.executable).with_name("froude"))
    words = ["--failures", str(failures), "--seed", str(seed), "--out", out.url, "--kinds", kinds, "--json"]
    began = time.monotonic()
    done = subprocess.run(
        [froude, "chaos", str(recipe), *words], stdout=subprocess.PIPE, text=True, check=False
    )
    about = {"seed": seed, "store": store, "commit": commit(), "steps": steps}
    if done.returncode not in (0, 1):
        return about | {"aborted": done.returncode}
    found: dict[str, Any] = json.loads(done.stdout)
    return found | about | {"seconds": time.monotonic() - began}


def page(rows: list[dict[str, Any]]) -> list[str]:
    """The results as Markdown."""
    pieces, aborted = [one for one in rows if "aborted" not in one], [one for one in rows if "aborted" in one]
    failures = [failure for one in pieces for failure in one["failures"]]
    survived = [failure for failure in failures if failure["seconds"] is not None]
    bad = [one["seed"] for one in pieces if not one["good"]]
    lines = [
        "# Failures, one after another",
        "",
        f"`python benchmarks/campaign/chaos.py`, {datetime.now(UTC):%Y-%m-%d}, on {cpu()} "
        f"(shared, so times vary), Python {platform.python_version()}; three simulated nodes, the "
        f"quickstart's recipe with a checkpoint every {EVERY} steps.",
        "",
        f"{len(failures)} failures, runs: {len(pieces)}; {len(survived)} were recovered from; verdict: "
        + ("every run is what it would have been." if not bad else f"NOT good for seeds {bad}.")
        + "".join(
            f" Outside of these: a run on {one['store']} (seed {one['seed']}, commit {one['commit']}), which ended "
            f"before its schedule did, with exit code {one['aborted']}."
            for one in aborted
        ),
        "",
        "Seconds for which the run stood still: from the failure, or the last step after it, to the first new step; "
        "where no restart was needed, the longest time without a step.",
        "",
        "| kind | what happens | failures | restarts | median s | worst s |",
        "|---|---|---|---|---|---|",
    ]
    for kind, about in KINDS.items():
        mine = [failure for failure in survived if failure["kind"] == kind]
        if mine:
            seconds = [failure["seconds"] for failure in mine]
            restarts = sum(failure["restarted"] for failure in mine)
            lines.append(
                f"| {kind} | {about.what} | {len(mine)} | {restarts} | {median(seconds):.1f} | {max(seconds):.1f} |"
            )
    lines += [
        "",
        "| seed | store | commit | steps | failures | minutes | verdict | checks |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in pieces:
        passed = sum(check["passed"] for check in one["checks"])
        lines.append(
            f"| {one['seed']} | {one['store']} | {one['commit']} | {one['steps']} | {len(one['failures'])} | "
            f"{one['seconds'] / 60:.1f} | {'good' if one['good'] else 'BAD'} | {passed} of {len(one['checks'])} |"
        )
    lines += ["", "The checks of the last run:", "", "| check | holds | seen |", "|---|---|---|"]
    lines += [
        f"| {c['name']} | {'yes' if c['passed'] else 'NO'} | {c['seen']} |" for c in pieces[-1]["checks"]
    ]
    return [*lines, ""]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", type=Path, default=Path("runs/quickstart") / FILE)
    parser.add_argument("--failures", type=int, default=20, help="of one piece")
    parser.add_argument("--kinds", default="", help="by comma; without it all that are possible")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--pieces", type=int, default=0, help="to run in this call; 0: all that are left")
    parser.add_argument("--out", type=Path, default=Path("runs/chaos"))
    arguments = parser.parse_args()
    home = arguments.out.resolve()
    home.mkdir(parents=True, exist_ok=True)
    results = home / "pieces.jsonl"
    pieces = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    recipe = prepared(arguments.recipe, home)
    done = {one["seed"] for one in pieces if "aborted" not in one}
    left = [seed for seed in range(arguments.seeds) if seed not in done]
    for seed in left[: arguments.pieces or None]:
        if seed == arguments.seeds - 1:
            with s3_server() as (name, bucket):
                made = piece(recipe, seed, arguments.failures, arguments.kinds, bucket, name)
        else:
            local = Location.parse(home)
            made = piece(recipe, seed, arguments.failures, arguments.kinds, local, "a local disk")
        pieces.append(made)
        with results.open("a") as file:
            file.write(json.dumps(made) + "\n")
        if "aborted" in made:
            raise SystemExit(f"seed {seed}: froude chaos ended with exit code {made['aborted']}")
        print(f"seed {seed}: {'good' if made['good'] else 'BAD'} in {made['seconds']:.0f} s", flush=True)
    if any("aborted" not in one for one in pieces):
        lines = page(pieces)
        print("\n".join(lines))
        (HERE / "chaos.md").write_text("\n".join(lines))
    return 0 if all(one.get("good", True) for one in pieces) else 1


if __name__ == "__main__":
    sys.exit(main())
