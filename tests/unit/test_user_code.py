"""What a user's code raises is told with the user's own file and line."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from froude.config import ConfigError, Run
from froude.space import load_space
from froude.train.api import build_model, build_source
from froude.train.probe.contract import check_code_and_corpus
from froude.user_code import call_user

HEAD = """from froude.config import Run
from froude.space import Grid, Space, Trial
import polars as pl

RUN = Run(name="a", tokens=7680)

"""
SPACE = """
def space():
    return Space("mine", 0, (Grid("law", trials, role="loss_law"),), RUN)
"""

BROKEN = """import json
import torch

class Source:
    sha256 = "0"
    length = 10
    def __init__(self, run, split):
        if run.data.options.get("json"):
            json.loads("{")
        open("/nowhere/tokens.bin")

def factory(run):
    return torch.nn.Linear(2, 2)(torch.zeros(3))

def refuses(run):
    return run.replace({"batch": 7})
"""


def refused(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_space(folder / "mine.py")
    said = str(caught.value)
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("body", "line", "words"),
    [
        ('def trials(rows):\n    return rows.filter(pl.col("loss") > 0)["loss"][0]\n', 8, "IndexError"),
        (
            'def best(rows):\n    return rows["no such"]\n\ndef trials(rows):\n    return best(rows)\n',
            8,
            "ColumnNotFound",
        ),
        ('def trials(rows):\n    return [RUN.replace({"batch": 7})]\n', 8, "`batch` must be a multiple"),
    ],
)
def test_a_planner_function_is_told_with_its_line_not_that_of_a_library(
    tmp_path: Path, body: str, line: int, words: str
) -> None:
    said = refused(tmp_path, HEAD + body + SPACE)
    assert words in said
    assert f"(at {tmp_path / 'mine.py'}:{line})" in said
    assert "polars" not in said


def test_a_place_below_the_working_directory_is_told_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "(at mine.py:1)" in refused(tmp_path, "1 / 0\n")


def test_a_syntax_error_names_the_file_and_line_that_it_is_in(tmp_path: Path) -> None:
    said = refused(tmp_path, "x = 1\ndef space(:\n")
    assert f"SyntaxError: invalid syntax in `def space(:` (at {tmp_path / 'mine.py'}:2)" in said


def test_a_syntax_error_of_a_module_that_a_space_imports_is_that_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "helper_of_mine.py").write_text("\n\nreturn 3\n")
    said = refused(tmp_path, "import helper_of_mine\n")
    assert f"(at {tmp_path / 'helper_of_mine.py'}:3)" in said


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / f"broken_{tmp_path.name}.py"  # a name of its own: modules are imported once
    file.write_text(BROKEN)
    return file


def run(changes: dict[str, object]) -> Run:
    return Run(tokens=7680, parametrization="sp").replace(changes)


@pytest.mark.parametrize(
    ("factory", "line", "words"), [("factory", 13, "RuntimeError: "), ("refuses", 16, "`batch`")]
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_factory_that_raises_is_told_with_its_line(
    broken: Path, factory: str, line: int, words: str, device: str
) -> None:
    made = run({"model.factory": f"{broken.stem}:{factory}"})
    with pytest.raises(ConfigError, match=words) as caught:
        build_model(made, device)
    assert f"(at {broken}:{line})" in str(caught.value)


def test_a_source_that_raises_is_told_with_its_line(broken: Path) -> None:
    made = run({"data": {"source": f"{broken.stem}:Source", "options": {"json": True}}})
    with pytest.raises(ConfigError, match="JSONDecodeError") as caught:
        build_source(made, "train")
    assert f"(at {broken}:9)" in str(caught.value)


def test_a_missing_file_is_an_error_of_the_user_before_a_sweep_and_of_the_host_within_it(
    broken: Path,
) -> None:
    """Where a worker meets it the run is tried again: a file system may be back by then."""
    made = run({"data": {"source": f"{broken.stem}:Source"}})
    with pytest.raises(FileNotFoundError):
        build_source(made, "train")
    with pytest.raises(ConfigError, match="FileNotFoundError") as caught:
        check_code_and_corpus([made], trust=True)
    assert f"(at {broken}:10)" in str(caught.value)


def test_a_module_that_raises_when_it_is_imported_is_told_with_its_line(broken: Path) -> None:
    broken.write_text("x = 1\ny = z\n")
    with pytest.raises(ConfigError, match=rf"NameError.*\(at {broken}:2\)"):
        build_model(run({"model.factory": f"{broken.stem}:factory"}))


def test_without_a_line_of_the_users_no_place_is_made_up() -> None:
    with pytest.raises(ConfigError, match="must not raise, but got ColumnNotFoundError") as caught:
        call_user("it", pl.DataFrame({"a": [1]}).get_column, "b")
    assert "(at" not in str(caught.value)


def test_a_line_that_only_announces_is_told_with_the_next() -> None:
    def strict() -> None:
        raise ValueError("Validation error for field 'width':\n    TypeError: expected int, got 'big'")

    with pytest.raises(ConfigError, match="field 'width': TypeError: expected int, got 'big'"):
        call_user("the config", strict)
