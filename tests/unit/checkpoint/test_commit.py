from __future__ import annotations

import re
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from froude.checkpoint.commit import CommitLog, Fenced, Finished
from froude.config import ConfigError
from froude.runlog import NO_BASE, BrokenLog, LogReader, Part, Record, disorder, lineage, record_name
from froude.store import Location


@dataclass
class Writer:
    """An attempt, as far as the log is concerned."""

    log: CommitLog
    opened: Record | None = None
    head: Record | None = None
    base: int = NO_BASE

    def open(self) -> Record:
        self.opened = self.head = self.log.open_attempt("large", "recipe", 3, {"host": "a"})
        saved = [record for record in self.log.records() if record.kind != "attempt"]
        self.base = saved[-1].seq if saved else NO_BASE
        return self.head

    def save(self, step: int, kind: str = "checkpoint", parts: tuple[Part, ...] = ()) -> Record:
        assert self.opened
        scalars = {"x": 0.5}
        saved = replace(
            self.opened, kind=kind, step=step, tokens=10 * step, base=self.base, scalars=scalars, parts=parts
        )
        self.head = self.log.append(self.head, saved)
        self.base = self.head.seq
        return self.head


def writer(place: Location) -> Writer:
    return Writer(CommitLog(place))


ACTIONS = st.tuples(st.integers(0, 1), st.sampled_from(["open", "save", "save", "save"]))


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(ACTIONS, max_size=12))
def test_any_interleaving_of_two_attempts_is_one_chain(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[int, str]]
) -> None:
    place = Location.parse(tmp_path_factory.mktemp("run"))
    writers, owner, expected = [writer(place), writer(place)], None, []
    for step, (who, action) in enumerate(actions):
        if action == "open":
            expected.append(writers[who].open())
            owner = who
        elif writers[who].opened and owner == who:
            expected.append(writers[who].save(step))
        elif writers[who].opened:
            for _ in range(2):  # and it stays fenced
                with pytest.raises(Fenced):
                    writers[who].save(step)
    chain = LogReader(place).records()
    assert [record.digest for record in chain] == [record.digest for record in expected]
    assert [record.seq for record in chain] == list(range(len(chain)))
    assert [record.parent for record in chain] == [None, *(record.digest for record in chain)][: len(chain)]
    assert disorder(chain) == ""
    attempts = [record.attempt for record in chain]
    assert attempts == sorted(attempts)
    assert len(set(attempts)) == sum(record.kind == "attempt" for record in chain)
    assert [record.seq for record in lineage(chain)] == [r.seq for r in chain if r.kind == "checkpoint"]


def test_a_record_comes_back_whole(place: Location) -> None:
    first = writer(place)
    first.open()
    parts = (Part("ledger", "parts/ledger-é.parquet", 5, "00ff"), Part("data", "data/a", 2**40, "1"))
    saved = first.save(7, parts=parts)
    opened, read = CommitLog(place).records()
    assert read == saved
    assert (read.scalars, read.parts, read.step, read.tokens, read.world) == ({"x": 0.5}, parts, 7, 70, 3)
    assert (opened.meta, opened.kind, opened.attempt, opened.parts) == ({"host": "a"}, "attempt", 1, ())
    assert datetime.now(UTC) - read.time < timedelta(hours=1)
    assert read.time.utcoffset() == timedelta(0)


def test_one_of_eight_attempts_wins_each_number(tmp_path: Path) -> None:
    place = Location.parse(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        for number in range(10):
            head, gate = CommitLog(place).head(), threading.Barrier(8)

            def compete(step: int, head: Record | None = head, gate: threading.Barrier = gate) -> str:
                gate.wait()
                try:
                    return CommitLog(place).append(head, _record(step)).digest
                except Fenced:
                    return ""

            won = [digest for digest in pool.map(compete, range(8)) if digest]
            assert won == [CommitLog(place).records()[number].digest]


def _record(step: int) -> Record:
    return Record(
        run="large",
        seq=0,
        parent=None,
        base=NO_BASE,
        attempt=1,
        generation=uuid.uuid4().hex,
        kind="checkpoint",
        step=step,
        tokens=step,
        time=datetime.now(UTC),
        world=1,
        recipe="recipe",
    )


def test_a_checkpoint_that_slips_in_before_the_new_attempt_is_followed(place: Location) -> None:
    old, new = writer(place), writer(place)
    old.open()
    read = new.log.records

    def and_then_the_old_one_commits() -> list[Record]:
        records = read()
        if len(records) == 1:
            old.save(1)
        return records

    new.log.records = and_then_the_old_one_commits  # type: ignore[method-assign]
    assert new.open().seq == 2
    assert new.opened
    assert new.opened.base == 1
    with pytest.raises(Fenced):
        old.save(2)


def test_of_two_attempts_that_open_at_once_one_ends(place: Location) -> None:
    one, other = writer(place), writer(place)
    read = one.log.records

    def and_then_the_other_opens() -> list[Record]:
        records = read()
        if not records:
            other.open()
        return records

    one.log.records = and_then_the_other_opens  # type: ignore[method-assign]
    with pytest.raises(Fenced, match="opened at the same time"):
        one.open()
    other.save(1)
    assert [record.kind for record in CommitLog(place).records()] == ["attempt", "checkpoint"]


def test_a_worker_that_its_own_driver_s_hung_one_overtakes_may_try_again(place: Location) -> None:
    """Fenced would end the whole run; only the driver knows which of the two is the living one."""

    def opened(log: CommitLog) -> Record:
        return log.open_attempt("large", "recipe", 3, {"run_id": "driver"})

    hung, living = CommitLog(place), CommitLog(place)
    opened(hung)
    read = living.records

    def and_then_the_hung_one_wakes() -> list[Record]:
        records = read()
        if len(records) == 1:
            opened(hung)
        return records

    living.records = and_then_the_hung_one_wakes  # type: ignore[method-assign]
    with pytest.raises(
        OSError, match=r"attempt 2 of 'large' was opened .* by another worker of the same driver"
    ):
        opened(living)
    woken = hung.records()[-1]
    assert opened(CommitLog(place)).attempt == 3
    with pytest.raises(Fenced):
        hung.append(woken, replace(woken, kind="checkpoint"))


def test_a_superseded_driver_opens_no_attempt(place: Location) -> None:
    """Woken from a suspension it finds its workers gone, and would restart them."""
    for driver in ("first", "first", "second", "second", "third"):
        CommitLog(place).open_attempt("large", "recipe", 3, {"run_id": driver})
    for driver in ("first", "second"):
        with pytest.raises(Fenced, match="another driver"):
            CommitLog(place).open_attempt("large", "recipe", 3, {"run_id": driver})
    assert CommitLog(place).open_attempt("large", "recipe", 3, {"run_id": "third"}).attempt == 6
    assert CommitLog(place).open_attempt("large", "recipe", 3).attempt == 7  # nobody knows its driver


def test_a_finished_run_opens_no_attempt(place: Location) -> None:
    first = writer(place)
    first.open()
    first.save(9, kind="finished")
    with pytest.raises(Finished, match="finished at step 9"):
        writer(place).open()


def test_another_recipe_is_refused(place: Location) -> None:
    writer(place).open()
    with pytest.raises(ConfigError, match="'recipe', but got 'other'"):
        CommitLog(place).open_attempt("large", "other", 1)


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    first = writer(Location.parse(tmp_path))
    first.open()
    for step in range(1, 5):
        first.save(step)
    return tmp_path / "commits"


def test_a_gap_is_named(chain: Path) -> None:
    (chain / record_name(2)).unlink()
    with pytest.raises(
        BrokenLog, match=r"records after .*00000002.parquet, which is missing; .* go on from record 1"
    ):
        LogReader(Location.parse(chain.parent)).records()


def test_a_record_far_ahead_is_a_gap_too(chain: Path) -> None:
    (chain / record_name(9_999_999)).touch()
    with pytest.raises(BrokenLog, match=r"00000005.parquet, which is missing"):
        LogReader(Location.parse(chain.parent)).records()


def test_a_listing_that_misses_a_record_is_no_gap(chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Location, "children", lambda self: [record_name(0), record_name(4)])
    assert [record.seq for record in LogReader(Location.parse(chain.parent)).records()] == [0, 1, 2, 3, 4]


def test_a_fork_is_named(chain: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = Location.parse(tmp_path_factory.mktemp("other"))
    elsewhere = writer(other)
    elsewhere.open()
    for step in range(1, 3):
        elsewhere.save(step)
    (chain / record_name(2)).write_bytes((other / "commits" / record_name(2)).read())
    with pytest.raises(BrokenLog, match=r"must name the one before it, but .*00000002.parquet"):
        LogReader(Location.parse(chain.parent)).records()


def test_damage_is_named_and_what_came_before_goes_on(chain: Path) -> None:
    file = chain / record_name(3)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(BrokenLog, match=r"0000000[34].parquet"):
        LogReader(Location.parse(chain.parent)).records()
    for seq in (3, 4):
        (chain / record_name(seq)).unlink()
    next_one = writer(Location.parse(chain.parent))
    assert next_one.open().seq == 3
    assert next_one.save(3).seq == 4


def test_a_record_of_a_newer_froude_is_named(chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogReader(Location.parse(chain.parent))
    newest = log.records()[-1]
    with monkeypatch.context() as newer:
        newer.setattr("froude.runlog.SCHEMA_VERSION", 99)
        (chain / record_name(newest.seq)).write_bytes(newest.to_bytes())
    with pytest.raises(
        BrokenLog, match=rf"but got 99; use the froude that wrote it \(.*{record_name(newest.seq)}\)"
    ):
        LogReader(Location.parse(chain.parent)).records()


def test_a_foreign_name_in_the_log_is_named(chain: Path) -> None:
    (chain / "latest.parquet").touch()
    with pytest.raises(BrokenLog, match=r"latest\.parquet"):
        LogReader(Location.parse(chain.parent)).records()


@given(st.binary(max_size=300))
def test_bytes_that_are_no_record_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a commit record"):
        Record.from_bytes(content)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../b", "", "a//b", "a\\b", "./a"])
def test_a_part_outside_its_run_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="inside its run's directory"):
        Part("data", path, 1, "")


def test_what_another_attempt_threw_away_is_not_in_the_lineage(place: Location) -> None:
    first = writer(place)
    first.open()
    kept, lost = first.save(1), first.save(2)
    second = writer(place)
    second.open()
    second.base = kept.seq  # it fell back, because the newest was damaged
    again = second.save(2)
    records = CommitLog(place).records()
    assert [record.seq for record in lineage(records)] == [kept.seq, again.seq]
    assert lost.seq in [record.seq for record in records]


@pytest.mark.parametrize(
    ("seq", "changed", "said"),
    [
        (0, {"attempt": 7}, "record 0 opens attempt 7, but attempt 1 would be next"),
        (2, {"attempt": 1}, "record 2 opens attempt 1, but attempt 2 would be next"),
        (3, {"attempt": 1}, r"record 3 is of attempt 1 \(\w+\), but the newest is attempt 2"),
        (3, {"generation": "other"}, r"record 3 is of attempt 2 \(other\), but the newest is attempt 2"),
        (3, {"kind": "attempt"}, "record 3 opens attempt 2, but attempt 3 would be next"),
        (0, {"kind": "checkpoint"}, "record 0 is of attempt 1 .*, but the newest is none"),
        (1, {"kind": "finished"}, "record 2 follows record 1, with which the run is finished"),
    ],
)
def test_what_no_writer_leaves_in_a_chain_is_named(
    place: Location, seq: int, changed: dict[str, Any], said: str
) -> None:
    for step in (1, 2):
        attempt = writer(place)
        attempt.open()
        attempt.save(step, kind="checkpoint" if step == 1 else "finished")
    records = LogReader(place).records()
    assert disorder(records) == ""
    records[seq] = replace(records[seq], **changed)
    assert re.match(said, disorder(records))


def test_a_base_that_leads_nowhere_is_named(place: Location) -> None:
    first = writer(place)
    first.open()
    first.base = 5
    first.save(1)
    with pytest.raises(BrokenLog, match="earlier checkpoint"):
        CommitLog(place).lineage()
