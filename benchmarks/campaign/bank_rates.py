"""Is the rate that froude would promote the best one for a target of the second bank, 12 times its proxies' compute?

For each of two corpora the rate is what the bank's proxies lead to (`froude.promote.choice.rate`), and neighbours by ½,
1/√2, √2 and 2; all are trained at the size `wide` on two fresh seeds. A cubic in ln rate through them says what the
rate costs, with an interval; the best by the first seed is scored on the second. Proxies from
benchmarks/second_bank/runs.parquet; no loss of a larger run is read. FOLDER is what second_bank/texts.py wrote.

    python benchmarks/campaign/bank_rates.py train --texts FOLDER [--processes 16] [--device cuda]
    python benchmarks/campaign/bank_rates.py --texts FOLDER       # then writes benchmarks/bank_rates.md
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE), str(HERE / "bank"), str(HERE / "campaign"), str(HERE / "second_bank")]
import _many_runs as many  # noqa: E402
from _machine import commit  # noqa: E402
from _recipe_page import ROOT, bottom, compute, regret  # noqa: E402
from runs import CENTRE, LARGER, run_of  # noqa: E402

OUT, KEPT = Path("runs/bank_rates"), HERE / "bank_rates"
CORPORA, SEEDS = ("go", "manuals"), (10, 11)  # the first seed chooses, the second scores
FACTORS = {"rate 1/2": 0.5, "rate 1/√2": 1 / ROOT, "recipe": 1.0, "rate √2": ROOT, "rate 2": 2.0}
SIZE = "wide"


def target(corpus: str, seed: int, lr: float, texts: Path) -> Any:
    """A run of the size, on a corpus."""
    width, depth, steps, _ = LARGER[SIZE]
    return run_of(corpus, seed, width, steps, lr, depth=depth, name=f"{corpus}-{lr:.6g}-s{seed}", texts=texts)


def promoted(corpus: str, texts: Path) -> dict[str, Any]:
    """The rate that the proxies of a corpus lead to, and what an e-fold of compute is worth by their law."""
    kept = KEPT / f"{corpus}.json"
    if kept.exists():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    import polars as pl
    from forecasts import study

    from froude.promote.choice.rate import rate
    from froude.promote.fits import fit
    from froude.promote.promotion import parameters

    rows = pl.read_parquet(HERE / "second_bank" / "runs.parquet")
    rows = rows.filter(pl.col("corpus") == corpus, pl.col("stage").is_in(["rates", "trunks"]))
    aim = target(corpus, 0, CENTRE, texts)
    with tempfile.TemporaryDirectory() as folder:
        fits = fit(study(rows, aim, Path(folder)))
        found, law, params = rate(fits, aim), fits.loss, parameters(aim, trust=True)
    assert found is not None
    assert law is not None
    slope = 0.5 * (law.alpha * law.A / params**law.alpha + law.beta * law.B / aim.tokens**law.beta)
    content = {
        "lr": float(f"{found.promoted:.4g}"),
        "interval": [float(f"{end:.4g}") for end in found.interval],
        "rule": found.rule,
        "nats_per_efold": slope,
        "commit": commit("campaign"),
    }
    KEPT.mkdir(exist_ok=True)
    kept.write_text(json.dumps(content, indent=1) + "\n")
    return content


def jobs(corpus: str, texts: Path) -> list[dict[str, Any]]:
    """The runs of a corpus."""
    lr, made = promoted(corpus, texts)["lr"], []
    for name, factor in FACTORS.items():
        for seed in SEEDS:
            run = target(corpus, seed, lr * factor, texts).as_proxy()
            made.append({"name": f"{corpus} {seed} {name}", "run": run.to_dict()})
    return made


def page(results: list[dict[str, Any]], texts: Path) -> str:
    """The page; SystemExit while runs are missing."""
    ended = {line["name"]: line for line in results if line["status"] != "failed"}
    about = (__doc__ or "").partition("\n\n")[2].partition("\n\n    python")[0].strip()
    lines = ["# The promoted rate at a target of the second bank", "", about, ""]
    lines += [
        "| corpus | rate [90%] | losses, two seeds | best by the first seed | regret on the second, nats | of compute |"
    ]
    lines += ["|" + "---|" * 6]
    cubics = [
        "| corpus | below the rate, the cubic's lowest point, nats [90%] | of compute |",
        "|---|---|---|",
    ]
    for number, corpus in enumerate(CORPORA):
        content, own = promoted(corpus, texts), {}
        for name in FACTORS:
            pair = [ended.get(f"{corpus} {seed} {name}") for seed in SEEDS]
            if not all(pair):
                raise SystemExit("runs are missing; `train` goes on")
            a, b = (math.inf if line["loss"] is None else float(line["loss"]) for line in pair if line)
            own[name] = (a, b)
        best, nats = regret(own, [name for name in FACTORS if name != "recipe"])
        (low, high), (a, b) = content["interval"], own["recipe"]
        lines.append(
            f"| {corpus} | {content['lr']:.3g} [{low:.3g}, {high:.3g}] | {a:.4f}, {b:.4f} | {best} | {nats:+.4f} | "
            f"{compute(nats, content):+.1%} |"
        )
        middle, least, most = bottom(own, number)
        cubics.append(
            f"| {corpus} | {middle:.4f} [{least:.4f}, {most:.4f}] | {compute(middle, content):.1%} "
            f"[{compute(least, content):.1%}, {compute(most, content):.1%}] |"
        )
    return "\n".join([*lines, "", *cubics, "", f"Commit {commit('campaign')}.", ""])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=["jobs", "train"], help="without: write the page")
    parser.add_argument("--texts", type=Path, default=Path("runs/second_bank/texts"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    listed, results = OUT / "jobs.jsonl", KEPT / "results.jsonl"
    if given.what:
        OUT.mkdir(parents=True, exist_ok=True)
        made = [job for corpus in CORPORA for job in jobs(corpus, given.texts)]
        listed.write_text("".join(json.dumps(job) + "\n" for job in made))
    if given.what == "train":
        return int(bool(many.train(listed, results, processes=given.processes, device=given.device)))
    if not given.what:
        text = page(many.lines(results), given.texts)
        (HERE / "bank_rates.md").write_text(text)
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
