"""The command line: help, exit codes, and errors of a line or two on stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer

from froude import s3
from froude.cli import common, main
from froude.cli.app import app
from froude.config import ConfigError
from froude.launch.elastic import NoProgress
from froude.promote.gate import Check, Refused

VERBS = (
    *(
        "init",
        "plan",
        "sweep",
        "status",
        "fit",
        "promote",
        "train",
        "report",
        "quickstart",
        "verify-run",
        "chaos",
    ),
    *("coordcheck", "ingest", "follow", "doctor", "profile"),
)
GROUPS = {
    "checkpoints": ("list", "verify", "digest", "diff", "export"),
    "data": ("prepare", "stats", "verify", "train-tokenizer"),
}


def test_the_verbs_are_these() -> None:
    assert tuple(command.name for command in app.registered_commands) == VERBS
    groups = [group.typer_instance for group in app.registered_groups if group.typer_instance is not None]
    found = {group.info.name: tuple(each.name for each in group.registered_commands) for group in groups}
    assert found == GROUPS


@pytest.mark.parametrize(
    "verb", [*VERBS, *(f"{group} {name}" for group, names in GROUPS.items() for name in names)]
)
def test_each_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*verb.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Example: froude {verb}" in text
    assert "--json" in text
    assert "--debug" in text


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from froude.cli import main\n"
        "assert main(['--help']) == 0\n"
        "print({'torch', 'ray', 'polars', 'pyarrow', 'numpy', 'scipy', 'matplotlib', 'pydantic'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize("argv", [["swep"], ["fit"], ["fit", "a", "b"], ["plan", "x.py", "--sed", "1"]])
def test_wrong_usage_is_exit_code_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == version("froude")


def test_no_verb_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert "Usage" in captured.out + captured.err


REFUSED = Refused([Check("lr_edge", False, "`edge` at width 64", "inside the grid", "extend the rates")])


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (ConfigError("`batch` must be a multiple of 64, but got 65; use 64"), 2, 1),
        (s3.Refused("an S3 server refuses the keys of host a; check them there"), 2, 1),
        (ValueError("a bug\nof two lines"), 1, 1),
        (RuntimeError(), 1, 1),
        (NoProgress("three restarts in a row committed nothing"), 4, 1),
        (KeyboardInterrupt(), 130, 1),
        (REFUSED, 3, 2),
    ],
)
def test_errors_become_exit_codes(
    error: BaseException, code: int, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def action() -> None:
        raise error

    assert common.guarded(action) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == lines
    assert captured.err.startswith("froude: ")
    assert "Traceback" not in captured.err


def test_an_error_keeps_what_its_later_lines_say(capsys: pytest.CaptureFixture[str]) -> None:
    """Torch's first line only announces; of a traceback that came from another process the last line is the error."""

    def failing(text: str) -> str:
        def action() -> None:
            raise RuntimeError(text)

        assert common.guarded(action) == 1
        return capsys.readouterr().err

    loading = (
        "Error(s) in loading state_dict for Net:\n\tsize mismatch for out.weight: [2, 33] against [2, 32]."
    )
    assert "for Net: size mismatch for out.weight: [2, 33] against [2, 32]. (--debug" in failing(loading)
    remote = 'ray::step() (pid=7)\n  File "a.py", line 3, in step\n    f()\nValueError: the width is 33'
    assert (
        failing(remote) == "froude: RuntimeError: ValueError: the width is 33 (--debug shows the traceback)\n"
    )
    assert len(failing("word " * 1000)) < 500


def test_a_refusal_lists_every_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert common.refused(REFUSED) == 3
    assert (
        "lr_edge: must be inside the grid, but is `edge` at width 64; extend the rates"
        in capsys.readouterr().err
    )


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def action() -> None:
        raise RuntimeError("broken")

    assert common.guarded(action, debug=True) == 1
    assert "Traceback" in capsys.readouterr().err


def test_sigterm_says_so_and_any_other_exit_passes(capsys: pytest.CaptureFixture[str]) -> None:
    def action(code: int) -> None:
        raise SystemExit(code)

    assert common.guarded(lambda: action(143)) == 143
    assert capsys.readouterr().err == "froude: terminated; the same command resumes\n"
    with pytest.raises(SystemExit, match="5"):
        common.guarded(lambda: action(5))


def test_what_was_to_start_over_goes_on_without_fresh(capsys: pytest.CaptureFixture[str]) -> None:
    @common.verb
    def again(fresh: bool = False) -> None:
        raise KeyboardInterrupt

    for fresh, words in (
        (True, "the same command without --fresh resumes"),
        (False, "the same command resumes"),
    ):
        with pytest.raises(typer.Exit):
            again(fresh=fresh)
        assert capsys.readouterr().err == f"froude: interrupted; {words}\n"


def test_a_verb_returns_its_code_to_the_shell() -> None:
    one = typer.Typer()

    @one.command()
    @common.verb
    def three(debug: bool = False) -> int:
        return 3

    with pytest.raises(SystemExit, match="3"):
        one([])


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    common.emit({"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": (1, None)}})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "c": {"d": [1, None]}}


@pytest.mark.parametrize("verb", ["fit", "promote", "report", "status"])
def test_no_study_is_exit_code_2(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, str(tmp_path / "nothing")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert 1 <= len(captured.err.splitlines()) <= 2
    assert not (tmp_path / "nothing").exists()


def test_train_without_a_recipe_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(tmp_path / "recipe.toml")]) == 2
    assert "froude promote" in capsys.readouterr().err


def test_an_override_without_a_reason_is_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["promote", str(tmp_path), "--override", "lr_points"]) == 2
    assert "--reason" in capsys.readouterr().err


def test_two_clusters_are_one_too_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from froude.store import Location

    with (
        pytest.raises(ConfigError, match="one cluster"),
        common.cluster("auto", 2, Location.parse(tmp_path), shared=False),
    ):
        raise AssertionError


@pytest.mark.slow
def test_a_dashboards_address_is_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from froude.store import Location

    def action() -> None:
        with common.cluster("", 0, Location.parse(tmp_path), shared=False):
            raise AssertionError

    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:8265")
    assert common.guarded(action) == 2
    said = capsys.readouterr().err
    assert "must be auto or HOST:PORT, but got http://127.0.0.1:8265" in said
    assert "URL is for `ray job submit --address`" in said


def test_a_broken_pipe_is_no_error(tmp_path: Path) -> None:
    script = "from froude.cli import main; raise SystemExit(main(['plan', '--help']))"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    process.wait(timeout=60)
