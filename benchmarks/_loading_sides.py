"""One side of data_loading.py, in the Python that has its library: says how long it took to load what it is asked for.

    python _loading_sides.py SIDE FOLDER        # one request a line on stdin, one answer a line on stdout

Requests: `make` writes the side's own form of the tokens, `open` opens them, `next N` loads N batches in random order,
`keep N` keeps what resuming needs, `resume N` goes to the batch after N as its users would, in a source that is open,
and loads it. The answer is seconds.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

CONTEXT, BATCH, SEED = 1024, 16, 0
Batch = np.ndarray[Any, Any]


def tokens(folder: Path) -> Batch:
    return np.memmap(folder / "tokens" / "train.bin", np.uint16, mode="r")


def rows(folder: Path) -> Iterator[Batch]:
    """What the peers store: windows of the context, cut."""
    ids = tokens(folder)
    for i in range(len(ids) // CONTEXT):
        yield np.array(ids[i * CONTEXT : (i + 1) * CONTEXT])


class Plain:
    """A memory map, sliced at random places and stacked, as in nanoGPT's `get_batch` without its second slice."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self) -> None:
        """The tokens are what it reads."""

    def open(self) -> Any:
        return tokens(self.folder)

    def keep(self, after: int) -> None:
        """It has no order to go back to."""

    def batches(self, opened: Any) -> Iterator[Batch]:
        order = np.random.default_rng(SEED)
        while True:
            places = order.integers(len(opened) - CONTEXT, size=BATCH)
            yield np.stack([opened[i : i + CONTEXT + 1].astype(np.int64) for i in places])

    def resumed(self, opened: Any, after: int) -> Batch:
        return next(self.batches(opened))


class Ours(Plain):
    """froude on the same file."""

    shards, held = "tokens", "held.bin"

    def open(self) -> Any:
        from froude.config import Run
        from froude.corpora import corpus
        from froude.train.api import build_source
        from froude.train.data.order import Batches

        corpus._opened.cache_clear()  # as a new process has it
        data = {
            "source": "froude.train.data.shards:Shards",
            "path": str(self.folder / self.shards),
            "options": {"validation": str(self.folder / "tokens" / "held.bin") if self.held else ""},
        }
        model = {"context": CONTEXT, "vocab": 50304}
        run = Run(batch=BATCH * CONTEXT, tokens=BATCH * CONTEXT, model=model, data=data)
        return Batches(build_source(run, "train"), SEED, BATCH, 1)

    def batches(self, opened: Any) -> Iterator[Batch]:
        for number in itertools.count():
            yield opened.slot(number, 0).tokens

    def resumed(self, opened: Any, after: int) -> Batch:
        found: Batch = opened.slot(after, 0).tokens
        return found


class OursArrow(Ours):
    """froude on the Arrow files of `datasets`."""

    shards, held = "datasets", ""


class Datasets(Plain):
    """Hugging Face datasets: Arrow files, mapped; `shuffle`, then the rows of a batch by number."""

    def make(self) -> None:
        import datasets

        datasets.disable_progress_bars()
        features = datasets.Features({"input_ids": datasets.Sequence(datasets.Value("uint16"))})
        made = datasets.Dataset.from_generator(
            lambda: ({"input_ids": row} for row in rows(self.folder)),
            features=features,
            cache_dir=str(self.folder / "cache"),
        )
        made.save_to_disk(str(self.folder / "datasets"))

    def open(self) -> Any:
        import datasets

        return datasets.load_from_disk(str(self.folder / "datasets"))

    def batches(self, opened: Any) -> Iterator[Batch]:
        shuffled = opened.shuffle(seed=SEED, keep_in_memory=True).with_format("numpy")
        while True:
            for i in range(0, len(shuffled) - BATCH, BATCH):
                yield shuffled[i : i + BATCH]["input_ids"].astype(np.int64)

    def stream(self, opened: Any) -> Any:
        """What its documentation has for runs that resume."""
        stream = opened.to_iterable_dataset(num_shards=8).shuffle(seed=SEED, buffer_size=1000)
        return stream.with_format("numpy").batch(BATCH)

    def keep(self, after: int) -> None:
        stream = self.stream(self.open())
        for _ in itertools.islice(stream, after):
            pass
        (self.folder / "datasets.state").write_text(json.dumps(stream.state_dict()))

    def resumed(self, opened: Any, after: int) -> Batch:
        stream = self.stream(opened)
        stream.load_state_dict(json.loads((self.folder / "datasets.state").read_text()))
        return np.asarray(next(iter(stream))["input_ids"], np.int64)


class Streaming(Plain):
    """Mosaic Streaming: MDS shards, local, shuffled, through its own loader in this process."""

    def make(self) -> None:
        from streaming import MDSWriter

        with MDSWriter(out=str(self.folder / "streaming"), columns={"input_ids": "ndarray:uint16"}) as writer:
            for row in rows(self.folder):
                writer.write({"input_ids": row})

    def open(self) -> Any:
        from streaming import StreamingDataLoader, StreamingDataset

        folder = str(self.folder / "streaming")
        made = StreamingDataset(local=folder, shuffle=True, batch_size=BATCH, shuffle_seed=SEED)
        return StreamingDataLoader(made, batch_size=BATCH, collate_fn=self._stacked)

    def batches(self, opened: Any) -> Iterator[Batch]:
        while True:
            yield from opened

    def resumed(self, opened: Any, after: int) -> Batch:
        opened.load_state_dict(opened.dataset.state_dict(after * BATCH, from_beginning=True))
        return next(iter(opened))

    @staticmethod
    def _stacked(samples: list[dict[str, Batch]]) -> Batch:
        return np.stack([sample["input_ids"] for sample in samples]).astype(np.int64)


SIDES = {"plain": Plain, "ours": Ours, "ours-arrow": OursArrow, "datasets": Datasets, "streaming": Streaming}


def main(name: str, folder: Path) -> None:
    """Answer requests until there are none."""
    side = SIDES[name](folder)
    opened: Any = None
    going: Iterator[Batch] = iter(())
    for line in sys.stdin:
        verb, number = [*line.split(), "0"][:2]
        began = time.perf_counter()
        if verb == "make":
            side.make()
        elif verb == "open":
            opened = side.open()
            going = side.batches(opened)
        elif verb == "keep":
            side.keep(int(number))
        elif verb == "resume":
            assert side.resumed(opened, int(number)).shape[0] == BATCH
        else:
            for batch in itertools.islice(going, int(number)):
                assert batch.dtype == np.int64
        print(json.dumps(time.perf_counter() - began), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
