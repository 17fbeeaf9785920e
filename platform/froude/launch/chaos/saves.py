"""Failures at a chosen moment of a commit, and damage to what was committed.

On a disk the store is watched from outside. At the moment in question the workers are stopped (SIGSTOP), so that it can
be looked at in peace; if it was missed they go on, and the next commit is waited for. On S3, where what is being
written can't be seen, the proxy in front of the server holds the upload in question until the workers are killed; where
no proxy can stand (https), the store is watched there too.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import psutil

from froude.launch.chaos.kind import Kind
from froude.launch.chaos.life import send, stands_still
from froude.launch.chaos.s3_proxy import S3Proxy
from froude.launch.chaos.scene import Act, NotInjected, Scene, choose, wait_for
from froude.runlog import Record, record_name
from froude.store import Location

TRIES = 50
NEWEST = 4  # steps: a run that went back saves before the last one that is there
InState = Callable[[Location], bool]  # whether a checkpoint's folder is
LOCAL_POLL, REMOTE_POLL = 0.001, 0.02  # seconds; a remote look is a request


def kill_in_save(scene: Scene, target: float) -> Act:
    """SIGKILL of all workers while a checkpoint's data is written."""
    from froude.checkpoint.writer import MANIFEST

    yield strike(scene, "data", lambda folder: True, lambda folder: not (folder / MANIFEST).exists())


KILL_IN_SAVE = Kind(
    "kill-in-save", "SIGKILL of all workers while a checkpoint's data is written", kill_in_save
)


def kill_before_record(scene: Scene, target: float) -> Act:
    """SIGKILL of all workers when the data is whole and the record is not there yet."""
    from froude.checkpoint.writer import MANIFEST

    yield strike(scene, "commits", lambda folder: (folder / MANIFEST).exists(), lambda folder: True)


KILL_BEFORE_RECORD = Kind(
    "kill-before-record",
    "SIGKILL of all workers between a checkpoint's data and its record",
    kill_before_record,
)


def flipped_byte(scene: Scene, target: float) -> Act:
    """A byte of the newest checkpoint is flipped, then all workers are killed; the one before it must be used."""

    def enough() -> list[Record]:
        whole = [record for record in scene.saved() if record.seq not in scene.damaged]
        return whole if len(whole) > 1 else []

    wait_for(enough, "two whole checkpoints")
    workers = scene.life.workers()
    stop(workers)
    newest = scene.saved()[-1]
    place = flip(scene.place, newest, target)
    scene.damaged.add(newest.seq)
    scene.strike()
    send(workers, signal.SIGKILL)
    yield f"{place} of step {newest.step}"
    after = next((r for r in scene.log.records() if r.seq > newest.seq and r.kind != "attempt"), None)
    if after is None or after.base >= newest.seq:
        raise NotInjected(f"record {newest.seq} is damaged, but the run went on from it")


FLIPPED_BYTE = Kind(
    "flipped-byte", "a byte of the newest checkpoint is flipped, then the workers are killed", flipped_byte
)


def stop(workers: list[psutil.Process]) -> None:
    """Stop all workers, and wait until they stand still: a thread finishes its system call, such as a commit, first."""
    send(workers, signal.SIGSTOP)
    wait_for(
        lambda: all(stands_still(worker) for worker in workers), "the workers to stand still", poll=LOCAL_POLL
    )


def strike(scene: Scene, folder: str, begun: InState, not_yet_over: InState) -> str:
    """SIGKILL all workers in a save: as one uploads into `folder` of the run, or in the state asked for."""
    if scene.proxy:
        return strike_upload(scene, scene.proxy, folder)
    return f"the save of step {strike_save(scene, begun, not_yet_over)}"


def strike_upload(scene: Scene, proxy: S3Proxy, folder: str) -> str:
    """SIGKILL all workers while one uploads something into this folder of the run, which never arrives; its path."""
    piece = f"{scene.place.url.removeprefix('s3:/')}/{folder}/"
    proxy.trap(piece)
    try:
        wait_for(lambda: proxy.caught, "the next save")
        workers = scene.life.workers()
        scene.strike()
        send(workers, signal.SIGKILL)
    finally:
        proxy.flow()
    return f"the upload of {folder}/{proxy.caught.partition(piece)[2].partition('?')[0]}"


def strike_save(scene: Scene, begun: InState, not_yet_over: InState) -> int:
    """SIGKILL all workers while a checkpoint's folder is in the state asked for, and no record names it; its step."""
    known = set(folders(scene.place))
    poll = LOCAL_POLL if scene.place.is_local else REMOTE_POLL
    for _ in range(TRIES):
        workers = scene.life.workers()

        def found() -> str:
            new = [name for name in folders(scene.place) if name not in known]
            return new[-1] if new and begun(scene.place / f"data/{new[-1]}") else ""

        name = wait_for(found, "the next save", poll=poll)
        stop(workers)
        folder = scene.place / f"data/{name}"
        number = int(name.rpartition(".")[2])  # of the record that would name it
        committed = (scene.place / "commits" / record_name(number)).exists()
        if workers and not committed and not_yet_over(folder):
            scene.strike()
            send(workers, signal.SIGKILL)
            return int(name.partition("/")[0])
        send(workers, signal.SIGCONT)
        known.add(name)
    raise NotInjected(f"{TRIES} saves went by, and none was caught at the right moment")


def folders(run: Location) -> list[str]:
    """The checkpoint folders of the last steps below data/, as step/generation.number."""
    steps = (run / "data").children()[-NEWEST:]
    return [f"{step}/{name}" for step in steps for name in (run / "data" / step).children()]


def flip(run: Location, record: Record, target: float) -> str:
    """Flip one byte of the tensors that `record` commits; what was struck, in words."""
    from froude.checkpoint.manifest import Manifest, manifest_of
    from froude.checkpoint.parts import read_part

    tensors = Manifest.from_bytes(read_part(run, manifest_of(record.parts)))
    block = choose(target, [block for block in tensors.blocks if block.nbytes])
    (part,) = (part for part in record.parts if part.path.endswith("/" + block.file))
    place = run / part.path
    content = bytearray(place.read())
    content[block.payload_off + int(target * (block.nbytes - 1))] ^= 1
    if place.is_local:
        place.path.write_bytes(content)  # in place: the same file, as a disk would damage it
    else:
        place.replace(bytes(content))
    return block.fqn
