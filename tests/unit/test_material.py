"""What a run was made of beside its config: foreign code is followed wherever it lies, versions are only told."""

import sys
import textwrap

import pytest

from froude.config import ConfigError
from froude.material import Material, foreign_code

FILES = {
    "mine/__init__.py": "",
    "mine/model.py": "import torch\nfrom .layers import norm\nfrom mine import tools\n",
    "mine/layers/__init__.py": "from .norm import x\n",
    "mine/layers/norm.py": "x = 1\n",
    "mine/tools.py": "def late():\n    import mine_late\n    import nowhere_at_all\n    import mine_space.inner.deep\n",
    "mine_space/inner/deep.py": "seen = False\n",  # folders without __init__ in one another, imported by nobody
    "mine/unused.py": "never = 1\n",
    "mine_late.py": "y = 2\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A function that writes the package below a folder and imports it from there."""

    def at(folder, **changes):
        for name, text in {**FILES, **changes}.items():
            file = tmp_path / folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(text))
        for name in [name for name in sys.modules if name.split(".")[0].startswith("mine")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.syspath_prepend(tmp_path / folder)
        __import__("mine.model")
        return foreign_code(["mine.model:factory", "froude.train.data.kjv:KingJames"])

    return at


def test_modules_are_followed_through_packages_and_functions(package):
    modules, versions = package("here")
    assert set(modules) == {
        "mine",
        "mine.model",
        "mine.layers",
        "mine.layers.norm",
        "mine.tools",
        "mine_late",
    }
    assert {"torch", "numpy", "froude"} <= set(versions)


def test_a_checkout_that_is_moved_is_the_same_and_an_edit_anywhere_is_not(package):
    first, moved = package("here")[0], package("there")[0]
    assert first == moved
    edited = package("edited", **{"mine/layers/norm.py": "x = 2\n"})[0]
    assert {name for name in first if first[name] != edited[name]} == {"mine.layers.norm"}
    assert (
        Material(modules=first).changes(Material(modules=edited))[0].startswith("module mine.layers.norm is ")
    )
    late = package("late", **{"mine_late.py": "y = 3\n"})[0]
    assert {name for name in first if first[name] != late[name]} == {"mine_late"}


def test_an_edit_of_what_is_never_imported_changes_nothing(package):
    assert package("here")[0] == package("edited", **{"mine/unused.py": "never = 2\n"})[0]


def test_installed_packages_are_told_by_version_only():
    modules, versions = foreign_code(["safetensors.torch:save_file"])
    assert modules == {}
    assert versions["safetensors"]


def test_versions_warn_and_the_rest_decides():
    old = Material({"corpus": "a" * 64}, {"m": "b" * 64}, {"torch": "2.11.0", "numpy": "2.0"})
    new = Material({"corpus": "a" * 64}, {"m": "b" * 64}, {"torch": "2.13.0", "numpy": "2.0"})
    assert old.changes(new) == []
    assert old.digest == new.digest
    assert old.other_versions(new) == ["torch 2.11.0 (now 2.13.0)"]
    other = Material({"corpus": "c" * 64}, {"m": "d" * 64}, {})
    assert old.changes(other) == [
        "the corpus is cccccccccccc… instead of aaaaaaaaaaaa…",
        "module m is dddddddddddd… instead of bbbbbbbbbbbb…",
    ]
    assert old.digest != other.digest
    assert Material.from_dict(old.to_dict()) == old


def test_another_material_than_required_names_the_host():
    here = Material({"corpus": "a" * 64})
    assert here.required(here.to_dict()) is here
    with pytest.raises(
        ConfigError, match=r"on host .* must be the driver's, but the corpus is aaaaaaaaaaaa…"
    ):
        here.required(Material({"corpus": "b" * 64}).to_dict())
