"""What `froude init` writes: a search space and what goes with it, by what its user has said of model and data."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from froude.config import ConfigError, Run, Trainer
from froude.material import commands
from froude.starter.data import Corpus, corpus
from froude.starter.model import Shape, shape
from froude.starter.tokenizer import Progress, quiet
from froude.store import Location, reported

WINDOWS = 24  # of a step: divided evenly by one to four workers
TARGET = (
    2  # times the largest proxy's width: as many tokens a parameter as its shortest branch, a quarter as long
)
OWN = "own"
CONFIG = "config.json"  # a model's, copied, so that it goes where the project goes


@dataclass(frozen=True)
class Wishes:
    """What a user has named; a vocabulary or context of 0 is left to the data or the model.

    `model` is "" (froude's own), "hf:CONFIG" or "own"; `data` "" (the King James Bible), a place or "own".
    """

    model: str = ""
    data: str = ""
    tokenizer: str = ""
    trainer: str = ""
    context: int = 0
    vocab: int = 0
    column: str = "text"


def files(name: str, wishes: Wishes, progress: Progress = quiet) -> Iterator[tuple[str, bytes]]:
    """Each file's name and content."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ConfigError(
            f"a project's folder must be named by letters, digits, `.`, `_` and `-`, but got {name!r}; rename it"
        )
    command = _command(wishes.trainer)
    model = shape(wishes.model)
    data = corpus(
        wishes.data,
        wishes.tokenizer,
        column=wishes.column,
        model=model.folder,
        vocab=wishes.vocab,
        progress=progress,
    )
    if data.path and 0 < wishes.vocab < data.vocab:
        raise ConfigError(
            f"--vocab must be at least {data.vocab} for {data.path}, but got {wishes.vocab}; raise it, or leave it out"
        )
    own = OWN in (wishes.model, wishes.data)
    foreign = own or bool(wishes.trainer)
    imports = ["Model", "Optimizer", "Run", "Schedule"]
    imports += ["Trainer"] if wishes.trainer else []
    imports += ["Data"] if data.path or not wishes.trainer else []
    values = {
        "name": name,
        "title": f"What {name} sweeps, and the run that it is for.",
        "imports": ", ".join(sorted(imports)),
        "trust": " --trust" if foreign else "",
        "own": own,
        "trainer": command,
        "factory": model.factory,
        "config": CONFIG if model.config else "",
        "config_sha256": hashlib.sha256(model.config.encode()).hexdigest(),
        "here": bool(data.words and data.words.files),
        "source": data.source,
        "path": json.dumps(data.path, ensure_ascii=False) if data.path else "",  # a string in double quotes
        "data_options": _data_options(data),
        "sizes": _sizes(model, data, wishes),
        "vocab_note": "" if wishes.vocab or data.vocab or model.vocab else ": correct it to your tokenizer's",
        "promote": " --for external" if wishes.trainer else "",
        "environment": {"PYTHONPATH": "."} if own else {},
    }
    templates = Environment(
        loader=PackageLoader("froude.starter"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    for file in ("search_space.py", "README.md", "runtime_env.yaml"):
        yield file, templates.get_template(f"{file}.j2").render(values).encode()
    if model.config:
        yield CONFIG, model.config.encode()
    if data.words:
        yield from data.words.files.items()
    if wishes.model == OWN:
        yield "my_model.py", templates.get_template("my_model.py.j2").render().encode()
    if wishes.data == OWN:
        yield "my_data.py", templates.get_template("my_data.py.j2").render().encode()


def _data_options(data: Corpus) -> dict[str, str]:
    """Each option as Python: files of the project are found from where it lies."""
    found = {key: repr(value) for key, value in data.options.items()}
    if data.words:
        place = data.words.place
        found["tokenizer"] = f'str(Path(__file__).with_name("{place}"))' if data.words.files else repr(place)
    return found


def _command(trainer: str) -> tuple[str, ...]:
    """The words of `--trainer`; ConfigError where they can't be started from here."""
    if not trainer:
        return ()
    try:
        words = tuple(_absolute(word) for word in shlex.split(trainer))
    except ValueError as error:
        raise ConfigError(
            f"--trainer must be a command as a shell reads it, but {trainer!r}: {error}; correct it"
        ) from None
    commands.check(Run(batch=64, tokens=64, trainer=Trainer(command=words)))
    return words


def _absolute(word: str) -> str:
    """A word that is a file here, wherever the project is then used from; a link stays one, as a venv's python is."""
    return str(Path(word).absolute()) if Path(word).is_file() else word


def write(folder: Path, wishes: Wishes, progress: Progress = quiet) -> list[Path]:
    """Write a project into a new or empty folder; ConfigError, with nothing written, where there is something in it."""
    folder = folder.resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"a project needs a new or an empty folder, but got {folder}; name another, or empty it"
        )
    made = list(files(folder.name, wishes, progress))
    with reported(Location.parse(folder), "a project's folder must be writable"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in made:
            Location.parse(folder / name).replace(content)
    return [folder / name for name, _ in made]


def _sizes(model: Shape, data: Corpus, wishes: Wishes) -> dict[str, Any]:
    """Widths in whole heads, the base among them; what is not told is small enough to try on two cores."""
    unit = model.unit or model.head_dim
    first = unit * math.ceil(32 / unit)
    widths = tuple(dict.fromkeys(unit * round(first * factor / unit) for factor in (1, 1.5, 2, 3, 4)))
    if len(widths) < 5:  # heads too wide for steps of a half
        widths = tuple(first * factor for factor in (1, 2, 3, 4))
    context = wishes.context or 128
    return {
        "widths": widths,
        "rate_widths": widths[:3],
        "base": widths[1],
        "target": TARGET * widths[-1],
        "depth": model.depth,
        "head_dim": model.head_dim,
        "tied": model.tied,
        "context": context,
        "vocab": wishes.vocab or data.vocab or model.vocab or 50304,
        "windows": WINDOWS,
    }
