"""The project's own files: what must stay true of the repository as a whole."""

from __future__ import annotations

import ast
import platform
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pathspec import PathSpec

LINES = 350
LISTED_FOLDERS = ("platform", "tests", "jobs", "search_spaces", "benchmarks")


def load(path: Path) -> dict[str, Any]:
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def sources(root: Path, *folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (root / folder).rglob("*.py"))


def test_platform_is_only_a_folder(root: Path) -> None:
    assert (root / "platform").is_dir()
    assert not (root / "platform" / "__init__.py").exists()
    assert Path(platform.__file__).parent == Path(sysconfig.get_path("stdlib"))


@pytest.mark.parametrize("path", [".", "platform"])
def test_import_platform_is_the_standard_library_from_a_checkout(root: Path, path: str) -> None:
    code = "import platform, froude; print(platform.__file__, platform.system(), froude.__file__, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = ['', {path!r}]; {code}"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    module, system, froude = done.stdout.split()
    assert Path(module).parent == Path(sysconfig.get_path("stdlib"))
    assert system == platform.system()
    assert root / "platform" / "froude" in Path(froude).resolve().parents


@pytest.mark.parametrize("folder", ["docs/guide", "platform", "search_spaces"])
def test_extras_are_installed_from_the_checkout_as_froude_is_on_no_index(root: Path, folder: str) -> None:
    files = [path for path in (root / folder).rglob("*") if path.suffix in (".md", ".py", ".j2")]
    assert files
    assert not [path for path in files if re.search(r"install .*froude\[", path.read_text(encoding="utf-8"))]


def test_no_file_outgrows_its_concept(root: Path) -> None:
    lengths = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources(root, *LISTED_FOLDERS)
    }
    assert lengths
    long = {str(path.relative_to(root)): lines for path, lines in lengths.items() if lines > LINES}
    assert not long, f"files of more than {LINES} lines: {long}"


def test_private_ray_train_api_is_touched_in_one_package(root: Path) -> None:
    users = {
        path.relative_to(root).as_posix()
        for path in sources(root, "platform", "jobs", "search_spaces")
        if any(is_private(name) for name in imported(path))
    }
    assert users
    assert not {user for user in users if not user.startswith("platform/froude/launch/ray_internals/")}


@pytest.mark.parametrize(
    ("source", "private"),
    [
        ("import ray.train.v2._internal.execution", True),
        ("from ray.train.v2 import _internal", True),
        ("def f():\n    from ray.train.v2._internal.execution.callback import ControllerCallback", True),
        ("from ray.train.v2.api.config import ScalingConfig", False),
        ("import ray.train", False),
    ],
)
def test_private_imports_are_recognised(tmp_path: Path, source: str, private: bool) -> None:
    path = tmp_path / "module.py"
    path.write_text(source, encoding="utf-8")
    assert any(is_private(name) for name in imported(path)) is private


def imported(path: Path) -> list[str]:
    """Every dotted name that a file imports, wherever in it the import stands."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def is_private(name: str) -> bool:
    return f"{name}.".startswith("ray.train.v2._internal.") or "autoscaling_coordinator" in name


def test_every_direct_dependency_is_in_the_tested_set(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    tested = {canonicalize_name(pin.name): pin for pin in pins}
    assert len(tested) == len(pins)
    assert all(re.fullmatch(r"==[0-9a-z.]+", str(pin.specifier)) and not pin.url for pin in pins)
    assert "froude" not in tested
    assert str(tested["torch"].specifier) == "==2.13.0"

    extras = project["optional-dependencies"]
    assert set(extras) == {
        *("data", "fp8", "hf", "notebooks", "optimizers", "wandb", "mlflow", "tensorboard", "dev")
    }
    for text in [*project["dependencies"], *(text for extra in extras.values() for text in extra)]:
        wanted = Requirement(text)
        if wanted.name != "froude":
            version = next(iter(tested[canonicalize_name(wanted.name)].specifier)).version
            assert wanted.specifier.contains(version), f"{text} against the tested {version}"


def test_cluster_yaml_is_valid_by_rays_own_rules(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    monkeypatch.chdir(root)
    config = load(root / "cluster.yaml")
    prepared = prepare_config(config)
    validate_config(prepared)

    types = prepared["available_node_types"]
    head, workers = (
        types[prepared["head_node_type"]],
        {k: v for k, v in types.items() if k != prepared["head_node_type"]},
    )
    assert head["max_workers"] == 0
    assert "InstanceMarketOptions" not in head["node_config"]
    assert head["resources"] == {"CPU": 0}
    for worker in workers.values():
        assert worker["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
        assert 1 <= worker["min_workers"] < worker["max_workers"] == prepared["max_workers"]


def test_cluster_yaml_with_a_misspelt_key_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jsonschema import ValidationError
    from ray.autoscaler._private.util import prepare_config, validate_config

    monkeypatch.chdir(root)
    config = load(root / "cluster.yaml") | {"max_worker": 3}
    with pytest.raises(ValidationError, match="max_worker"):
        validate_config(prepare_config(config))


def test_cluster_yaml_gives_head_and_workers_the_same_failure_knobs(root: Path) -> None:
    config = load(root / "cluster.yaml")
    knobs = [
        re.findall(r"RAY_health_check_\w+=\d+", " ".join(config[f"{kind}_start_ray_commands"]))
        for kind in ("head", "worker")
    ]
    assert len(knobs[0]) == 4
    assert knobs[0] == knobs[1]


def test_job_uploads_the_package_and_leaves_runs_behind(root: Path) -> None:
    env = load(root / "jobs" / "runtime_env.yaml")
    assert env["env_vars"]["PYTHONPATH"] == "platform"
    assert {"/runs", "/.git", "/.venv", "/data"} <= set(env["excludes"])
    ignored = (root / ".gitignore").read_text(encoding="utf-8").splitlines()
    left_out = PathSpec.from_lines("gitignore", [*env["excludes"], *ignored])

    for path in ("runs/quickstart/trials/a.parquet", ".git/HEAD", ".venv/bin/python", "data/corpus.txt"):
        assert left_out.match_file(path), path
    kept = [path.relative_to(root).as_posix() for path in (root / "platform" / "froude").rglob("*")]
    kept = [path for path in kept if "__pycache__" not in path]
    lost = [path for path in kept if left_out.match_file(path)]
    assert kept
    assert not lost


def test_what_a_machine_or_a_package_folder_is_called_stays_anchored(root: Path) -> None:
    patterns = (root / ".gitignore").read_text(encoding="utf-8").splitlines()
    patterns += load(root / "jobs" / "runtime_env.yaml")["excludes"]
    for name in ("runs", "data", ".venv", ".git"):
        loose = [p for p in patterns if p.strip("/") == name and not p.startswith("/")]
        assert not loose, f"{loose} would leave out every folder called {name}"
