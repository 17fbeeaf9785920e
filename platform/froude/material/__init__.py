"""What a run's config cannot say of it: content of its corpus, code of foreign modules, versions of libraries."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import site
import socket
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from froude.config import ConfigError

#: Libraries whose numbers a run's losses consist of, whatever its model and source import.
LIBRARIES = ("froude", "torch", "numpy")


@dataclass(frozen=True)
class Material:
    """SHA-256 of the `corpus` (or of `train` and `validation`) and of foreign modules' files; versions of libraries.

    Nothing in it depends on where corpus and code lie. Versions are only reported; the rest decides whether two
    are the same.
    """

    corpus: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 over corpus and modules."""
        text = json.dumps([dict(self.corpus), dict(self.modules)], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def changes(self, now: Material) -> list[str]:
        """What of this differs `now`, a phrase each; [] if corpus and modules are the same."""
        names = {"corpus": "the corpus", "train": "the training split", "validation": "the validation split"}
        return [
            *_differences(
                {name: names.get(name, name) for name in {*self.corpus, *now.corpus}}, self.corpus, now.corpus
            ),
            *_differences(
                {n: f"module {n}" for n in {*self.modules, *now.modules}}, self.modules, now.modules
            ),
        ]

    def other_versions(self, now: Material) -> list[str]:
        """Libraries whose version differs `now`, a phrase each."""
        return [
            f"{name} {old} (now {now.versions[name]})"
            for name, old in self.versions.items()
            if now.versions.get(name, old) != old
        ]

    def required(self, elsewhere: Mapping[str, Any], where: str = "the driver's") -> Material:
        """This one; ConfigError, naming this host, unless it is that of `elsewhere`, as `to_dict` describes it."""
        if changes := Material.from_dict(elsewhere).changes(self):
            raise ConfigError(
                f"corpus and code on host {socket.gethostname()} must be {where}, but {'; '.join(changes[:3])}; "
                "copy them there, or correct `data.path` and PYTHONPATH"
            )
        return self

    def same_library(self, name: str, elsewhere: Mapping[str, Any], whose: str) -> None:
        """ConfigError, naming this host, unless a library has the version that it has `elsewhere`."""
        had, has = Material.from_dict(elsewhere).versions.get(name), self.versions.get(name)
        if had and had != has:
            raise ConfigError(
                f"a run must have one version of {name}, but host {socket.gethostname()} has {has}, a library of "
                f"another version than {whose}, {had}; pip install {name}=={had}"
            )

    def to_dict(self) -> dict[str, dict[str, str]]:
        """Plain JSON types."""
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Material:
        """From what `to_json` wrote; what a later version added is left out."""
        known = {name: content.get(name, {}) for name in ("corpus", "modules", "versions")}
        return cls(**{name: {str(k): str(v) for k, v in table.items()} for name, table in known.items()})


def _differences(names: Mapping[str, str], old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for key in sorted(names):
        if old.get(key) != new.get(key):
            now, before = (f"{told[:12]}…" if (told := table.get(key)) else "absent" for table in (new, old))
            yield f"{names[key]} is {now} instead of {before}"


def foreign_code(paths: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Modules outside site-packages that these import paths bring in, with the SHA-256 of their files; versions.

    The modules must have been imported. What they import, anywhere in their code, is followed. Not seen are an import
    by a computed name, and one from a namespace package inside another, unless that was imported. Of packages in
    site-packages only the version is recorded.
    """
    modules: dict[str, str] = {}
    packages = set(LIBRARIES)
    waiting = [path.partition(":")[0] for path in paths]
    while waiting:
        name = waiting.pop()
        file = _file(name)
        if name in modules or file is None:
            continue
        if _installed(file):
            packages.add(name.partition(".")[0])
            continue
        content = Path(file).read_bytes()
        modules[name] = hashlib.sha256(content).hexdigest()
        waiting += _around(name)
        if file.endswith(".py"):
            waiting += _imports(content, name, is_package=Path(file).name == "__init__.py")
    return modules, {name: version for name in sorted(packages) if (version := _version(name))}


def _around(name: str) -> list[str]:
    """The packages that a module lies in, whose __init__ runs first."""
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def _imports(content: bytes, module: str, *, is_package: bool) -> Iterator[str]:
    """Names of modules that a module's code imports, or may: `from a import b` may mean a.b."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
                yield from _around(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            where = ".".join(part for part in (base, node.module or "") if part)
            if where:
                yield where
                yield from _around(where)
                yield from (f"{where}.{alias.name}" for alias in node.names if alias.name != "*")


def _file(name: str) -> str | None:
    """Where a module comes from; None for one of the standard library, of froude, without a file, or that is absent."""
    top, *rest = name.split(".")
    if top in sys.stdlib_module_names or top == "froude":
        return None
    try:
        spec = importlib.util.find_spec(top)
        for i in range(len(rest)):
            # As importlib would look, but without importing the packages around: some are imported only when used.
            folders = spec.submodule_search_locations if spec else None
            spec = importlib.machinery.PathFinder.find_spec(
                ".".join([top, *rest[: i + 1]]), list(folders or ())
            )
    except (ImportError, KeyError, ValueError):
        # KeyError: in a namespace package that was not imported; ValueError: a module made by hand, such as __main__.
        spec = None
    if spec is None:
        return getattr(sys.modules.get(name), "__file__", None)
    return spec.origin if spec.has_location else None


@functools.cache
def _site() -> tuple[str, ...]:
    found = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    return tuple(os.path.realpath(path) + os.sep for path in {*found, site.getusersitepackages()})


def _installed(file: str) -> bool:
    """Whether a file lies in site-packages."""
    return os.path.realpath(file).startswith(_site())


@functools.cache
def _version(package: str) -> str:
    """The version of the distribution that a package comes from; "" if there is none."""
    try:
        return importlib.metadata.version(package)
    except (
        importlib.metadata.PackageNotFoundError
    ):  # a package need not be called as what it was installed from
        names = importlib.metadata.packages_distributions().get(package, [])
        return importlib.metadata.version(names[0]) if names else ""
