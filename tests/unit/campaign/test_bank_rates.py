"""benchmarks/campaign/bank_rates.py: its runs can be built, and its page waits for them without an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from froude.config import Run
from froude.train.api import build_model, count_parameters


@pytest.fixture
def campaign(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for folder in ("benchmarks", "benchmarks/bank", "benchmarks/campaign"):
        monkeypatch.syspath_prepend(root / folder)
    import bank_rates
    import proxies

    text = tmp_path / "text.txt"
    text.write_bytes(b"not the corpus")
    monkeypatch.setattr(proxies, "text", lambda corpus, folder: text)
    monkeypatch.setattr(bank_rates, "KEPT", tmp_path)
    monkeypatch.setattr(bank_rates, "RESULT", tmp_path / "bank_rates.md")
    for corpus in bank_rates.CORPORA:
        name = f"{corpus}.json"
        (tmp_path / name).write_bytes((root / "benchmarks/bank_rates" / name).read_bytes())
    return bank_rates


def run(campaign: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", ["bank_rates.py"])
    return int(campaign.main())


def ended(campaign: Any, corpora: tuple[str, ...], losses: list[float | None]) -> None:
    """End the runs of corpora at a loss by rate, in the order of the factors."""
    lines = []
    for corpus in corpora:
        for job, number in zip(campaign.jobs(corpus), range(10), strict=True):
            loss = losses[number // 2]
            status = "diverged" if loss is None else "finished"
            lines.append(campaign.many.ended(job, status, loss and loss + 0.001 * (-1) ** number))
            lines[-1]["device"] = "a card"
    (campaign.KEPT / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_target_is_of_the_size_that_the_page_names(campaign: Any) -> None:
    jobs = campaign.jobs("gcide")
    assert len({job["fingerprint"] for job in jobs}) == 10
    run = Run.from_dict(jobs[0]["run"])
    wide = run.replace({"model.width": 96, "tokens": 480 * run.batch})
    longest = run.replace({"model.width": 64, "tokens": 960 * run.batch})
    assert 14 < flops(run) / max(flops(wide), flops(longest)) < 14.5


def flops(run: Run) -> float:
    return 6.0 * count_parameters(build_model(run, "meta")).params * run.tokens


def test_runs_that_are_missing_are_no_error(
    campaign: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(campaign, monkeypatch) == 0
    assert "missing: gcide (10 runs), sympy (10 runs)" in capsys.readouterr().out
    assert not campaign.RESULT.exists()


def test_a_corpus_without_a_law_and_a_rate_that_diverged_leave_a_page(
    campaign: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "efold_of", lambda corpus: {"gcide": 0.07}.get(corpus))
    ended(campaign, campaign.CORPORA, [1.01, 1.0, 1.0, 1.02, None])
    assert run(campaign, monkeypatch) == 0
    page = campaign.RESULT.read_text()
    assert "| no loss law yet |" in page
    assert "| diverged | rate 2 | rate 2 |" in page
    assert "not known, missing: sympy (a loss law)." in page
    assert "nan" not in page


def test_a_rate_that_costs_too_much_does_not_hold(campaign: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "efold_of", lambda corpus: 0.07)
    ended(campaign, campaign.CORPORA, [1.0, 1.02, 1.05, 1.1, 1.2])
    assert run(campaign, monkeypatch) == 1
    assert campaign.RESULT.read_text().count("NO.") == 1
    ended(campaign, campaign.CORPORA, [None, 1.02, 1.05, None, None])
    assert run(campaign, monkeypatch) == 1
    assert "nan" not in campaign.RESULT.read_text()
    ended(campaign, campaign.CORPORA, [1.1, 1.05, 1.0, 1.05, 1.1])
    assert run(campaign, monkeypatch) == 0
