"""Make the shards here again, each by its own project's writer, and check that its own reader gives the documents back.

    python make.py megatron   # with megatron-core and torch
    python make.py others     # with datasets, datatrove and dolma

README.md has the versions. Both parts write the same documents, which are in documents.json.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import random
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
VOCAB = 1000


def documents() -> list[list[int]]:
    """48 documents of 0 to 60 ids; the third and the last are empty, the fifth is there again as the thirtieth."""
    draw = random.Random(0)
    made = [[draw.randrange(VOCAB) for _ in range(draw.randrange(1, 61))] for _ in range(48)]
    made[2], made[47], made[29] = [], [], list(made[4])
    return made


def halves() -> dict[str, list[list[int]]]:
    """The documents of two shards."""
    made = documents()
    return {"a": made[:20], "b": made[20:]}


def joined(docs: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(docs))


def folder(name: str) -> Path:
    (HERE / name).mkdir(exist_ok=True)
    return HERE / name


def megatron() -> None:
    """Megatron's builder; the second shard has 32-bit ids, as of a vocabulary above 65,500."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

    for (name, docs), dtype in zip(halves().items(), (np.uint16, np.int32), strict=True):
        prefix = str(folder("megatron") / name)
        builder = IndexedDatasetBuilder(prefix + ".bin", dtype=dtype)
        for doc in docs:
            builder.add_item(torch.tensor(doc, dtype=torch.int64))
            builder.end_document()
        builder.finalize(prefix + ".idx")
        assert [np.asarray(row).tolist() for row in IndexedDataset(prefix)] == docs


def datatrove() -> None:
    """The writer of datatrove's pipeline step for Megatron."""
    from datatrove.io import get_datafolder
    from datatrove.pipeline.tokens.megatron_tokenizer import MegatronTokenizedFile

    for name, docs in halves().items():
        file = MegatronTokenizedFile(get_datafolder(str(folder("datatrove"))), name, token_size=2)
        for doc in docs:
            file.write(doc)
        file.close()


def dolma() -> None:
    """The writer of dolma; OLMo maps the `.npy` as it is and reads rows of start and end from the `.csv.gz`."""
    root = Path(importlib.util.find_spec("dolma").submodule_search_locations[0])
    for name in (
        "dolma",
        "dolma.core",
        "dolma.tokenizer",
    ):  # whose own imports need fasttext and more; the writer does not
        package = sys.modules[name] = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
    from dolma.tokenizer.data_types import TokenizerOutput
    from dolma.tokenizer.memmap_writer import MemmapWriter

    for name, docs in halves().items():
        path = folder("dolma") / f"part-{name}.npy"
        with MemmapWriter(str(path), np.dtype("uint16"), max_tokens=1 << 12) as writer:
            for i, doc in enumerate(docs):
                made = TokenizerOutput(id=f"{name}{i}", src="made", loc=i, tokens=doc, start=0, end=len(doc))
                assert writer.write(made)
        assert np.memmap(path, np.uint16, mode="r").tolist() == joined(docs)


def datasets() -> None:
    """`save_to_disk` writes Arrow streams, `to_parquet` Parquet; pyarrow writes Arrow files, here of large lists."""
    import pyarrow as pa
    from datasets import Dataset, Features, Sequence, Value, load_dataset, load_from_disk

    rows = {"text": [f"document {i}" for i in range(48)], "input_ids": documents()}
    features = Features({"text": Value("string"), "input_ids": Sequence(Value("int32"))})
    whole: Any = Dataset.from_dict(rows, features=features)
    whole.save_to_disk(str(folder("datasets")), num_shards=2)
    assert load_from_disk(str(HERE / "datasets"))["input_ids"][:] == documents()
    for name, part in zip("ab", (whole.select(range(20)), whole.select(range(20, 48))), strict=True):
        part.to_parquet(str(folder("parquet") / f"{name}.parquet"), batch_size=8)
    files = [str(HERE / f"parquet/{name}.parquet") for name in "ab"]
    cache = str(HERE / ".cache")
    again = load_dataset("parquet", data_files=files, split="train", cache_dir=cache)
    assert again["input_ids"][:] == documents()
    ids = pa.array(documents(), pa.large_list(pa.uint16()))
    table = pa.table({"kind": pa.array(["x", "y"] * 24).dictionary_encode(), "tokens": ids})
    with pa.ipc.new_file(str(folder("arrow") / "a.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=10)


def by_specification() -> None:
    """llm.c's header (dev/data/data_common.py, `write_datafile`) and nanoGPT's bare uint16 (data/*/prepare.py)."""
    for name, docs in halves().items():
        ids = np.array(joined(docs), np.uint16)
        ids.tofile(folder("nanogpt") / f"{name}.bin")
        header = np.zeros(256, np.int32)
        header[:3] = 20240520, 1, len(ids)
        (folder("llm.c") / f"{name}.bin").write_bytes(header.tobytes() + ids.tobytes())


def main() -> None:
    (HERE / "documents.json").write_text(json.dumps(documents()) + "\n")
    for make in (
        (megatron,) if sys.argv[1:] == ["megatron"] else (datatrove, dolma, datasets, by_specification)
    ):
        make()


if __name__ == "__main__":
    main()
