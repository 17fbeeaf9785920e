"""docs/architecture.md is true: its names are the folders', its tests are there."""

from __future__ import annotations

import graphlib
import re
from pathlib import Path

import grimp
import pytest

MOST_FILES = 15  # side by side in a folder; but cli/, which has a file per verb


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs/architecture.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def package(root: Path) -> Path:
    return root / "platform" / "froude"


def test_every_folder_and_module_of_the_package_is_in_the_drawing(page: str, package: Path) -> None:
    drawing = page.split("```")[1]
    have = {f"{path.name}/" for path in package.iterdir() if (path / "__init__.py").exists()}
    have |= {path.name for path in package.glob("*.py") if path.name != "__init__.py"}
    assert set(re.findall(r"\b\w+(?:/|\.py)", drawing)) == have


def test_every_file_and_folder_that_the_page_names_exists(page: str, root: Path, package: Path) -> None:
    assert [name for name in re.findall(r"tests/[\w/]+\.py", page) if not (root / name).exists()] == []
    named = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", page)
    missing = [n for n in named if not (package / n).exists() and not any(package.rglob(n.rstrip("/")))]
    assert missing == []


def test_no_folder_has_more_files_than_one_can_look_over(package: Path) -> None:
    folders = [package, *(path.parent for path in package.rglob("*/__init__.py"))]
    counts = {str(folder.relative_to(package)): len(list(folder.glob("*.py"))) for folder in folders}
    assert {name for name, count in counts.items() if count > MOST_FILES} == {"cli"}


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports for type checkers count too."""
    graph = grimp.build_graph("froude", exclude_type_checking_imports=False)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()
