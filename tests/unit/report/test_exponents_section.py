"""The report's section on exponents: only where a stage has its role, with promote's own word on what it uses."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from exponent_worlds import add_to

from froude import Study
from froude.promote.fits import USED, fit
from froude.report.document import document
from froude.report.view import gather

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_the_section_says_what_was_measured_and_what_promote_uses(promoted: Any, tmp_path: Path) -> None:
    study = add_to(promoted.copy(tmp_path / "study"))
    fits = fit(study)
    told = unescape(document(gather(study, fits=fits)))
    section = told[told.index('<section id="exponents">') : told.index('<section id="critical">')]
    assert USED[1:] in section
    assert section.count("<svg ") == 8
    assert section.count("<td>measured</td>") == 4
    assert "Bergsma et al. 2505.13738" in section
    assert "2512.05620" in section
    assert re.search(r"<td>best rate over tokens</td><td class=\"number\">\+0\.1\d</td>", section)
    summary = fits.summary()["transfer_exponents"]
    assert {name: each["source"] for name, each in summary.items()} == dict.fromkeys(
        ("lr_tokens", "lr_batch", "timescale_tokens", "half_life_batch"), "measured"
    )
    assert fits.lines()[-1] == f"exponent        {USED}"
    # The loss law's rows lose what their rates cost by the measured exponent; all else is as it was.
    before, now = promoted.fits.summary(), fits.summary()
    assert {key for key in now if now[key] != before.get(key)} == {"transfer_exponents", "loss_law"}
    assert fits.peak_lr == promoted.fits.peak_lr


def test_a_study_without_such_a_stage_has_no_section(finished: Study, promoted: Any) -> None:
    assert not re.search(r'(id="|href="#)exponents"', document(gather(finished, fits=promoted.fits)))
    assert promoted.fits.exponents is None
