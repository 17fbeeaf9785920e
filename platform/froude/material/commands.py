"""A run whose training is a user's command: its words filled in, found and hashed; nothing is started here."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from froude.config import Data, Model, Run
from froude.material import Material
from froude.section import ConfigError, did_you_mean, flat

#: What the trials frame calls the trainer of a run that froude did not train.
EXTERNAL = "external"
#: Words in braces that stand for files of the run's folder, by what the command is told elsewhere, too.
FILES = {"run": "run.json", "toml": "run.toml", "metrics": "metrics.jsonl"}
_WORD = re.compile(r"\{([A-Za-z_][\w.]*)\}")


def filled(run: Run, files: Mapping[str, str], roots: Sequence[str] = ()) -> list[str]:
    """The command's words, with `{model.width}` and the like filled in, `files` for those of `FILES`.

    A word that names a file below one of the `roots` becomes its absolute path, since the command is started in a
    folder of the run. ConfigError for a name in braces that is neither a file nor a value of the run.
    """
    known = {**_values(run), **files}

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in known:
            raise ConfigError(
                "a name in braces in `trainer.command` must be run, toml, metrics, python, steps or a key of the run, "
                f"but got {match[0]}{did_you_mean(name, known)}; correct it"
            )
        return known[name]

    return [_WORD.sub(value, _found(word, roots)) for word in run.trainer.command]


def _values(run: Run) -> dict[str, str]:
    """Every value of the run by its dotted key, its steps, and the files by their names alone."""
    values = {key: f"{value}" for key, value in flat(run.model_dump(mode="json")).items()}
    return {**values, **FILES, "steps": f"{run.steps}", "python": sys.executable}


def _found(word: str, roots: Sequence[str], *, folder: bool = False) -> str:
    """A relative word that names a file below a root, as the absolute path of the first such; else itself.

    A folder's counts only with a slash, so that a plain word of a command stays one, or if a `folder` is looked for.
    """
    if not word or word.startswith(("-", "{")) or os.path.isabs(word):
        return word
    for root in roots:
        path = os.path.join(root, word)
        if os.path.isfile(path) or ((folder or os.sep in word) and os.path.exists(path)):
            return os.path.abspath(path)
    return word


def model(run: Run) -> str:
    """What rows name as the model: its factory, and what of it is not plain.

    Or the command where that trains, unless the run names another.
    """
    own = run.trainer.command and run.model.factory == Model.model_fields["factory"].default
    if own:
        return " ".join(run.trainer.words)
    return " ".join(filter(None, (run.model.factory, run.model.architecture)))


def corpus(run: Run) -> str | None:
    """What rows name as the corpus: nothing where a command trains, and the run names neither source nor file."""
    own = run.trainer.command and run.data.source == Data.model_fields["source"].default
    return (run.data.corpus.partition(" ")[2] or None) if own else run.data.corpus


def check(run: Run) -> None:
    """ConfigError if the command, as it is here, can't be started: no such program, file, or name in braces."""
    program = filled(run, {}, [os.getcwd()])[0]
    if not program or shutil.which(program) is None:
        raise ConfigError(
            f"a `trainer.command` must begin with a program, but there is no {program!r} that can be run here; give "
            'its path, or its interpreter first, e.g. "python"'
        )
    for word in run.trainer.command[1:]:
        if word.endswith((".py", ".sh")) and not _WORD.search(word) and not os.path.exists(word):
            raise ConfigError(
                f"the files that a `trainer.command` names must exist, but {word} does not below {os.getcwd()}; "
                "correct it, or start froude where it is"
            )
    material(run, [os.getcwd()])


def material(run: Run, roots: Sequence[str] = ()) -> Material:
    """The hash of the run's data file, if it names one, and those of its `files`; ConfigError without one of them."""
    corpus = {"corpus": run.data.sha256} if run.data.sha256 else {}
    return Material(corpus, {name: _hash(path) for name, path in files(run, roots).items()})


def files(run: Run, roots: Sequence[str] = ()) -> dict[str, Path]:
    """The trainer's files, by what its material calls them; ConfigError without one of them.

    `trainer.files` are looked up below the `roots`; of a folder all files count. Without them the command's words that
    are files do.
    """
    roots = roots or [os.getcwd()]
    words = run.trainer.files or tuple(
        word
        for word in run.trainer.command[1:]
        if not _WORD.search(word) and os.path.isfile(_found(word, roots))
    )
    found: dict[str, Path] = {}
    for word in words:
        path = Path(_found(word, roots, folder=True))
        if not path.exists():
            raise ConfigError(
                f"`trainer.files` must exist, but {word} does not below {' or '.join(roots)}; correct its name"
            )
        name = os.path.basename(os.path.normpath(word)) if os.path.isabs(word) else os.path.normpath(word)
        for own, file in ({name: path} if path.is_file() else _below(path, name)).items():
            if not found.setdefault(own, file).samefile(file):
                raise ConfigError(
                    f"files of a trainer must differ in their names, but {found[own]} and {file} are both {own}; "
                    "rename one, or name their folder"
                )
    return found


def _below(folder: Path, name: str) -> dict[str, Path]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {f"{name}/{path.relative_to(folder).as_posix()}": path for path in files}


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
