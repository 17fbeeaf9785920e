"""The notebook, executed on a small study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")


def outputs(cell: Any) -> str:
    return "".join(
        str(output.get("text", output.get("data", {}).get("text/plain", "")))
        for output in cell.get("outputs", [])
    )


def test_the_notebook_runs_on_a_study(root: Path, small_study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROUDE_STUDY", str(small_study))
    notebook = nbformat.read(root / "analysis" / "scaling_laws.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "committed without outputs"
    nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(root / "analysis")}}
    ).execute()
    text = "\n".join(outputs(cell) for cell in notebook.cells if cell.cell_type == "code")
    assert "ok 340 tokens [340, 340]" in text
    assert "prior_driven" in text
    figures = sum(
        "image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])
    )
    assert figures == 4
