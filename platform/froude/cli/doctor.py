"""froude doctor."""

from __future__ import annotations

from typing import Annotated

import typer

from froude.cli.common import FAILED, INTERRUPTED, Debug, say, verb


@verb
def doctor(
    gpu: Annotated[bool, typer.Option("--gpu", help="Look at this machine's GPUs, not at its CPUs.")] = False,
    store: Annotated[
        str,
        typer.Option(metavar="URL", help="Folder or s3:// URL to try; without it a temporary folder."),
    ] = "",
    file: Annotated[
        str, typer.Option("--json", metavar="FILE", help="Where to write what was found, to be sent.")
    ] = "doctor.json",
    minutes: Annotated[
        float,
        typer.Option(
            min=0.1, help="Time for all checks; what is not done by then is named, and is no failure."
        ),
    ] = 10.0,
    debug: Debug = False,
) -> int | None:
    """Find out what this machine can do: its kernels, links, store, exactness, speed; exit code 1 if something fails.

    The file has no names of hosts and users, no paths and no addresses.

    Example: froude doctor --gpu --store s3://bucket/runs
    """
    try:
        return _doctor(gpu, store, file, minutes)
    except KeyboardInterrupt:
        return say(f"interrupted; nothing was written to {file}; the same command starts anew", INTERRUPTED)


def _doctor(gpu: bool, store: str, file: str, minutes: float) -> int | None:
    import json
    from contextlib import nullcontext
    from pathlib import Path

    from froude.config import ConfigError
    from froude.doctor.examine import examine
    from froude.durable import temporary
    from froude.launch.display import Display
    from froude.store import Location

    if store:
        Location.parse(store)
    kept = Path(file).resolve()
    if not kept.parent.is_dir():
        raise ConfigError(
            f"--json must be in a folder that exists, but got {file}; create it, or name another"
        )
    stream = kept.exists() and not kept.is_file()  # such as /dev/stdout, which nothing must replace
    try:
        if stream:
            kept.open("w").close()
        with nullcontext() if stream else temporary(kept, b"{}"):
            pass
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(
            f"--json must be a file that can be written, but got {file} ({why}); name another"
        ) from None
    display = Display()
    display.stage("doctor")
    found = examine(gpu=gpu, store=store, minutes=minutes, progress=display.update)
    display.done(f"{len(found.findings)} findings")
    print("\n".join(found.lines()))
    content = json.dumps(found.to_dict(), indent=2) + "\n"
    try:
        if stream:
            kept.write_text(content)
        else:
            with temporary(kept, content.encode()) as whole:
                whole.replace(kept)
    except OSError as error:
        return say(f"what was found must be written, but {file} can't be: {error.strerror or error}", FAILED)
    print(f"written to {file}, without names, paths and addresses: look at it, and send it")
    return None if found.passed else FAILED
