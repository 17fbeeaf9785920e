"""What `froude checkpoints export` does for formats that are directories: hf and dcp."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from froude.cli.common import counted, emit

if TYPE_CHECKING:
    from froude.promote.recipe import Recipe
    from froude.runlog import Record
    from froude.store import Location


def recipe_of(place: Location, record: Record) -> Recipe | None:
    """The recipe of the run's study; None without one, or if the record names another."""
    from froude.config import ConfigError
    from froude.promote.recipe import FILE, read

    try:
        recipe = read(place.parent.parent / FILE)
    except ConfigError:
        return None
    return recipe if recipe.sha256 == record.recipe else None


def as_hf(
    place: Location, record: Record, target: Location, *, dtype: str, trust: bool, as_json: bool
) -> None:
    """Write the directory, with a card and the recipe; ConfigError where it would not give the run's logits."""
    from froude.attempts import history
    from froude.checkpoint.tensors import digest
    from froude.checkpoint.tools import parameters
    from froude.cli.model_card import card
    from froude.config import ConfigError
    from froude.promote.recipe import FILE
    from froude.promote.token_audit import account
    from froude.runlog import LogReader, lineage
    from froude.study import Study
    from froude.train.api import check_trust
    from froude.train.hf.config import unchanged
    from froude.train.hf.directory import write
    from froude.train.hf.folding import ADAPTER

    recipe = recipe_of(place, record)
    if recipe is None:
        raise ConfigError(
            f"an export as hf must know the run's model, but {place} has no recipe of it two folders up; put the "
            "study's recipe.toml there, or use --format safetensors"
        )
    check_trust(recipe.run, trust)
    if recipe.run.model.factory == ADAPTER:
        unchanged(recipe.run, (record.meta.get("material") or {}).get("corpus", {}))
    study = Study(place.parent.parent)
    # What was trained after this checkpoint, or thrown away before it, is no part of it.
    line = lineage(LogReader(place).records(), record.seq)
    tokens = account(study.committed(record.run, "ledger", line), recipe.run, record.step)
    ended = history(study, record.run)
    loss = ended.loss if ended is not None and record.step == recipe.run.steps else None
    _new(target)
    with tempfile.TemporaryDirectory(prefix="froude-export-") as scratch:
        folder = Path(scratch) / "hf"
        found = write(recipe.run, parameters(place, record), folder, dtype=dtype)
        text = card(recipe, record, digest(place, record), tokens, loss, found)
        (folder / "README.md").write_text(text, encoding="utf-8")
        (folder / FILE).write_bytes((study.location / FILE).read())
        files = _put(folder, target)
    said = {"logits_apart": found.cast, "logits_apart_fp32": found.difference, "folded": list(found.folded)}
    _say(target, record, files, as_json, architecture=found.architecture, **said)
    if not as_json:
        apart = "the same bits" if found.bitwise else f"{found.cast:.2g} of the largest apart"
        print(f"{found.architecture}; logits against the run's: {apart}, on {found.windows}", flush=True)


def as_dcp(place: Location, record: Record, target: Location, *, as_json: bool) -> None:
    """Write the parameters, under their names in the model, as torch.distributed.checkpoint does."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    from froude.checkpoint.tools import parameters
    from froude.train.exported import description

    _new(target)
    recipe = recipe_of(place, record)
    with tempfile.TemporaryDirectory(prefix="froude-export-") as scratch:
        folder = Path(scratch) / "dcp"
        save(parameters(place, record), storage_writer=FileSystemWriter(folder), no_dist=True)
        files = _put(folder, target)
    _say(target, record, files, as_json)
    if recipe is not None and (note := description(recipe.run)["note"]):
        print(f"froude: warning: {note}", file=sys.stderr)


def _new(target: Location) -> None:
    from froude.config import ConfigError
    from froude.store import reported

    with reported(target, "an export's directory must be readable"):
        held = target.children()
    if held or (target.is_local and target.path.is_file()):
        raise ConfigError(
            f"an export must go into a new directory, but {target} holds {held[0] if held else 'a file'}; "
            "name another --out"
        )


def _put(folder: Path, target: Location) -> dict[str, int]:
    """Move the files of a folder to their place; their sizes."""
    from froude.store import reported

    found = {}
    with reported(target, "an export's directory must be writable"):
        for file in sorted(path for path in folder.iterdir() if path.is_file()):
            found[file.name] = file.stat().st_size
            if target.is_local:
                target.path.mkdir(parents=True, exist_ok=True)
                shutil.move(file, target.path / file.name)
            else:
                (target / file.name).replace(file.read_bytes())
    return found


def _say(target: Location, record: Record, files: dict[str, int], as_json: bool, **more: Any) -> None:
    size = sum(files.values())
    if as_json:
        emit({"directory": target.url, "step": record.step, "bytes": size, "files": list(files), **more})
    else:
        print(
            f"{target}: step {record.step}, {counted(len(files), 'file')}, {size / 2**20:.1f} MiB", flush=True
        )
