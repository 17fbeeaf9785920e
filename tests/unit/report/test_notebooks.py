"""The notebooks, executed on a finished study or for a few steps; as committed, each shows what it computes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import polars as pl
import pytest
from exponent_worlds import add_to

from froude import Study
from froude.optimizers import OPTIMIZERS
from froude.promote.imported_runs.history import make_study

pytestmark = pytest.mark.long

#: Each notebook, its figures, and what it says of the study whose laws are known.
NOTEBOOKS = {
    "lr_transfer": (3, ["ok"]),
    "critical_batch": (1, ["ok 340 tokens [340, 340]"]),
    "loss_law": (1, ["prior_driven", "at 90%\ncertified"]),
    "transfer_exponents": (4, ["lr_tokens: ok, measured", "half_life_batch: ok, measured", "Bergsma"]),
    "forecast": (1, ["sealed", "999,?000|1300|998400", "inside"]),
}
#: Those that train by themselves: their figures, steps in a test, and what they then say.
ALONE = {
    "optimizers": (1, 4, [f"{len(OPTIMIZERS)} optimizers", "4 steps"]),
    "grokking": (1, 100, ["1792 of 3481 pairs", "1.0   ┆ train  ┆ [0-9]+ ", "others ┆ null  ┆ 0.0"]),
}
FIGURES = {name: drawn for name, (drawn, *_) in {**NOTEBOOKS, **ALONE}.items()}


@pytest.fixture(scope="module")
def shown(finished: Study, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Study]:
    """The study for a notebook; exponents are of a stage that no other needs."""
    copy = tmp_path_factory.mktemp("exponents") / "study"
    shutil.copytree(finished.location.path, copy)
    other = add_to(Study(copy))
    return lambda name: other if name == "transfer_exponents" else finished


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def said(notebook: Any) -> str:
    return "\n".join(
        str(output.get("text", output.get("data", {}).get("text/plain", ""))) for output in outputs(notebook)
    )


def figures(notebook: Any) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs(notebook))


def test_there_are_no_others(root: Path) -> None:
    assert {path.stem for path in (root / "analysis").glob("*.ipynb")} == set(FIGURES)


@pytest.mark.parametrize("name", ALONE)
def test_a_notebook_trains(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, steps, texts = ALONE[name]
    monkeypatch.setenv("FROUDE_STEPS", str(steps))
    notebook = nbformat.read(root / "analysis" / f"{name}.ipynb", as_version=4)
    folder = {"metadata": {"path": str(root / "analysis")}}
    nbclient.NotebookClient(notebook, timeout=120, resources=folder).execute()
    assert figures(notebook) == drawn
    for text in texts:
        assert re.search(text, said(notebook)), text


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_on_a_study(
    name: str, root: Path, shown: Callable[[str], Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROUDE_STUDY", str(shown(name).location))
    notebook = nbformat.read(root / "analysis" / f"{name}.ipynb", as_version=4)
    folder = {"metadata": {"path": str(root / "analysis")}}
    nbclient.NotebookClient(notebook, timeout=120, resources=folder).execute()
    drawn, texts = NOTEBOOKS[name]
    assert figures(notebook) == drawn
    for text in texts:
        assert re.search(re.escape(text) if "|" not in text else text, said(notebook)), text


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_says_what_its_study_lacks(
    name: str, root: Path, promoted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = promoted.copy(tmp_path / "search-only")
    (study.location / "recipe.toml").delete()
    for file in (study.location / "trials").path.iterdir():
        if pl.read_parquet(file)["stage"][0] != "recipe":
            file.unlink()
    meta = study.meta
    meta["stages"] = {"recipe": meta["stages"]["recipe"]}
    (study.location / "study.json").replace(json.dumps(meta).encode())
    monkeypatch.setenv("FROUDE_STUDY", str(study.location))
    notebook = nbformat.read(root / "analysis" / f"{name}.ipynb", as_version=4)
    folder = {"metadata": {"path": str(root / "analysis")}}
    with pytest.raises(nbclient.exceptions.CellExecutionError):
        nbclient.NotebookClient(notebook, timeout=120, resources=folder).execute()
    (error,) = [output for output in outputs(notebook) if output.output_type == "error"]
    lacks = "recipe.toml" if name == "forecast" else f"trials of a stage with the role {name}"
    assert error.ename == "SystemExit"
    assert error.evalue.startswith(f"{study.location} has no {lacks}, which this notebook needs")


@pytest.mark.parametrize("name", sorted(set(NOTEBOOKS) - {"forecast"}))
def test_a_notebook_says_what_reads_a_study_of_a_table(
    name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs.csv").write_text("params,tokens,loss\n1e6,1e8,3.1\n2e6,2e8,2.9\n")
    make_study(str(tmp_path / "runs.csv"), str(tmp_path / "study"))
    monkeypatch.setenv("FROUDE_STUDY", str(tmp_path / "study"))
    notebook = nbformat.read(root / "analysis" / f"{name}.ipynb", as_version=4)
    folder = {"metadata": {"path": str(root / "analysis")}}
    with pytest.raises(nbclient.exceptions.CellExecutionError):
        nbclient.NotebookClient(notebook, timeout=120, resources=folder).execute()
    (error,) = [output for output in outputs(notebook) if output.output_type == "error"]
    assert error.evalue.endswith("Its runs are from a table, which `froude fit` fits.")


@pytest.mark.parametrize("name", FIGURES)
def test_a_notebook_is_committed_with_what_it_shows(name: str, root: Path) -> None:
    notebook = nbformat.read(root / "analysis" / f"{name}.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert figures(notebook) == FIGURES[name]
    assert not any(output.output_type == "error" for output in outputs(notebook))
    assert not re.search(r"(?<![\w.])/(work|tmp|home|root|Users)/", said(notebook)), "a path of a machine"
