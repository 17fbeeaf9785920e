"""froude checkpoints list | verify | digest | diff | export."""

from __future__ import annotations

import functools
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from froude.cli.common import FAILED, Debug, Json, Trust, emit, verb
from froude.cli.export import as_dcp, as_hf, recipe_of

if TYPE_CHECKING:
    from froude.store import Location

app = typer.Typer(
    name="checkpoints",
    help="List, verify, compare and export the checkpoints of a run. RUN is a run's directory, its study or its "
    "recipe.toml, a path or s3:// URL.",
    no_args_is_help=True,
)

UNKNOWN = (
    "this run has no recipe next to it, so nothing is known about its model; under muP the forward pass multiplies "
    "logits, and maybe more, by factors that are not in the weights"
)

Place = Annotated[
    str, typer.Argument(metavar="RUN", help="Directory of a run or its study, or an s3:// URL.")
]
Name = Annotated[str, typer.Option("--run", metavar="NAME", help="Which run, if the study has several.")]
Step = Annotated[
    int | None, typer.Option(metavar="N", help="The checkpoint of this step.", show_default="newest")
]


def _run(place: str, name: str = "") -> Location:
    from froude.checkpoint.tools import find_run

    return find_run(place, name)


@verb
def list_(run: Place, name: Name = "", as_json: Json = False, debug: Debug = False) -> int | None:
    """Show step, tokens, size and age of each checkpoint, and why one is not committed.

    Example: froude checkpoints list runs/quickstart
    """
    from froude.checkpoint.tools import checkpoints

    place = _run(run, name)
    found = checkpoints(place)
    if as_json:
        emit({"run": place.url, "checkpoints": [item.to_dict() for item in found]})
        return None
    print(f"{'step':>9} {'tokens':>14} {'MiB':>9} {'age':>9}  attempt  state")
    now = datetime.now(UTC)
    for item in found:
        age = _age((now - item.time).total_seconds()) if item.time else "–"
        tokens = "–" if item.tokens is None else str(item.tokens)
        attempt = "–" if item.attempt is None else str(item.attempt)
        end = ", the run's end" if item.kind == "finished" else ""
        state = item.why_not or ("expired" if item.expired else f"committed{end}")
        print(f"{item.step:>9} {tokens:>14} {item.nbytes / 2**20:>9.1f} {age:>9}  {attempt:>7}  {state}")
    return None


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


@verb
def verify(
    run: Place, name: Name = "", step: Step = None, as_json: Json = False, debug: Debug = False
) -> int | None:
    """Read every committed byte and compare it with the hashes in the log; exit code 1 if something is damaged.

    Example: froude checkpoints verify runs/quickstart
    """
    from froude.checkpoint.tools import verify as damages
    from froude.runlog import LogReader, expired

    place = _run(run, name)
    records = LogReader(place).records()
    rows, gone = [], expired(records)
    for record, damage in damages(place, records, step):
        given_up = record.seq in gone
        rows.append(
            {
                "step": record.step,
                "seq": record.seq,
                "whole": not damage,
                "damage": damage,
                "expired": given_up,
            }
        )
        if not as_json:
            word = "expired; its ledger and metrics are whole" if given_up else "whole"
            print(f"step {record.step:>9}  {damage or word}", flush=True)
    bad, kept = sum(not row["whole"] for row in rows), [row for row in rows if not row["expired"]]
    if as_json:
        emit({"run": place.url, "checkpoints": rows, "damaged": bad})
    else:
        whole = sum(bool(row["whole"]) for row in kept)
        print(f"{whole} of {len(kept)} checkpoints are whole; {len(rows) - len(kept)} have expired")
    return FAILED if bad else None


@verb
def digest(
    run: Place, name: Name = "", step: Step = None, as_json: Json = False, debug: Debug = False
) -> int | None:
    """Print the SHA-256 over all tensors in the order of their names: parameters and optimizer state, however sharded.

    Example: froude checkpoints digest runs/quickstart
    """
    from froude.checkpoint.tensors import digest as of
    from froude.checkpoint.tools import chosen

    place = _run(run, name)
    record = chosen(place, step)
    found = of(place, record)
    if as_json:
        emit({"run": place.url, "step": record.step, "digest": found})
    else:
        print(found)
    return None


@verb
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A run, as RUN above.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another run, or the same one.")],
    step: Annotated[int | None, typer.Option(metavar="N", help="Step of A.", show_default="newest")] = None,
    step_b: Annotated[
        int | None,
        typer.Option(metavar="N", help="Step of B.", show_default="that of --step, else B's newest"),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Show which tensors of two checkpoints differ, and by how much; exit code 1 if any does.

    Example: froude checkpoints diff runs/a runs/b --step 500
    """
    from froude.checkpoint.tools import chosen
    from froude.checkpoint.tools import diff as compare

    one, other = _run(a), _run(b)
    first = chosen(one, step)
    second = chosen(other, first.step if step_b is None and step is not None else step_b)
    found = compare((one, first), (other, second))
    if as_json:
        rows = [vars(item) for item in found]
        emit({"a": first.step, "b": second.step, "equal": not found, "differences": rows})
    else:
        for item in found[:20]:
            amount = (
                f": {item.elements} elements differ, by at most {item.largest:.3g}" if item.elements else ""
            )
            print(f"{item.name}: {item.what}{amount}")
        more = f", {len(found) - 20} more not shown" if len(found) > 20 else ""
        verdict = f"{len(found)} tensors differ{more}" if found else "the same bits"
        print(f"step {first.step} of {one} and step {second.step} of {other}: {verdict}")
    return FAILED if found else None


@verb
def export(
    run: Place,
    name: Name = "",
    step: Step = None,
    format: Annotated[
        str,
        typer.Option(
            metavar="FORMAT",
            help="safetensors: one file; hf: a directory that transformers loads; dcp: one that "
            "torch.distributed.checkpoint loads.",
        ),
    ] = "safetensors",
    dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="Of an hf directory: fp32, as trained, bf16 or fp16.")
    ] = "fp32",
    out: Annotated[
        str,
        typer.Option(
            metavar="PLACE", help="A file or a new directory: a path or s3:// URL.", show_default="RUN-STEP…"
        ),
    ] = "",
    trust: Trust = False,
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Write a checkpoint's parameters for other tools: a file whose metadata hold the run and muP's multipliers.

    Or a directory: as hf multipliers are folded into the weights, and its logits are compared with the run's.

    Example: froude checkpoints export runs/quickstart --format hf --out large
    """
    from froude.checkpoint.tools import chosen
    from froude.checkpoint.tools import export as write
    from froude.config import ConfigError
    from froude.store import Location, reported
    from froude.train.exported import description

    if format not in ("safetensors", "hf", "dcp"):
        raise ConfigError(f"--format must be safetensors, hf or dcp, but got {format!r}; name one")
    if dtype not in ("fp32", "bf16", "fp16") or (dtype != "fp32" and format != "hf"):
        raise ConfigError(
            f"--dtype must be fp32, or bf16 or fp16 with --format hf, but got {dtype!r}; name one"
        )
    place = _run(run, name)
    record = chosen(place, step)
    ending = ".safetensors" if format == "safetensors" else f"-{format}"
    # Not by the name in the record, which whoever wrote it chose.
    target = Location.parse(out or f"{place.name}-{record.step}{ending}")
    if format != "safetensors":
        into = as_dcp if format == "dcp" else functools.partial(as_hf, dtype=dtype, trust=trust)
        return into(place, record, target, as_json=as_json)
    recipe = recipe_of(place, record)
    about = description(recipe.run) if recipe is not None else {"note": UNKNOWN}
    with reported(target, "the file must be writable"):
        size = write(place, record, target, about)
    if as_json:
        emit({"file": target.url, "step": record.step, "bytes": size, "about": about})
    else:
        print(f"{target}: step {record.step}, {size / 2**20:.1f} MiB", flush=True)
        if about["note"]:
            print(f"froude: warning: {about['note']}", file=sys.stderr)
            print("froude: the file's metadata say so, too, under the key `froude`", file=sys.stderr)
    return None


app.command("list")(list_)
for command in (verify, digest, diff, export):
    app.command(command.__name__)(command)
