"""What `plan`, `sweep` and `train` say of a user's model and corpus before anything starts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from froude.cli import main
from froude.launch import cluster
from froude.train.probe import contract
from froude.train.speed import timing as speed
from froude.train.speed.timing import step_flops

SPACE = """
from froude.config import Run
from froude.space import Grid, Space, Trial

def space(seed=0):
    run = Run.from_dict({"name": "a", "tokens": 7680, "eval_windows": 96, "seed": seed, SETTING})
    trials = [Trial("a", (run,))]
    target = run.replace(name="large", reduction="exact")
    return Space("mine", seed, (Grid("law", lambda rows: trials, role="loss_law"),), target)
"""
FAULTY = '"model": {"factory": "unsound:Attention", "width": 32, "options": {"fault": "FAULT"}}'
TEXT = '"data": {"source": "froude.train.data.text:TextFile", "path": "corpus.txt"}'


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No cluster, a machine of 1e9 FLOP/s, a cache and a working directory of one's own."""

    def started(*_: object, **__: object) -> None:
        raise AssertionError("a cluster was started")

    monkeypatch.setattr(cluster, "simulated", started)
    monkeypatch.setattr(speed, "_time", lambda run: step_flops(run) / 1e9)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def refused(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    code = main(list(command))
    captured = capsys.readouterr()
    assert code == 2, captured.err
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    return captured.err


def write(setting: str, text: str = SPACE) -> None:
    Path("mine.py").write_text(text.replace("SETTING", setting))


@pytest.mark.parametrize(
    ("fault", "rule", "remedy"),
    [
        ("unmasked", "must not depend on later tokens", "causal mask"),
        ("batch_norm", "changes buffer norm.running_mean", "LayerNorm"),
        ("dropout", "must compute the same twice", "set its dropout to 0"),
        ("dict", "must return logits", "return the logits alone"),
        ("tuple", "must return logits", "return the logits alone"),
        ("narrow", "must return logits", "set `model.vocab` to 255"),
        ("kind", "kinds() must say", "did you mean 'hidden'?"),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "sweep"])
def test_an_unsound_model_stops_before_anything_starts(
    verb: str, fault: str, rule: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(FAULTY.replace("FAULT", fault))
    out = ["--out", "study", "--simulate", "1"] if verb == "sweep" else []
    said = refused(capsys, verb, "mine.py", "--trust", *out)
    assert rule in said
    assert remedy in said
    assert not Path("study").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "must be a readable file"),
        (b"", "must not be empty"),
        ("Évangile ".encode("latin-1") * 1000, "must be UTF-8 text, but"),
        (b"In the beginning", "at least one window of context + 1 = 65 bytes, but holds 16"),
    ],
)
def test_a_corpus_that_cannot_be_used_stops_a_plan(
    content: bytes | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path("corpus.txt").write_bytes(content)
    write(TEXT)
    said = refused(capsys, "plan", "mine.py")
    assert words in said
    assert "corpus.txt" in said


def test_ids_beyond_the_vocabulary_stop_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    write(FAULTY.replace("FAULT", "") + ', "data": {"source": "unsound:Beyond"}')
    said = refused(capsys, "plan", "mine.py", "--trust")
    assert "from 0 to 255, below `model.vocab`" in said
    assert "holds 259; set `model.vocab` to at least 260" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SPACE.replace(", target)", ", None)"), "`target` must be the target run that the study is for"),
        (SPACE.replace('[Trial("a", (run,))]', "[]"), "must plan a trial"),
    ],
)
def test_a_space_without_target_or_trials_is_refused(
    text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write('"precision": "fp32"', text)
    assert words in refused(capsys, "plan", "mine.py")


@pytest.mark.parametrize(
    ("factory", "words"),
    [("nothing", "unsound:nothing returned NoneType"), ("raises", "KeyError: 'n_embd' (at ")],
)
def test_a_factory_that_makes_no_model_is_named(
    factory: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(f'"model": {{"factory": "unsound:{factory}"}}')
    assert words in refused(capsys, "plan", "mine.py", "--trust")


def test_a_skipped_check_is_said_and_an_unknown_one_refused(capsys: pytest.CaptureFixture[str]) -> None:
    write(FAULTY.replace("FAULT", "unmasked"))
    assert "but got 'cusal'" in refused(capsys, "plan", "mine.py", "--trust", "--skip-probe", "cusal")
    assert main(["plan", "mine.py", "--trust", "--skip-probe", "causal", "--skip-probe", "state"]) == 0
    assert "state, independent" not in (text := capsys.readouterr().out)
    assert "sound (corpus, forward, dense, random, gradients, independent); skipped: state, causal" in text


def test_help_lists_each_check(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("plan", "sweep", "train", "chaos"):
        assert main([verb, "--help"]) == 0
        text = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert "--skip-probe" in text
        assert ", ".join(contract.CHECKS) in text


@pytest.mark.slow
def test_a_plan_says_what_it_probed_and_what_promotion_would_say(capsys: pytest.CaptureFixture[str]) -> None:
    write('"model": {"width": 32}')
    assert main(["plan", "mine.py"]) == 0
    text = capsys.readouterr().out
    assert "target over the largest proxy: params 1×, tokens 1×, compute 1×, batch 1×" in text
    assert "probe: 1 model and 1 data source sound" in text
    assert "promote would refuse: seeds: must be >= 2 seeds, but is 1 in loss_law" in text
    assert main(["plan", "mine.py", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {warning["name"] for warning in found["warnings"]} >= {"seeds", "roles"}
    assert found["reach"]["params"] == found["cost"] == 1.0
    assert found["probe"]["models"] == 1


@pytest.mark.slow
def test_training_a_recipe_looks_at_its_corpus(
    small_study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from froude.train.data import soundness

    shutil.copytree(small_study, tmp_path / "study")
    reasons = [
        word
        for name in ("lr_points", "forecast_certified")
        for word in ("--override", name, "--reason", "a test")
    ]
    assert main(["promote", "study", *reasons]) == 0
    capsys.readouterr()

    def unsound(*_: object) -> list[str]:
        raise soundness.ConfigError("token ids must be below the vocabulary")

    monkeypatch.setattr(contract, "_sound", {})
    monkeypatch.setattr(contract, "check_corpus", unsound)
    assert "token ids" in refused(capsys, "train", "study/recipe.toml", "--simulate", "1")
