"""Tables of four public sources that took no part in making the method until benchmarks/unseen_first_look.md.

Each set is a file `<name>.csv` of a folder, with columns params, tokens and loss; of several runs of one size and
tokens the lowest loss is taken.

- farseer, datablations: `benchmark/dataset/{farseer,data_constrained}_scaling_law/*.parquet` of
  github.com/PlanarG/active-sl at e0a58ff (Farseer, arXiv 2506.10972; Muennighoff et al., arXiv 2305.16264), train and
  test; of the second the runs whose unique tokens are at least .999 of their tokens: one pass over the data.
- openeurollm: `data/best_HPs/lr_gbsz_min_smooth.csv` of github.com/OpenEuroLLM/dense_english_scaling_laws at 781af43,
  the minimum over rates and batches, smoothed by its authors.
- xlstm_…: `data/isoflop_{llama_ctx2048,llama_ctx8192,llama_ctx16384,mlstm_ctx16384}_wandb_data.pkl` of
  github.com/NX-AI/xlstm_scaling_laws at 604bb30 (arXiv 2510.02228): num_params, global_batch_size × num_train_steps ×
  context, and dclm_loss of each run's summary, of runs that had ended.

Left out: the vocabulary runs of the first repository, whose losses are below zero, and its parallel, sparse and
mixture runs, whose rows have other variables than params and tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import polars as pl

#: Name and source of each set, and the SHA-256 of its table.
FROZEN: dict[str, tuple[str, str]] = {
    "farseer": ("Farseer", "0fde086cdf6b3fb488bb73c728ad06e07d7730a5b5d0b04b75d07fafe2c26fbe"),
    "datablations": ("Datablations", "e60bcbc2fd49ec8ef55f23ce04566846b5989ae00807ee7b91be87aac99874fd"),
    "openeurollm": ("OpenEuroLLM", "7bbcd57a3fbaed4e57c4178336ad650955a77ac91d64b1b0c695aad084d2cf74"),
    "xlstm_llama_2048": ("xLSTM", "09b377664afdce6739319ea5be65dd28000d27d0a18f66947aa097bd07c76aa7"),
    "xlstm_llama_8192": ("xLSTM", "6050664add1a51bee4399e041b10e7824a7d6143e50355adcc1684d24a334812"),
    "xlstm_llama_16384": ("xLSTM", "91b93324328fea310bf07a6a1732620671941222458dc07d004e539a92be5838"),
    "xlstm_mlstm_16384": ("xLSTM", "bfb2aa8ab6c569fce295e9f0df0bc52820a35f24d5a7454d0c1d0ef024323080"),
}


def sets(folder: Path) -> Iterator[tuple[str, pl.DataFrame, bool]]:
    """Name, rows, and that no two rows stem from one run, of each set."""
    for name, (source, sha256) in FROZEN.items():
        file = folder / f"{name}.csv"
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        if found != sha256:
            raise SystemExit(f"{file} has SHA-256 {found[:12]}…, the table that was frozen {sha256[:12]}…")
        rows = pl.read_csv(file).cast(pl.Float64)
        yield f"{source} {name}", rows.with_row_index("run"), False
