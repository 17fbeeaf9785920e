"""Published rules of thumb give their published numbers."""

from __future__ import annotations

import math

import pytest

from froude.laws import rules


def test_the_published_formulae() -> None:
    """Acceptance 2(a): 1B parameters and 20B tokens; 1.2e20 FLOPs."""
    assert rules.step_law(params=1e9, tokens=2e10) == pytest.approx((9.960e-4, 441_892), rel=1e-4)
    assert rules.deepseek(flops=1.2e20) == pytest.approx((9.638e-4, 1.0797e6), rel=1e-4)


def test_beta2_keeps_its_half_life_in_tokens() -> None:
    """Acceptance 2(d): 0.95 at a batch of 512 is 0.9999 at a batch of 1."""
    assert rules.beta2(0.95, batch=512, new_batch=1) == pytest.approx(0.999900, abs=1e-6)
    half = [
        batch * math.log(0.5) / math.log(rules.beta2(0.95, batch=512, new_batch=batch))
        for batch in (1, 64, 4096)
    ]
    assert half == pytest.approx([half[0]] * 3)


def test_arguments_that_are_not_positive_are_named() -> None:
    for name, call in {
        "params": lambda: rules.step_law(params=0, tokens=1e9),
        "tokens": lambda: rules.step_law(params=1e9, tokens=-1),
        "flops": lambda: rules.deepseek(flops=math.nan),
        "beta2": lambda: rules.beta2(1.0, batch=1, new_batch=2),
        "new_batch": lambda: rules.beta2(0.9, batch=1, new_batch=0),
    }.items():
        with pytest.raises(ValueError, match=name):
            call()
