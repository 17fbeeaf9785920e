"""Is the rate that froude would promote the best one for a target with 14 times the compute of the largest proxy?

On each of the bank's two corpora the rate is what a sub-study of it leads to (`froude.promote.choice.rate`: rates at
widths of 32, 64 and 96 for 480 steps; trunks of widths 32, 48 and 64 for 240 to 960), and neighbours by ½, 1/√2, √2
and 2; all are trained at the size `middle`, 128 wide for 3840 steps, on two fresh seeds. A cubic in ln rate through
them says what the rate costs, with an interval; the best by the first seed is scored on the second. No loss of the
bank's larger runs is read.

    python benchmarks/campaign/bank_rates.py train [--processes 2] [--device cpu] [--minutes 60]
    python benchmarks/campaign/bank_rates.py            # writes benchmarks/bank_rates.md; or says what is missing

Each of the 20 runs takes a core some ten minutes: the second command, that of `make campaign`, trains none. The rates
are kept in benchmarks/bank_rates.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE), str(HERE / "bank"), str(HERE / "campaign")]
import _many_runs as many  # noqa: E402
from _machine import commit  # noqa: E402
from _recipe_noise import FACTORS, ROOT, bottom, compute, diverged, regret  # noqa: E402
from _recipe_page import bottom_words  # noqa: E402
from proxies import CENTRE, LARGER, run_of  # noqa: E402

OUT, KEPT, RESULT = Path("runs/bank_rates"), HERE / "bank_rates", HERE / "bank_rates.md"
CORPORA, SEEDS = ("gcide", "sympy"), (10, 11)  # the first seed chooses, the second scores
SIZE = "middle"
#: Of the ladder in width: widths, horizons in steps, seeds; and the widths at which rates were looked for.
PROXIES: dict[str, Any] = {
    "widths": (32, 48, 64),
    "steps": (240, 480, 960),
    "seeds": (0,),
    "rates": (32, 64, 96),
}
MIDDLE, WORST = 0.05, 0.15  # of compute: what the median, and no study, may cost more than


def target(corpus: str, seed: int, lr: float) -> Any:
    """A run of the size, on a corpus."""
    width, depth, steps, _ = LARGER[SIZE]
    return run_of(corpus, seed, width, steps, lr, depth=depth, name=f"{corpus}-{lr:.6g}-s{seed}")


@cache
def fitted(corpus: str) -> tuple[Any, Any]:
    """The target, and what the package fits to the proxies of a corpus for it."""
    from designs import Design, study

    from froude.promote.fits import fit

    aim = target(corpus, 0, CENTRE)
    with tempfile.TemporaryDirectory() as folder:
        return aim, fit(study(Design(corpus, shapes=(), **PROXIES), aim, Path(folder)))


def promoted(corpus: str) -> dict[str, Any]:
    """The rate that the proxies of a corpus lead to."""
    kept = KEPT / f"{corpus}.json"
    if kept.exists():
        content: dict[str, Any] = json.loads(kept.read_text())
        return content
    from froude.promote.choice.rate import rate

    aim, fits = fitted(corpus)
    found = rate(fits, aim)
    assert found is not None
    content = {
        "lr": float(f"{found.promoted:.4g}"),
        "interval": [float(f"{end:.4g}") for end in found.interval],
        "rule": found.rule,
        "commit": commit("campaign"),
    }
    KEPT.mkdir(exist_ok=True)
    kept.write_text(json.dumps(content, indent=1) + "\n")
    return content


def efold_of(corpus: str) -> float | None:
    """What an e-fold of compute is worth at the target, nats; None where the proxies give no loss law."""
    from froude.promote.promotion import parameters

    aim, fits = fitted(corpus)
    law, params = fits.loss, parameters(aim, trust=True)
    if law is None or not math.isfinite(law.E):
        return None
    return float(0.5 * (law.alpha * law.A / params**law.alpha + law.beta * law.B / aim.tokens**law.beta))


def jobs(corpus: str) -> list[dict[str, Any]]:
    """The runs of a corpus."""
    lr = promoted(corpus)["lr"]
    return [
        many.job_of(f"{corpus} {seed} {name}", target(corpus, seed, float(f"{lr * factor:.4g}")).as_proxy())
        for name, factor in FACTORS.items()
        for seed in SEEDS
    ]


def losses(results: list[dict[str, Any]], corpus: str) -> tuple[dict[str, tuple[float, float]], int]:
    """Final losses of a corpus's runs on both seeds, infinite where one diverged; and how many have not ended."""
    made = jobs(corpus)
    ended = many.results_of(made, results)
    left = len(made) - len(ended)
    if left:
        return {}, left
    a, b = ({name: many.loss_of(ended[f"{corpus} {seed} {name}"]) for name in FACTORS} for seed in SEEDS)
    return {name: (a[name], b[name]) for name in FACTORS}, 0


HEADS = (
    "rate [90%]",
    "promoted at commit",
    "losses of the rate, two seeds",
    "best rate by the first seed",
    "regret on the second, nats",
    "regret of compute",
    "sd of a run's loss about the cubic, nats",
    "equal rates would give, 90%, of compute",
    "below the rate, the cubic's lowest point, nats [90%]",
    "the same of compute",
    "diverged",
)


def column(corpus: str, own: dict[str, tuple[float, float]]) -> tuple[list[str], float]:
    """What HEADS ask of a corpus, and its regret of compute; NaN where no law says what that is."""
    content, efold, low = promoted(corpus), efold_of(corpus), bottom(own, 0)
    noise = low.noise if low else math.nan
    found = regret(own, [name for name in FACTORS if name != "recipe"], noise)
    ends, (a, b), spread = content["interval"], own["recipe"], 1.645 * ROOT * noise
    share = math.nan if efold is None else float(compute(found.nats, efold))
    cells = [
        f"{content['lr']:.3g} [{ends[0]:.3g}, {ends[1]:.3g}]",
        content["commit"],
        f"{a:.4f}, {b:.4f}",
        found.best,
        f"{found.nats:+.4f}",
        "no loss law yet" if efold is None else f"{share:+.1%}",
        "–" if low is None else f"{noise:.4f}",
        "–"
        if efold is None or low is None
        else f"{compute(-spread, efold):+.1%} to {compute(spread, efold):+.1%}",
        *bottom_words(low, efold).split(" | "),
        ", ".join(diverged(own)) or "none",
    ]
    return cells, share


def page(results: list[dict[str, Any]]) -> tuple[str, list[str], bool]:
    """The page of the corpora whose runs have all ended, what is missing, and whether a rate costs too much."""
    columns, shares, missing = [["", *HEADS]], [], []
    for corpus in CORPORA:
        own, left = losses(results, corpus)
        if left:
            missing.append(f"{corpus} ({left} runs)")
            continue
        cells, share = column(corpus, own)
        columns.append([corpus, *cells])
        shares.append(share)
        if math.isnan(share):
            missing.append(f"{corpus} (a loss law)")
    rows = [f"| {' | '.join(row)} |" for row in zip(*columns, strict=True)]
    good = not shares or bool(max(shares) <= WORST and sum(shares) / len(shares) <= MIDDLE)
    asked = f"Asked: of compute at most {MIDDLE:.0%} in the median and {WORST:.0%} on the worse corpus: "
    about = (__doc__ or "").partition("\n\n")[2].partition("\n\n    python")[0].strip()
    ran_on = " and ".join(sorted({line["device"] for line in results if "device" in line}))
    text = [
        "# The promoted rate at a target of the bank",
        "",
        about,
        "",
        rows[0],
        "|" + "---|" * len(columns),
        *rows[1:],
        "",
        "Equal rates: if all had the same loss but for their seeds, the regret of the one that looks best would lie "
        "there.",
        "",
        asked + (f"not known, missing: {', '.join(missing)}." if missing else "yes." if good else "NO."),
        "",
        f"Page written at commit {commit('campaign')}; runs on {ran_on}.",
        "",
    ]
    return "\n".join(text), missing, bool(missing) or good


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=["jobs", "train"], help="without: write the page")
    many.options(parser)
    given = parser.parse_args()
    results = KEPT / "results.jsonl"
    if given.what:
        listed = OUT / "jobs.jsonl"
        OUT.mkdir(parents=True, exist_ok=True)
        made = [job for corpus in CORPORA for job in jobs(corpus)]
        listed.write_text("".join(json.dumps(job) + "\n" for job in made))
        if given.what == "jobs":
            return 0
        left = many.train(
            listed, results, processes=given.processes, device=given.device, minutes=given.minutes
        )
        return 1 if left else 0
    text, missing, good = page(many.lines(results))
    if missing:
        print(f"missing: {', '.join(missing)}; `bank_rates.py train` goes on")
    if any(line["status"] != "failed" for line in many.lines(results)):
        RESULT.write_text(text)
        print(text)
    # What nobody has trained yet is no fault of those scripts that `make campaign` runs next.
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
