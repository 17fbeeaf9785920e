"""What every rank of a training run saves to and loads from: checkpoints, tables and the commit log of one run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from froude.checkpoint import retention
from froude.checkpoint.background import Background, Staging
from froude.checkpoint.collective import on_every_rank, on_rank_0, rank_and_world
from froude.checkpoint.commit import CommitLog
from froude.checkpoint.manifest import Manifest, manifest_of
from froude.checkpoint.parts import Corrupt, create_part, read_part
from froude.checkpoint.retention import Keep
from froude.checkpoint.tensors import form
from froude.checkpoint.writer import ParquetReader, ParquetWriter, check_tensors_only
from froude.runlog import NO_BASE, Part, Record, expired, lineage
from froude.schemas import SCHEMAS, TABLES, to_bytes
from froude.store import Location

warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)


@contextmanager
def _plain_errors() -> Iterator[None]:
    """DCP's CheckpointException is a BaseException around each rank's error: raise the first rank's own."""
    try:
        yield
    except CheckpointException as error:
        causes = [cause for cause, _ in error.failures.values()]
        corrupt = [cause for cause in causes if isinstance(cause, Corrupt)]
        # One that is no damage must not be taken for it, or a bug would walk back through all checkpoints.
        raise next((cause for cause in causes if cause not in corrupt), causes[0]) from None


def save_state(
    run: Location, folder: str, state: dict[str, Any], group: dist.ProcessGroup | None = None
) -> tuple[Part, ...]:
    """Collective: write a state of (possibly sharded) tensors; on rank 0 its parts, the manifest last, else ()."""
    writer = ParquetWriter(run, folder, rank_and_world()[0])
    with _plain_errors():
        dcp_save(state, storage_writer=writer, planner=DefaultSavePlanner(), process_group=group)
    return tuple(writer.parts) if rank_and_world()[0] == 0 else ()


def load_state(run: Location, parts: tuple[Part, ...], state: dict[str, Any]) -> None:
    """Collective: fill the state's tensors in place, at any number of ranks, from `parts` (rank 0's count).

    Corrupt if bytes are missing or damaged (the state is then partly overwritten); ValueError, before anything is
    read, if names, shapes or dtypes are not those of the checkpoint.
    """

    def read() -> tuple[tuple[Part, ...], bytes]:
        return parts, read_part(run, manifest_of(parts))

    parts, content = on_rank_0(read)
    manifest = Manifest.from_bytes(content)
    # A tensor that is not sharded may be in one rank's state only.
    here = {name: its for forms in on_every_rank(lambda: dict(_forms(state))) for name, its in forms.items()}
    saved = {name: form(dtype, size) for name, (dtype, size) in manifest.tensors.items()}
    missing, unknown = here.keys() - saved.keys(), saved.keys() - here.keys()
    if missing or unknown:
        raise ValueError(
            f"a state must have the tensors of its checkpoint {parts[-1].path}; not in it: {sorted(missing)[:3]} of "
            f"{len(missing)}, only in it: {sorted(unknown)[:3]} of {len(unknown)}; use the run's own recipe"
        )
    for name in sorted(here):
        if here[name] != saved[name]:
            raise ValueError(
                f"a state must have the tensors of its checkpoint {parts[-1].path}, but `{name}` is {saved[name]} "
                f"there and {here[name]} here; use the run's own recipe"
            )
    with _plain_errors():
        dcp_load(state, storage_reader=ParquetReader(run, parts, manifest), planner=DefaultLoadPlanner())


def _forms(state: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Names of the tensors, and dtype and shape of each."""
    for key, value in state.items():
        if isinstance(value, dict):
            yield from _forms(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", form(value.dtype, value.shape)


class RunStore:
    """One run's checkpoints and tables below `location` (`<study>/runs/<run>`); every rank has one, and calls alike.

    All methods are collective over the default process group, if there is one. A rank of an attempt that another
    has superseded gets Fenced from `save`; what it wrote by then stays invisible.
    """

    def __init__(self, location: Location, run: str, keep: Keep | None = None) -> None:
        self.location, self.run, self.keep = location, run, keep or Keep()
        self._log = CommitLog(location)
        self._attempt: Record | None = None  # this attempt's record
        self._head: Record | None = None  # rank 0: the last record that this attempt committed
        self._base = NO_BASE
        self._damaged: set[int] = set()  # records whose state this attempt could not read
        self._staging = Staging()
        self._writing: Background | None = None
        self._group: dist.ProcessGroup | None = None

    @property
    def finished(self) -> Record | None:
        """The record that ended the run, if it has ended."""

        def read() -> Record | None:
            head = self._log.head()
            return head if head and head.kind == "finished" else None

        return on_rank_0(read)

    def meta(self) -> dict[str, Any]:
        """What the newest attempt said of itself; {} before the first."""

        def read() -> dict[str, Any]:
            head = self._log.head()
            return head.meta if head else {}

        return on_rank_0(read)

    def open_attempt(self, recipe_hash: str, meta: Mapping[str, Any] | None = None) -> int:
        """Commit the record of a new attempt, which fences all earlier ones; its number, counted from 1.

        Finished if the run is; ConfigError if the log is of another recipe; Fenced if another attempt won.
        """
        world = rank_and_world()[1]

        def begin() -> Record:
            found = list((self.location / "data").walk())
            record = self._log.open_attempt(self.run, recipe_hash, world, meta)
            retention.sweep(self.location, found, self._log.records())
            return record

        opened = on_rank_0(begin)
        self._attempt = self._head = opened
        self._base = NO_BASE
        return opened.attempt

    @property
    def has_checkpoint(self) -> bool:
        """Whether `load` fills all of a state, or raises."""
        return on_rank_0(lambda: bool(self._candidates()))

    def load(self, state: dict[str, Any], at_most: int | None = None) -> dict[str, Any]:
        """Fill the state in place from the newest checkpoint that is whole: {"step", "tokens", "scalars"}.

        `at_most`: go back to one of at most this step, among those that the present state was trained through. Step 0
        and an untouched state if there never was one; Corrupt if none is whole, or none is kept any more.
        """
        self.wait()
        damage = ""
        for record in on_rank_0(lambda: self._candidates(at_most)):
            try:
                load_state(self.location, record.parts, state)
            except Corrupt as error:
                damage = damage or str(error)
                self._damaged.add(record.seq)
                if rank_and_world()[0] == 0:
                    warnings.warn(f"checkpoint of step {record.step} is damaged: {error}", stacklevel=2)
                continue
            self._base = record.seq
            return {"step": record.step, "tokens": record.tokens, "scalars": record.scalars}
        if damage:
            raise Corrupt(f"{self.run!r} has no checkpoint that is whole; the newest: {damage}")
        self._base = NO_BASE
        return {"step": 0, "tokens": 0, "scalars": {}}

    def _candidates(self, at_most: int | None = None) -> list[Record]:
        """What `load` tries, in turn."""
        records = self._log.records()
        gone = expired(records)
        if at_most is None:
            saved = [record for record in records if record.kind != "attempt"]
        else:  # the newest may be of what an earlier way back has left behind
            saved = [record for record in lineage(records, self._base) if record.step <= at_most]
        living = [record for record in reversed(saved) if record.seq not in gone]
        if saved and not living:
            upto = "" if at_most is None else f" of at most step {at_most}"
            raise Corrupt(
                f"a run must go on from a checkpoint of its own, but {self.run!r} keeps none{upto} any more; the "
                f"newest was of step {saved[-1].step}; keep more in a new run (`keep_checkpoints`, `keep_every`)"
            )
        return living

    def save(
        self,
        state: dict[str, Any],
        *,
        step: int,
        tokens: int,
        tables: Mapping[str, pa.Table],
        scalars: Mapping[str, Any] | None = None,
        kind: str = "checkpoint",
        background: bool = False,
    ) -> None:
        """Write this rank's shards and tables (`schemas.TABLES`: the rows since the last save), then commit.

        `state` holds tensors only; `scalars` (JSON) are rank 0's. The rows become visible with the record. In the
        background the state is only copied, and the rest goes on while the caller continues; one at a time: each call
        waits for the save before it, and raises what that one met. Fenced if another attempt has taken over.
        """
        self.wait()
        if self._attempt is None or self._head is None:
            raise ValueError("a run must open an attempt before it saves; call open_attempt first")
        if kind not in ("checkpoint", "finished"):
            raise ValueError(f"`kind` must be checkpoint or finished, but got {kind!r}")
        check_tensors_only(state)
        if not background:
            self._commit(state, step, tokens, tables, scalars, kind, None)
            return
        if self._group is None and rank_and_world()[1] > 1:
            # Its collectives must not mix with those of training.
            self._group = dist.new_group(backend="gloo")
        copy = self._staging.copy(state)
        self._writing = Background(
            lambda: self._commit(copy, step, tokens, tables, scalars, kind, self._group)
        )

    def wait(self) -> None:
        """Return when no save is being written; raises what the last one met."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def _commit(
        self,
        state: dict[str, Any],
        step: int,
        tokens: int,
        tables: Mapping[str, pa.Table],
        scalars: Mapping[str, Any] | None,
        kind: str,
        group: dist.ProcessGroup | None,
    ) -> None:
        rank, _ = rank_and_world()
        head, attempt = self._head, self._attempt
        assert head is not None
        assert attempt is not None
        # The number that this commit will have makes its folder unique, also when a step is saved twice.
        unique = f"{attempt.generation}.{head.seq + 1:08d}"
        folder = f"data/{step:012d}/{unique}"
        paths = {kind: f"parts/{kind}-{unique}-{step:012d}-r{rank}.parquet" for kind in tables}
        try:
            written = on_every_rank(lambda: self._write_tables(tables, paths), group)
            data = save_state(self.location, folder, state, group)
        except OSError:  # told by all ranks to all, so no record follows; a broken connection is no OSError
            retention.discard(self.location, paths.values(), folder)
            raise

        def append() -> Record:
            records = self._log.records()
            given_up = self.keep.expiring(records, self._damaged)
            record = replace(
                attempt,
                kind=kind,
                step=step,
                tokens=tokens,
                base=self._base,
                scalars=dict(scalars or {}),
                meta={**attempt.meta, "expired": given_up} if given_up else attempt.meta,
                parts=(*data, *(part for parts in written for part in parts)),
            )
            committed = self._log.append(head, record)
            retention.delete(self.location, (records[seq] for seq in given_up))
            return committed

        self._head = on_rank_0(append, group)
        self._base = self._head.seq

    def _write_tables(self, tables: Mapping[str, pa.Table], paths: Mapping[str, str]) -> list[Part]:
        written = []
        for kind, rows in tables.items():
            if kind not in TABLES or rows.schema != SCHEMAS[kind]:
                raise ValueError(
                    f"a table must be one of {', '.join(TABLES)} in its schema, but got {kind!r}: {rows.schema}"
                )
            if rows.num_rows:
                written.append(create_part(self.location, kind, paths[kind], to_bytes(rows)))
        return written
