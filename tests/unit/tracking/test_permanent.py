"""Which steps stay: whatever a run goes through, what was told is what it is made of, or another revision."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from froude.checkpoint.retention import Keep
from froude.runlog import NO_BASE, Record, expired, lineage
from froude.tracking.permanent import Permanent

REACH = 30


def record(seq: int, kind: str, step: int, base: int, gone: list[int]) -> Record:
    return Record(
        run="large",
        seq=seq,
        parent=None,
        base=base,
        attempt=1,
        generation="g",
        kind=kind,
        step=step,
        tokens=step,
        time=datetime.now(UTC),
        world=1,
        recipe="recipe",
        meta={"expired": gone},
    )


def log_of(moves: list[tuple[int, int]], keep: Keep, *, finished: bool) -> list[Record]:
    """Each move goes back by some steps at least (0: not at all), then on by some, and commits: as a run does it.

    With `keep`'s reach it goes back from where it was never before only: a policy may, from elsewhere, go further.
    """
    records = [record(0, "attempt", 0, NO_BASE, [])]
    step = furthest = 0
    for number, (back, on) in enumerate(moves, 1):
        if keep.reach and step < furthest:
            back = 0
        line = [r for r in lineage(records) if r.step <= step - back or not back]
        living = [r for r in line if r.seq not in expired(records)]
        base = living[-1] if living else None
        step = (base.step if base else 0) + on
        furthest = max(step, furthest)
        kind = "finished" if finished and number == len(moves) else "checkpoint"
        seq = base.seq if base else NO_BASE
        records.append(record(number, kind, step, seq, keep.expiring(records)))
    return records


def owners(line: list[Record]) -> dict[int, int]:
    """Of each step the number of the record that has its rows."""
    found: dict[int, int] = {}
    step = 0
    for each in line:
        found |= dict.fromkeys(range(step + 1, each.step + 1), each.seq)
        step = each.step
    return found


@given(
    st.lists(st.tuples(st.sampled_from([0, 0, 0, 5, 20, 60]), st.integers(1, 25)), max_size=25),
    st.booleans(),
    st.lists(st.integers(1, 27), max_size=6),
)
def test_what_was_told_is_never_taken_back_within_a_revision(
    moves: list[tuple[int, int]], finished: bool, looks: list[int]
) -> None:
    """Damage leads back further than the policy would; whoever looks, and when, sees the same revisions."""
    records, permanent = log_of(moves, Keep(), finished=finished), Permanent(REACH)
    told: dict[int, dict[int, int]] = {}
    for end in [*sorted(looks), len(records)]:
        permanent.take(records[:end])
        own = told.setdefault(permanent.revision, {})
        new = {step: seq for step, seq in owners(permanent.line).items() if step <= permanent.upto}
        assert own.items() <= new.items()
        own |= new
    final = owners(lineage(records))
    assert told[permanent.revision].items() <= final.items()
    if finished and moves:
        assert told[permanent.revision] == final
    alone = Permanent(REACH)
    alone.take(records)
    assert (alone.revision, alone.upto, alone.line) == (permanent.revision, permanent.upto, permanent.line)


@given(
    st.lists(st.tuples(st.sampled_from([0, 0, 0, 5, REACH]), st.integers(1, 12)), max_size=60),
    st.integers(0, 5),
    st.integers(0, 4),
    st.sampled_from([REACH, 2 * REACH]),
)
def test_a_run_that_goes_back_by_its_policy_has_one_revision(
    moves: list[tuple[int, int]], last: int, every: int, kept: int
) -> None:
    """A run keeps checkpoints for two rollbacks in a row, so from twice as far back as one goes."""
    permanent = Permanent(REACH)
    permanent.take(log_of(moves, Keep(last, every, kept), finished=True))
    assert permanent.revision == 0
