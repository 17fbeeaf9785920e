"""Phases of a run: tokens to steps and back, the same data in the same order, and what a ramp must not be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from froude.config import ConfigError, Run, whole_steps
from froude.schedules.phases import Phase, Phases
from froude.train.data.order import Batches


class Numbered:
    """A source whose window is its number."""

    sha256 = ""

    def __init__(self, length: int) -> None:
        self.length = length

    def read(self, first: int, n: int) -> np.ndarray[Any, Any]:
        return np.full((n, 3), first)


def run_with(**changes: Any) -> Run:
    return Run(tokens=768 * 10, batch=768, slots=4).replace(changes)


RAMP = [[768 * 2, 2], [768 * 6, 4]]


def test_tokens_and_steps_of_a_ramp() -> None:
    phases = run_with(**{"schedule.ramp": RAMP}).phases
    assert [*phases] == [Phase(0, 0, 1), Phase(2, 768 * 2, 2), Phase(4, 768 * 6, 4)]
    assert phases.steps == 5
    assert [phases.batch_at(step) // 768 for step in range(6)] == [1, 1, 2, 2, 4, 4]
    assert [phases.tokens_at(step) // 768 for step in range(6)] == [0, 1, 2, 4, 6, 10]
    assert [phases.middle_of(step) / 768 for step in range(5)] == [0.5, 1.5, 3, 5, 8]
    assert [phases.step_at(768 * tokens) for tokens in range(11)] == [0, 1, 2, 2, 3, 3, 4, 4, 4, 4, 5]
    assert (phases.mean, phases.last, phases.largest) == (1536, 3072, 3072)
    assert str(phases) == "768 tokens, 1,536 from 1,536 on, 3,072 from 4,608 on"
    # In the middle of a step it is that step's turn still, just after it the next one's.
    assert [phases.first_from(768 * at) for at in (0, 0.5, 0.51, 2, 3, 3.01, 8, 8.01)] == [
        0,
        0,
        1,
        2,
        2,
        3,
        4,
        5,
    ]


def test_a_ramp_may_fall_again() -> None:
    phases = run_with(**{"schedule.ramp": [[768 * 2, 4], [768 * 6, 1]]}).phases
    assert (phases.steps, phases.largest, phases.last, phases.mean) == (7, 3072, 768, 1097)


def test_a_run_without_a_ramp_is_what_it_was() -> None:
    run = run_with()
    assert (run.steps, run.phases.mean, run.phases.largest, run.phases.last) == (10, 768, 768, 768)
    assert run.to_dict()["schedule"].keys().isdisjoint({"ramp", "ramp_rate", "weight_decay_to"})
    later = {"schedule.ramp": [], "schedule.ramp_rate": "sqrt", "schedule.weight_decay_to": 1.0}
    assert run_with(**later).fingerprint == run.fingerprint


@pytest.mark.parametrize(
    "change",
    [{"schedule.ramp": RAMP}, {"schedule.ramp_rate": "constant"}, {"schedule.weight_decay_to": 0.5}],
)
def test_what_changes_the_run_changes_its_fingerprint_and_is_read_back(change: dict[str, Any]) -> None:
    run = run_with(**change)
    assert run.fingerprint != run_with().fingerprint
    assert Run.from_toml(run.to_toml()) == Run.from_dict(run.to_dict()) == run


@st.composite
def ramped(draw: st.DrawFn) -> tuple[int, int, Phases]:
    """Slots, windows of a slot of one batch, and phases in windows."""
    slots, per_slot = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    batch, tokens, ramp, factor = slots * per_slot, 0, [], 1
    for following in draw(st.lists(st.integers(1, 5), max_size=4)):
        tokens += draw(st.integers(1, 4)) * factor * batch
        factor = following
        ramp.append((tokens, factor))
    tokens += draw(st.integers(1, 4)) * factor * batch
    return slots, per_slot, Phases(batch, tokens, tuple(ramp))


@settings(max_examples=60)
@given(ramped(), st.integers(1, 400))
def test_a_ramp_draws_every_window_of_the_plain_run_once_and_in_order(
    drawn: tuple[int, int, Phases], length: int
) -> None:
    slots, per_slot, phases = drawn
    phases.check()
    batches = Batches(Numbered(length), 3, per_slot, slots)
    plain = [
        window
        for batch in range(phases.tokens // phases.batch)
        for slot in range(slots)
        for window in batches.windows(batch, slot)
    ]
    found, firsts = [], []
    for step in range(phases.steps):
        before = phases.tokens_at(step)
        assert phases.step_at(before) == step
        assert phases.tokens_at(step + 1) - before == phases.batch_at(step)
        for slot in range(slots):
            part = batches.slot(before // phases.batch, slot, phases.factor_at(step))
            assert len(part.tokens) * slots == phases.batch_at(step)
            firsts.append(part.first_sample)
            found += part.tokens[:, 0].tolist()
    assert found == plain
    assert firsts == sorted(set(firsts))


@pytest.mark.parametrize(
    ("ramp", "words"),
    [
        (
            [[768 * 3, 2], [768 * 3, 4]],
            "tokens of `schedule.ramp` must rise from above 0, but got 2304 after 2304; sort its pairs [tokens, "
            "factor], and give the first batch as `batch`",
        ),
        (
            [[0, 2]],
            "tokens of `schedule.ramp` must rise from above 0, but got 0 after 0; sort its pairs [tokens, factor], and "
            "give the first batch as `batch`",
        ),
        (
            [[768 * 2, 0]],
            "factors of `schedule.ramp` must be at least 1, but got 0 at 1536 tokens; make `batch` the smallest batch",
        ),
        (
            [[768 * 2, 1.5]],
            "`schedule.ramp` must be pairs [tokens, factor] of whole numbers, but got [[1536, 1.5]]; use e.g. "
            "[[1000000, 2], [4000000, 4]], with a `batch` that all batches are multiples of",
        ),
        (
            [1536, 2],
            "`schedule.ramp` must be pairs [tokens, factor] of whole numbers, but got [1536, 2]; use e.g. "
            "[[1000000, 2], [4000000, 4]], with a `batch` that all batches are multiples of",
        ),
        (
            [[1000, 2]],
            "`schedule.ramp` must change after whole batches of 768 tokens from 0 on, but got 1000; use 768 or 1536",
        ),
        (
            [[768, 2], [768 * 4, 3]],
            "`schedule.ramp` must change after whole batches of 1536 tokens from 768 on, but got 3072; use 2304 or "
            "3840",
        ),
        (
            [[768 * 3, 2]],
            "`tokens` must end after whole batches of 1536 tokens from 2304 on, but got 7680; use 6912 or 8448",
        ),
        (
            [[768 * 9, 2]],
            "`tokens` must end after whole batches of 1536 tokens from 6912 on, but got 7680; use 8448",
        ),
        (
            [[768 * 10, 2]],
            "`schedule.ramp` must change the batch before the run's end at 7680 tokens, but got a change at 7680; "
            "leave it out, or lengthen the run",
        ),
    ],
)  # fmt: skip
def test_what_a_ramp_must_not_be(ramp: Any, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        run_with(**{"schedule.ramp": ramp})
    assert str(error.value) == words


@pytest.mark.parametrize("ramp", ["2", None, [["768", 2]], [[768, True]], [[768]], {"768": 2}])
def test_a_ramp_of_another_kind_is_refused_in_one_line(ramp: Any) -> None:
    with pytest.raises(ConfigError, match=r"^`schedule.ramp` must be pairs \[tokens, factor\].*$"):
        Run(tokens=7680, schedule={"ramp": ramp})


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_weight_decay_does_not_rise(share: float) -> None:
    with pytest.raises(ConfigError, match=r"^`schedule.weight_decay_to` must be .*but got"):
        Run(tokens=768, schedule={"weight_decay_to": share})


def test_the_root_of_a_ramp_is_named_if_it_is_misspelt() -> None:
    with pytest.raises(
        ConfigError, match=r"^`schedule.ramp_rate` must be 'sqrt' or 'constant', but got 'root'$"
    ):
        Run(tokens=768, schedule={"ramp_rate": "root"})


@given(st.floats(1, 1e5), st.integers(1, 50), st.lists(st.integers(1, 5), max_size=3))
def test_whole_steps_make_a_valid_run(tokens: float, batch: int, factors: list[int]) -> None:
    ramp, at, before = [], 0, 1
    for factor in factors:
        at += before * batch
        ramp.append((at, factor))
        before = factor
    whole = whole_steps(tokens, batch, ramp)
    Phases(batch, whole, ramp).check()
    least = at + before * batch
    assert whole == least or abs(whole - tokens) <= before * batch / 2
