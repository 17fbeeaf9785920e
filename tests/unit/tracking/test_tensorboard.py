"""What TensorBoard's own reader makes of a folder whose writer was killed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from froude.promote.imported_runs.tensorboard_files import events
from froude.tracking.tensorboard_tracker import TensorBoard
from froude.tracking.tracker import Point, Subject

ABOUT = Subject("abc", "large", "study", "target", {"name": "large", "model": {"width": 16}})


def point(step: int) -> Point:
    return Point(step, datetime.fromtimestamp(step, UTC), {"train/loss": 1 / step, "train/lr": step})


@pytest.mark.parametrize("lost", [1, 20, 70, 130])
def test_a_record_that_was_cut_short_is_sent_again_and_every_point_is_there_once(
    tmp_path: Path, lost: int
) -> None:
    board = TensorBoard(str(tmp_path))
    assert board.open(ABOUT) == 0
    board.send([point(step) for step in range(1, 11)])
    (file,) = tmp_path.rglob("events*")
    file.write_bytes(file.read_bytes()[:-lost])
    again = TensorBoard(str(tmp_path))
    last = again.open(ABOUT)
    assert 7 <= last < 10
    again.send([point(step) for step in range(last + 1, 21)])
    again.close("finished", {"loss": 1.0})
    assert again.ended("study") == {"abc"}
    (folder,) = {each.parent for each in tmp_path.rglob("events*")}
    found = EventAccumulator(str(folder)).Reload()
    for name in ("train/loss", "train/lr"):
        assert [each.step for each in found.Scalars(name)] == list(range(1, 21))
    assert (
        sum(len(list(events(each))) for each in folder.glob("events*")) == 20 + 5
    )  # versions, run, start, end


def test_a_run_has_ended_in_a_study_of_any_name(tmp_path: Path) -> None:
    for study in ("moved [1]", "a*"):
        board = TensorBoard(str(tmp_path / "boards [2]"))
        board.open(replace(ABOUT, study=study))
        board.close("finished", {"loss": 1.0})
        assert board.ended(study) == {"abc"}
    assert board.ended("moved 1") == board.ended("*") == set()
