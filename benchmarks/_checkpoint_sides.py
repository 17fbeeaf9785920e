"""The sides of checkpoint_speed.py: froude's checkpoints, and torch's own with as many threads, blocking and beside."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint import (
    FileSystemReader,
    FileSystemWriter,
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
    async_save,
)
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from froude.checkpoint.reader import READ_THREADS
from froude.checkpoint.retention import Keep
from froude.checkpoint.run_store import RunStore, load_state, save_state
from froude.store import Location

WIDTH, VOCAB = 768, 50304
State = dict[str, torch.Tensor]


class Side(Protocol):
    def save(self, state: State) -> None: ...
    def load(self, state: State) -> None: ...
    def clear(self) -> None: ...


class Ours:
    def __init__(self, place: Location) -> None:
        self._place = place

    def save(self, state: State) -> None:
        self._parts = save_state(self._place, "data", state)

    def load(self, state: State) -> None:
        load_state(self._place, self._parts, state)

    def clear(self) -> None:
        for part in self._parts:
            (self._place / part.path).delete()


class Torch:
    """DCP's FileSystemWriter and -Reader; on S3 FsspecWriter and -Reader, whose client is s3fs."""

    def __init__(self, place: Location, threads: int = READ_THREADS) -> None:
        self._place, self._threads = place, threads

    def save(self, state: State) -> None:
        dcp_save(state, storage_writer=self._writer())

    def load(self, state: State) -> None:
        reader: Any = FileSystemReader(self._place.url) if self._place.is_local else self._of(FsspecReader)
        dcp_load(state, storage_reader=reader)

    def clear(self) -> None:
        for file in self._place.walk():
            file.delete()

    def _writer(self) -> Any:
        if self._place.is_local:
            return FileSystemWriter(self._place.url, thread_count=self._threads)
        return self._of(FsspecWriter, thread_count=self._threads)

    def _of(self, kind: Any, **more: Any) -> Any:
        endpoint = {"endpoint_url": os.environ.get("AWS_ENDPOINT_URL")}
        return kind(self._place.url, client_kwargs=endpoint, **more)


class TorchDefault(Torch):
    def __init__(self, place: Location) -> None:
        super().__init__(place, threads=1)


class TorchSafetensors(Torch):
    """DCP's writer and reader of safetensors, a file a thread: the only ones of torch that load with several."""

    def save(self, state: State) -> None:
        self._place.path.mkdir(parents=True, exist_ok=True)
        files, filled = {}, [0] * self._threads
        for name in sorted(state, key=lambda name: -state[name].nbytes):  # the largest into the emptiest
            emptiest = filled.index(min(filled))
            files[name] = emptiest + 1
            filled[emptiest] += state[name].nbytes
        writer = HuggingFaceStorageWriter(self._place.url, files, thread_count=self._threads)
        dcp_save(state, storage_writer=writer)

    def load(self, state: State) -> None:
        dcp_load(state, storage_reader=HuggingFaceStorageReader(self._place.url, self._threads))


#: Title, settings, and what makes it; the first is ours.
SIDES: dict[str, tuple[str, str, Callable[[Location], Side]]] = {
    "ours": (
        "froude",
        f"`save_state` (one thread) and `load_state` ({READ_THREADS} threads) as a run uses them; every block and file "
        "is hashed and checked",
        Ours,
    ),
    "torch": (
        f"torch, {READ_THREADS} threads",
        f"`FileSystemWriter(thread_count={READ_THREADS})` and `FileSystemReader`, which has one; on S3 `FsspecWriter` "
        "and `FsspecReader` with s3fs likewise; no hashes",
        Torch,
    ),
    "safetensors": (
        f"torch, safetensors, {READ_THREADS} threads",
        f"`HuggingFaceStorageWriter` into {READ_THREADS} files and `-Reader`, `thread_count={READ_THREADS}` for both; "
        "no hashes; not on S3",
        TorchSafetensors,
    ),
    "default": ("torch, default", "as the first of torch, but `thread_count=1`", TorchDefault),
}


class OursBeside:
    """Saves into a run's commit log, in the background or not; `begin` returns when the caller may go on."""

    def __init__(self, place: Location) -> None:
        self._store = RunStore(place / "ours", "large", Keep(last=1))
        self._store.open_attempt("recipe")
        self._step = 0

    def save(self, state: State) -> None:
        self._save(state, background=False)

    def begin(self, state: State) -> Callable[[], None]:
        self._save(state, background=True)
        return self._store.wait

    def _save(self, state: State, background: bool) -> None:
        self._step += 1
        self._store.save(state, step=self._step, tokens=self._step, tables={}, background=background)


class TorchBeside:
    """`async_save` in a thread, into a folder of its own; `keep`: with one stager, whose copy is used again."""

    def __init__(self, place: Location, keep: bool) -> None:
        self._place = place / ("kept" if keep else "fresh")
        options = StagingOptions(
            use_pinned_memory=False,  # of no use without a GPU
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=False,
        )
        self._stager = DefaultStager(options) if keep else None
        self._number = 0

    def save(self, state: State) -> None:
        side = self._next()
        side.save(state)
        side.clear()

    def begin(self, state: State) -> Callable[[], None]:
        side = self._next()
        writer = FileSystemWriter(side._place.url)  # one thread, as ours has beside the training
        done: Any = async_save(state, storage_writer=writer, async_stager=self._stager)
        assert isinstance(done, Future)

        def wait() -> None:
            done.result()
            side.clear()

        return wait

    def _next(self) -> Torch:
        self._number += 1
        return TorchDefault(self._place / str(self._number))


BESIDE: dict[str, tuple[str, Callable[[Location], Any]]] = {
    "ours": ("froude", OursBeside),
    "kept": ("torch, `async_save`, kept stager", lambda place: TorchBeside(place, keep=True)),
    "fresh": ("torch, `async_save`", lambda place: TorchBeside(place, keep=False)),
}


def adamw_state(depth: int, seed: int) -> State:
    """Parameters and both moments of a GPT-2 of `depth` layers with tied embeddings: 1.38 GiB with 12."""
    shapes = {"embedding.weight": (VOCAB, WIDTH), "norm.weight": (WIDTH,)}
    for layer in range(depth):
        for name, shape in {
            "attention.qkv": (3 * WIDTH, WIDTH),
            "attention.out": (WIDTH, WIDTH),
            "mlp.up": (4 * WIDTH, WIDTH),
            "mlp.down": (WIDTH, 4 * WIDTH),
            "norm1": (WIDTH,),
            "norm2": (WIDTH,),
        }.items():
            shapes[f"blocks.{layer}.{name}.weight"] = shape
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes.items():
        state[f"model.{name}"] = 0.02 * torch.randn(shape, generator=generator)
        state[f"optimizer.{name}.exp_avg"] = 1e-3 * torch.randn(shape, generator=generator)
        state[f"optimizer.{name}.exp_avg_sq"] = (1e-3 * torch.randn(shape, generator=generator)).square()
    return state


def size(state: State) -> float:
    """GiB."""
    return sum(tensor.nbytes for tensor in state.values()) / 2**30
