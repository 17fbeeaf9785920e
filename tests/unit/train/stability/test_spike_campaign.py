"""The machinery of benchmarks/campaign/spikes.py, on runs of a few steps."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest


@pytest.fixture
def campaign(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("spike_campaign", root / "benchmarks/campaign/spikes.py")
    assert spec is not None
    assert spec.loader is not None
    monkeypatch.setattr(sys, "path", [*sys.path])
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FIRST", 4)
    monkeypatch.setattr(module, "LAST", 5)
    return module


@pytest.mark.slow
def test_faults_are_planted_where_they_are_said_to_be(campaign: Any) -> None:
    policies = {policy.name: policy for policy in campaign.POLICIES}
    calm = campaign.train(policies["off"], campaign.FAULTS[0], 0, steps=8)
    assert campaign.train(policies["skip"], campaign.FAULTS[0], 0, steps=8)["status"] == "finished"
    for fault in campaign.FAULTS[1:]:
        row = campaign.train(policies["off"], fault, 0, steps=8)
        assert row["loss"] != calm["loss"], fault.name
    early = [campaign.train(policies["off"], fault, 0, steps=4)["loss"] for fault in campaign.FAULTS[:5]]
    # But for its schedule, which is that of a shorter run, nothing is wrong before the fourth batch.
    assert len(set(early)) == 1


def test_what_is_repeated_and_left_out_is_counted(campaign: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Once(campaign.SpikePolicy):
        """Leaves out batch 2, and goes back from batch 5 as a ladder does."""

        def judge(self, step: int, loss: float, norm: float) -> Any:
            here = campaign.Place(step, self.batch)
            if self.batch == 5:
                return self._back(here, here, "planted")
            return self._decide("skip" if self.batch == 2 else "update", here, "planted")

        def _decide(self, action: str, here: Any, why: str) -> Any:
            if action == "skip":
                self.skips.append(here)
            return super()._decide(action, here, why)

    monkeypatch.setattr(campaign.spikes, "BACK", 1)
    monkeypatch.setattr(campaign.spikes, "AHEAD", 3)
    monkeypatch.setattr(campaign, "SAVE_EVERY", 2)
    row = campaign.train(campaign.Policy("once", {}, Once), campaign.FAULTS[0], 0, steps=8)
    # Four updates of batches 0, 1, 3 and 4; back to the state of step 2, before batch 2; 4 to 7 are left out.
    assert (row["status"], row["actions"]) == ("finished", "skip rollback skip")
    assert row["repeated"] == 2 * campaign.BATCH
    assert row["left_out"] == (1 + 4) * campaign.BATCH


def test_the_page_has_medians_over_the_undisturbed_run(campaign: Any) -> None:
    cost = {"repeated": 768, "left_out": 0, "commit": "abc", "hardware": "one core", "seconds": 1.0}
    rows = [
        {"policy": "global clip", "fault": fault, "seed": seed, "status": "finished", "loss": loss + seed}
        | cost
        for fault, losses in (("none", (2.0, 2.0, 2.0)), ("peak rate × 16", (2.5, 2.1, 2.2)))
        for seed, loss in enumerate(losses)
    ]
    rows.append(rows[-1] | {"policy": "skip", "status": "stuck", "loss": None})
    page = campaign.page(pl.DataFrame(rows))
    assert "| global clip | 3 of 3 | +0.200 [+0.100, +0.500] | 768 | 0 |" in page
    assert "| skip | 0 of 1 | none finished | 768 | 0 |" in page
