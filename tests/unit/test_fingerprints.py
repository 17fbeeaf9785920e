"""Fingerprints of version 0.1 (commit c6d1cf0) stay valid: studies, recipes and logs are found by them."""

from pathlib import Path
from typing import ClassVar

import pytest

from froude.config import Run, Schedule, Section
from froude.space import Trial, load_space

SPACES = Path(__file__).parents[2] / "search_spaces"

RUNS = {
    "1f2a724f9150e61d": {"tokens": 768},
    "34fc2c588409ff72": {"tokens": 7680, "workers": (1, 3), "reduction": "exact"},
    "7965e4741af64612": {"tokens": 7680, "optimizer": {"name": "sgd"}, "parametrization": "sp"},
}
#: Target, and the first run of each stage.
STUDIES = {
    "quickstart": [
        "882a9620c3a196fd",
        "695fc3c87af278a8",
        "a154d57d35dc064b",
        "306e7869b13bf3e3",
        "782cce1b6a7f7a8c",
    ],
    "hour": [
        "c15e77531213971a",
        "0e776cf107db6647",
        "9acb36f6f9005602",
        "306e7869b13bf3e3",
        "1ce5c034fdc8b14c",
    ],
    "isoflop": ["91129cd224c5ef14", "dccdf0c930882fb0"],
    "lr_transfer": ["709f92907255d9b0", "8897a41e83388f91"],
    "critical_batch": ["62b108d8ff410442", "9546b0536decb146"],
}


@pytest.mark.parametrize(("fingerprint", "settings"), RUNS.items())
def test_a_run_keeps_its_fingerprint(fingerprint, settings):
    assert Run(**settings).fingerprint == fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_a_search_space_keeps_its_fingerprints(name):
    space = load_space(SPACES / f"{name}.py")
    firsts = [trials[0].runs[0].proxy_fingerprint_0_1 for trials in space.planned().values()]
    assert [space.target.fingerprint, *firsts] == STUDIES[name]


def test_a_proxy_names_the_policy_that_it_is_trained_under():
    run = Run(tokens=7680, name="p")
    (proxy,) = Trial("t", (run,)).runs
    assert proxy.stability == "off"
    assert proxy.fingerprint != run.fingerprint == proxy.proxy_fingerprint_0_1
    assert Trial.from_json(Trial("t", (run,)).to_json()).runs == (proxy,)


class Extra(Section):
    section: ClassVar[str] = "extra"
    kind: str = "plain"
    LATER: ClassVar[tuple[str, ...]] = ("kind",)


class Later(Run):
    """A Run of a version to come: a key of its own, and a section with one."""

    extra: Extra = Extra()
    softcap: float = 0.0
    LATER: ClassVar[tuple[str, ...]] = (*Run.LATER, "softcap")


def test_a_later_key_counts_only_where_it_is_not_at_its_default():
    plain = Later(tokens=768)
    assert len({plain.fingerprint, Later(tokens=768, softcap=30.0).fingerprint}) == 2
    assert plain.fingerprint != Later(tokens=768, extra={"kind": "other"}).fingerprint

    class Only(Run):
        softcap: float = 0.0
        LATER: ClassVar[tuple[str, ...]] = (*Run.LATER, "softcap")

    assert Only(tokens=768).fingerprint == "1f2a724f9150e61d"
    assert Only(tokens=768, softcap=30.0).fingerprint != "1f2a724f9150e61d"


def test_a_later_setting_of_a_section_is_that_section_s_own_affair():
    class Scheduled(Schedule):
        exponent: float = 0.25
        LATER: ClassVar[tuple[str, ...]] = (*Schedule.LATER, "exponent")

    class Powerful(Run):
        schedule: Scheduled = Scheduled()

    assert Powerful(tokens=768).fingerprint == "1f2a724f9150e61d"
    assert Powerful(tokens=768, schedule={"exponent": 0.25}).fingerprint == "1f2a724f9150e61d"
    assert Powerful(tokens=768, schedule={"exponent": 0.5}).fingerprint != "1f2a724f9150e61d"


def test_differences_are_named_by_key_with_both_values():
    one = Run(tokens=7680, optimizer={"lr": 1e-3}, data={"sha256": "a" * 64})
    other = one.replace({"optimizer.lr": 2e-3, "data.sha256": "b" * 64, "device": "cpu"})
    assert one.differences(other) == [
        "data.sha256 bbbbbbbbbbbb… instead of aaaaaaaaaaaa…",
        "optimizer.lr 0.002 instead of 0.001",
    ]
