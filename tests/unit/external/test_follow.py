"""A large run of another trainer, followed: its log, its alarms and its score, through restarts of either side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboardX import SummaryWriter

from froude import Study
from froude.attempts import history
from froude.checkpoint.commit import CommitLog, Record
from froude.cli import main
from froude.config import Run
from froude.external.follow import Follower, Tail
from froude.external.metrics import Metrics, read
from froude.promote.forecast import BandPoint, Forecast
from froude.promote.recipe import Recipe, seal
from froude.promote.verify import verify_run
from froude.register import row_of
from froude.report.view import gather
from froude.section import ConfigError
from froude.store import Location
from froude.train.size import size_of

RUN = Run(
    name="large",
    tokens=768 * 40,
    schedule={"name": "constant"},
    trainer={"command": ["train"], "params": 5000},
)
BAND = tuple(BandPoint(768 * step, 3.0, 2.9, 3.1, 0.05) for step in (2, 40))
FORECAST = Forecast(
    3.0, 2.9, 3.1, 0.9, False, "ok", (), 3.2, block=768, band_level=0.99, band=BAND
)  # fmt: skip


def sealed(folder: Path, trainer: str = "external", run: Run = RUN) -> Recipe:
    """A study with nothing but a recipe."""
    ratios = dict.fromkeys(("params", "tokens", "compute", "batch"), 2.0)
    recipe = seal(
        run=run, profile="production", fits={}, fingerprints={}, extrapolation=ratios, checks=(), forecast=FORECAST,
        trainer=trainer,
    )  # fmt: skip
    recipe.write(Location.parse(folder / "study" / "recipe.toml"))
    meta = {"froude": "study", "schema": 1, "stages": {}, "target": run.to_dict()}
    (folder / "study" / "study.json").write_text(json.dumps(meta))
    return recipe


@pytest.fixture
def follow(tmp_path: Path) -> Callable[[], Follower]:
    recipe = sealed(tmp_path)
    return lambda: Follower(Location.parse(tmp_path / "study"), recipe, tmp_path / "m.jsonl")


def tell(folder: Path, first: int, last: int, loss: float = 3.0, **more: float) -> None:
    lines = [{"step": step, "loss": loss} for step in range(first, last + 1)]
    with (folder / "m.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in [*lines, *([more] if more else [])])


def losses(folder: Path) -> list[float]:
    return Study(folder / "study").steps(trials=False).sort("step").collect()["loss"].to_list()


def test_a_run_is_followed_to_its_score(tmp_path, follow):
    study = Study(tmp_path / "study")
    follower = follow()
    assert (follower.poll().step, study.commits().collect()["kind"].to_list()) == (0, ["attempt"])
    tell(tmp_path, 1, 20)
    now = follower.poll(save=True)
    assert (now.step, now.loss, now.band, now.new) == (20, 3.0, (2.9, 3.1), ())
    assert follower.poll(save=True).step == 20  # nothing new is no new record
    follower = follow()  # interrupted, and started again
    tell(tmp_path, 21, 40)
    assert not follower.poll(save=True).final
    tell(tmp_path, 1, 0, step=40, validation_loss=3.05, validation_loss_code=2.0)
    assert (follower.poll().final, follower.finished) == (3.05, True)

    assert study.commits().collect()["kind"].to_list() == [
        "attempt", "checkpoint", "attempt", "checkpoint", "finished",
    ]  # fmt: skip
    assert losses(tmp_path) == [3.0] * 40
    past = history(study, "large")
    assert past is not None
    assert (past.finished, past.loss, dict(past.set_losses)) == (True, 3.05, {"code": 2.0})
    again = follow()
    assert (again.finished, again.poll().final) == (True, 3.05)
    verdicts = {each.name: each.passed for each in verify_run(study, again.recipe)}
    assert verdicts.pop("every planned token was trained once") is None
    assert all(verdicts.values())
    row = row_of(study, again.recipe)
    assert row is not None
    assert (row["trainer"], row["inside"], row["params"]) == ("external", True, 5000)
    view = gather(study)
    assert (view.problems, view.account, view.actual) == ((), None, 3.05)


def test_a_last_line_without_its_end_counts_and_may_be_ended_or_gone_on_with_later(tmp_path):
    file, tail = tmp_path / "m.jsonl", Tail(tmp_path / "m.jsonl", RUN, 5000)

    def after(text: str) -> Metrics:
        with file.open("a") as appended:
            appended.write(text)
        found = tail.read()
        whole = read(file, RUN)
        assert (found.steps, found.evals, found.went_back) == (whole.steps, whole.evals, whole.went_back)
        return found

    assert after('{"step": 1, "loss": 5.0}').step == 1
    assert list(after('\n{"step": 2, "loss": 4').steps) == [1]
    assert list(after(".5}").steps) == [1, 2]
    assert list(after('{"step": 3, "loss": 4.0}\r\n').steps) == [1, 2, 3]
    assert after('{"step": 40, "validation_loss": 3.0}').final == 3.0
    with pytest.raises(ConfigError, match=r"line 5 of .* tells 4,000"):
        after('\n\n{"params": 4000}\n')


def test_metrics_of_a_model_of_another_size_are_refused_also_where_the_trainer_says_none(tmp_path):
    run = RUN.replace({"trainer": {}}, name="large")
    follower = Follower(Location.parse(tmp_path / "study"), sealed(tmp_path, run=run), tmp_path / "m.jsonl")
    tell(tmp_path, 1, 3, params=size_of(run).params)
    assert follower.poll().step == 3
    tell(tmp_path, 4, 5, params=size_of(run).params * 2)
    with pytest.raises(ConfigError, match=r"must have the parameters of its forecast, .* line 7 of .* tells"):
        follower.poll()


def test_a_trainer_that_goes_back_makes_a_new_attempt(tmp_path, follow):
    follower = follow()
    for last in (10, 20, 30):
        tell(tmp_path, last - 9, last)
        follower.poll(save=True)
    tell(tmp_path, 16, 25, loss=2.95)
    follower.poll(save=True)
    assert losses(tmp_path) == [3.0] * 15 + [2.95] * 10
    assert Study(tmp_path / "study").commits().collect()["attempt"].to_list() == [1, 1, 1, 1, 2, 2]


def test_a_follower_that_another_has_taken_over_ends_and_leaves_no_trace(tmp_path, follow):
    older, newer = follow(), follow()
    tell(tmp_path, 1, 10)
    older.poll(save=True)
    tell(tmp_path, 11, 20)
    newer.poll(save=True)
    tell(tmp_path, 21, 30)
    for act in (lambda: older.poll(save=True), older.save):
        with pytest.raises(
            ConfigError, match="by one `froude follow` at a time, but another has taken over large"
        ):
            act()
    newer.poll(save=True)
    tell(tmp_path, 31, 40, step=40, validation_loss=3.0)
    newer.poll()
    with pytest.raises(ConfigError, match="another has taken over"):
        older.poll()
    assert losses(tmp_path) == [3.0] * 40
    commits = Study(tmp_path / "study").commits().collect()
    assert commits["attempt"].to_list() == [1, 1, 2, 2, 2, 2]
    assert commits["kind"].to_list().count("finished") == 1


def test_a_record_whose_fate_was_unknown_is_not_written_again(tmp_path, follow, monkeypatch):
    follower, append = follow(), CommitLog.append
    tell(tmp_path, 1, 10)

    def answer_is_lost(log: CommitLog, after: Record | None, record: Record) -> Record:
        written = append(log, after, record)
        if record.kind == "checkpoint":
            raise OSError("the connection was lost")
        return written

    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "append", answer_is_lost)
        with pytest.raises(OSError, match="was lost"):
            follower.poll()
    tell(tmp_path, 11, 20)
    follower.poll(save=True)
    assert losses(tmp_path) == [3.0] * 20


def test_what_leaves_the_band_is_an_alarm_once_and_a_nan_too(tmp_path, follow):
    follower = follow()
    tell(tmp_path, 1, 10)
    tell(tmp_path, 11, 20, loss=4.0)
    (alarm,) = follower.poll().new
    assert "training loss 4.000 has been above the sealed band" in alarm
    assert follower.poll().new == ()
    tell(tmp_path, 21, 30, loss=float("nan"))
    assert follower.poll().diverged == "the loss was not finite at step 21"


@pytest.mark.slow
@settings(max_examples=20)
@given(
    pieces=st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 12), st.sampled_from([3.0, 2.9])), max_size=5
    ),
    saves=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_the_log_has_what_the_file_says_whenever_it_was_read(tmp_path_factory, pieces, saves):
    folder = tmp_path_factory.mktemp("follow")
    recipe = sealed(folder)
    follower, newest = Follower(Location.parse(folder / "study"), recipe, folder / "m.jsonl"), 0
    for (first, count, loss), again in zip(pieces, saves, strict=False):
        first = min(first, newest + 1)
        newest = min(40, first + count - 1)
        tell(folder, first, newest, loss)
        if again:
            follower = Follower(Location.parse(folder / "study"), recipe, folder / "m.jsonl")
        follower.poll(save=True)
    said = {step: row["loss"] for step, row in follower.tail.metrics.steps.items()}
    kept = Study(folder / "study").steps(trials=False).collect()
    written = dict(kept.select("step", "loss").iter_rows())
    assert {step: loss for step, loss in written.items() if step in said} == said
    assert len(written) == kept.height


def test_the_verb_tells_alarms_and_the_score_and_keeps_it(tmp_path, capsys):
    sealed(tmp_path)
    words = ["follow", str(tmp_path / "study"), "--metrics", str(tmp_path / "m.jsonl")]
    assert main([*words, "--once"]) == 0
    assert "not begun" in capsys.readouterr().out
    tell(tmp_path, 1, 12)
    assert main([*words, "--once"]) == 0
    assert "step 12 of 40, loss 3.000, band 2.900 to 3.100; not finished" in capsys.readouterr().out
    tell(tmp_path, 13, 40, step=40, validation_loss=3.2)
    assert main([*words, "--register", str(tmp_path / "scores")]) == 0
    told = capsys.readouterr().out
    assert "external trainer: no ledger claim" in told
    assert "loss 3.200 nats per token; forecast 3.000, 90% in [2.900, 3.100]: outside" in told
    assert len(list((tmp_path / "scores").glob("*.parquet"))) == 1
    assert main([*words, "--json", "--once"]) == 0
    assert json.loads(capsys.readouterr().out)["actual"]["inside"] is False


def board(folder: Path, tag: str, steps: Iterable[int], value: float) -> None:
    with SummaryWriter(str(folder), filename_suffix=f".{tag[0]}{min(steps)}") as writer:
        for step in steps:
            writer.add_scalar(tag, value, step)


def test_a_folder_of_a_tracker_is_followed_once_its_loss_is_named(tmp_path, capsys):
    sealed(tmp_path)
    logs = tmp_path / "logs"
    words = ["follow", str(tmp_path / "study"), "--metrics", str(logs), "--once"]
    names = [*words, "--series", "loss=train/loss,validation_loss=eval/loss"]

    def said(words: list[str]) -> str:
        assert main(words) == 0
        return capsys.readouterr().out

    assert "tells nothing yet" in said(names)
    board(logs, "train/loss", range(1, 13), 3.0)
    assert "has no `loss` yet, but train/loss; --series loss=NAME" in said(words)
    assert "step 12 of 40, loss 3.000, band 2.900 to 3.100" in said(names)
    board(logs, "train/loss", range(13, 41), 3.0)
    board(logs, "eval/loss", [40], 3.125)
    assert "has no `validation_loss` yet, but eval/loss" in said([*words, "--series", "loss=train/loss"])
    assert "loss 3.125 nats per token; forecast 3.000" in said(names)
    assert main([*words, "--series", "los=train/loss"]) == 2
    assert "did you mean 'loss'?" in capsys.readouterr().err


def test_a_folder_is_read_again_where_it_has_grown_and_rests_after_a_long_reading(tmp_path, monkeypatch):
    monkeypatch.setattr("froude.external.follow.REST", 0.0)
    tail = Tail(tmp_path, RUN, 0)
    for step in (1, 2):
        board(tmp_path, "loss", [step], 3.0)
        assert tail.read().step == step
    before = tail.metrics
    assert tail.read() is before
    monkeypatch.setattr("froude.external.follow.REST", 1e6)
    for step in (3, 4):
        board(tmp_path, "loss", [step], 3.0)
        assert tail.read().step == 3


def test_a_file_that_is_moved_away_while_it_is_read_is_read_when_it_is_back(tmp_path, monkeypatch):
    for name in ("metrics.jsonl", "metrics.parquet"):
        file = tmp_path / name
        tail = Tail(file, RUN, 0)
        with monkeypatch.context() as patch:
            patch.setattr("froude.external.follow._seen", lambda files: [(1, 1, 1)])
            assert tail.read().step == 0
        if name.endswith("jsonl"):
            file.write_text('{"step": 1, "loss": 5.0}\n')
            assert tail.read().step == 1


def test_a_diverged_run_ends_with_an_error(tmp_path, capsys):
    sealed(tmp_path)
    (tmp_path / "m.jsonl").write_text('{"step": 3, "loss": NaN}\n')
    assert main(["follow", str(tmp_path / "study"), "--metrics", str(tmp_path / "m.jsonl")]) == 1
    assert "diverged: the loss was not finite at step 3" in capsys.readouterr().err


def test_a_recipe_is_trained_by_whom_it_is_for(tmp_path, capsys):
    sealed(tmp_path)
    assert main(["train", str(tmp_path / "study"), "--simulate", "2"]) == 2
    assert "`froude follow RECIPE --metrics FILE`" in capsys.readouterr().err
    sealed(tmp_path, trainer="")
    assert main(["follow", str(tmp_path / "study"), "--metrics", "m.jsonl"]) == 2
    assert "`froude promote --for external`" in capsys.readouterr().err


def test_metrics_of_another_model_are_refused_and_leave_no_trace(tmp_path, follow):
    follower = follow()
    tell(tmp_path, 1, 10, params=5040)  # as nearly the forecast's as a count is
    assert follower.poll(save=True).step == 10
    (tmp_path / "m.jsonl").write_text('{"params": 4000}\n')
    tell(tmp_path, 1, 20, loss=2.0)
    with pytest.raises(ConfigError, match=r"parameters of its forecast, 5,000, but line 1 of .* tells 4,000"):
        follower.poll()
    follower.save()
    assert losses(tmp_path) == [3.0] * 10
