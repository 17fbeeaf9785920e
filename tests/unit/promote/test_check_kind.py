"""A check that the gate does not have: one object among the rules, and promote, overrides and plan know it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from froude.config import ConfigError, Run
from froude.promote import checks, gate
from froude.promote.gate import PRODUCTION, Finding, Profile, Rule
from froude.promote.gate_preview import foretell
from froude.promote.promotion import promote
from froude.space import Grid, Space, Trial
from froude.study import Study

OVERRIDE = {"forecast_certified": "a study of minutes"}
OWN: Rule[int] = Rule(
    "own_steps",
    asks=">= {bound:g} steps",
    remedy="train longer",
    measure=lambda case: case.target.steps,
    find=lambda steps, bound: Finding(steps >= bound, f"{steps} steps"),
    bound=1e6,
    foresee=lambda plan: plan.target.steps,
)


@pytest.mark.long
def test_promote_refuses_by_it_until_it_is_overridden(
    tmp_path: Path, study_factory: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study(study_factory(tmp_path / "study"))
    with monkeypatch.context() as with_it:
        with_it.setattr(checks, "RULES", (*checks.RULES, OWN))
        with pytest.raises(gate.Refused) as refusal:
            promote(study, overrides=OVERRIDE)
        assert refusal.value.reasons == (
            "own_steps: must be >= 1e+06 steps, but is 1300 steps; train longer",
        )
        assert refusal.value.checks[-1].name == "own_steps"
        with pytest.raises(ConfigError, match="did you mean `own_steps`"):
            promote(study, overrides={"own_step": "a test"})
        recipe = promote(study, overrides={**OVERRIDE, "own_steps": "a test"})
        assert recipe.overrides == {**OVERRIDE, "own_steps": "a test"}
    with pytest.raises(ConfigError, match="must name a check of the gate, but got `own_steps`"):
        promote(study, overrides={**OVERRIDE, "own_steps": "a test"})
    assert promote(study, overrides=OVERRIDE).overrides == OVERRIDE


def test_plan_foretells_it_by_the_profile_s_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(name="x", model={"width": 32}, tokens=768 * 400, eval_windows=64)
    space = Space("own", 0, (Grid("search", lambda rows: [Trial("a", (run,))], role="search"),), run)

    def said(profile: Profile) -> list[str]:
        return [line for line in foretell(space, profile, proxies=1, target=2).lines() if "own_steps" in line]

    with monkeypatch.context() as with_it:
        with_it.setattr(checks, "RULES", (OWN, *checks.RULES))
        (refused,) = said(PRODUCTION)
        assert refused == (
            "promote would refuse: own_steps: must be >= 1e+06 steps, but is 400 steps; train longer"
        )
        (close,) = said(Profile("short", {"own_steps": 390}))
        assert close == "close: own_steps: must be >= 390 steps, and is 400 steps; train longer"
        assert said(Profile("shorter", {"own_steps": 300})) == []
    assert said(PRODUCTION) == []
