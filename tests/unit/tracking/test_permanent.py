"""Which steps stay: whatever a run goes through, what was told is what it is made of in the end, or another revision."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from froude.runlog import NO_BASE, Record, lineage
from froude.tracking.permanent import Permanent

REACH = 30


@dataclass
class Log:
    """Records as an attempt appends them: the next one, or one after going back by some steps."""

    records: list[Record]

    def add(self, kind: str, step: int, base: int) -> None:
        head = Record(
            *(
                "large",
                len(self.records),
                None,
                base,
                1,
                "g",
                kind,
                step,
                step,
                datetime.now(UTC),
                1,
                "recipe",
            )
        )
        self.records.append(head)


def log_of(moves: list[tuple[int, int]], *, finished: bool) -> list[Record]:
    """Each move goes back by at least some steps (0: not at all), and on by some; a checkpoint follows."""
    log, step = Log([]), 0
    log.add("attempt", 0, NO_BASE)
    for back, on in moves:
        line = lineage(log.records)
        before = [r for r in line if r.step <= step - back] if back else line
        base = before[-1] if before else None
        step = (base.step if base else 0) + on
        log.add("checkpoint", step, base.seq if base else NO_BASE)
    if finished:
        log.add("finished", step + 1, lineage(log.records)[-1].seq if moves else NO_BASE)
    return log.records


MOVES = st.lists(st.tuples(st.sampled_from([0, 0, 0, 5, 20, 60]), st.integers(1, 25)), max_size=25)


@given(MOVES, st.booleans(), st.lists(st.integers(1, 27), max_size=6))
def test_what_was_told_is_never_taken_back_within_a_revision(
    moves: list[tuple[int, int]], finished: bool, looks: list[int]
) -> None:
    """Told step by step by record number: the same records end up as those that the newest line has."""
    records, permanent = log_of(moves, finished=finished), Permanent(REACH)
    told: dict[int, dict[int, int]] = {}
    for end in [*sorted(looks), len(records)]:
        permanent.take(records[:end])
        own = told.setdefault(permanent.revision, {})
        own |= {s: seq for s, seq in owners(permanent.line).items() if s <= permanent.upto and s not in own}
    final = owners(lineage(records))
    assert told[permanent.revision].items() <= final.items()
    if finished:
        assert told[permanent.revision] == final
    alone = Permanent(REACH)
    alone.take(records)
    assert (alone.revision, alone.upto, alone.line) == (permanent.revision, permanent.upto, permanent.line)


@given(st.lists(st.tuples(st.sampled_from([0, 0, 5, REACH]), st.just(1)), max_size=80))
def test_a_run_that_goes_back_no_further_than_its_policy_has_one_revision(
    moves: list[tuple[int, int]],
) -> None:
    permanent = Permanent(REACH)
    permanent.take(log_of(moves, finished=True))
    assert permanent.revision == 0


def owners(line: list[Record]) -> dict[int, int]:
    """Of each step the number of the record that has its rows."""
    found, step = {}, 0
    for record in line:
        found |= dict.fromkeys(range(step + 1, record.step + 1), record.seq)
        step = record.step
    return found
