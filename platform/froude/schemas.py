"""Schemas of the frames that a study consists of; units in each field's name or note."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

#: Of a table that is read whole: bytes of its columns, and values of one of them. A few kB can claim to be gigabytes.
MOST_BYTES, MOST_VALUES = 1 << 28, 1 << 22

_S, _I, _F = pa.string(), pa.int64(), pa.float64()
_TIME = pa.timestamp("us", tz="UTC")

#: Under which a file of trials has the description of the trial that computed its rows, as JSON.
TRIAL_KEY = b"froude.trial"

#: One row a finished trial, or a branch of one: tokens and batch in tokens, loss in nats per token.
TRIALS = pa.schema(
    [
        ("run", _S),
        ("fingerprint", _S),
        ("status", _S),  # finished | diverged | failed
        ("params", _I),  # without embedding and readout
        ("params_with_embeddings", _I),
        ("width", _I),
        ("depth", _I),
        ("tokens", _I),
        ("steps", _I),
        ("batch", _I),  # tokens / steps: where it is ramped the mean, rounded to whole tokens
        ("lr", _F),
        ("warmup_tokens", _I),
        ("beta2", _F),
        ("weight_decay", _F),
        ("optimizer", _S),
        ("schedule", _S),
        ("parametrization", _S),
        ("precision", _S),
        ("stage", _S),
        ("seed", _I),
        ("loss", _F),  # final validation loss; null unless finished
        ("flops", _F),
        ("seconds", _F),
        ("attempts", _I),
        ("trial", _S),  # the trial that computed the row: a trunk with its branches is one trial
        ("workers", _I),
        ("leaked", _F),  # share of the validation windows, or documents, that are in the training split
        ("time", _TIME),
        ("error", _S),  # null unless failed
        # Null in rows that a version before them wrote.
        ("last_loss", _F),  # the newest finite loss: of validation at the end, else of the last training step
        ("reason", _S),  # in one line why the run diverged or failed (there the same as `error`); else null
        ("model", _S),  # import path of the factory, and what of its architecture is not plain
        (
            "corpus",
            _S,
        ),  # import path of the source; the file's name and first digits of its hash, if the run has them
        # Digest of the content of the corpus and of foreign code; the whole record is the file's `froude.material`.
        ("material", _S),
        ("head_dim", _I),
        ("context", _I),  # tokens of a window
        ("vocab", _I),
        ("data_options", _S),  # the source's own, as JSON: its mixture, phase and the like
        ("rest_lr", _F),  # AdamW's, for what an optimizer of matrices leaves; null where nothing is left
        ("rest_beta2", _F),
        # Share of the run over which decay forgets weights; null where there is none, or it is added to the gradient.
        ("timescale", _F),
        ("beta2_half_life", _F),  # tokens; null where beta2 was set
        ("batch_final", _I),  # of the last step: unlike `batch` in a run that ramped it
        ("decay_fraction", _F),  # share of the run that the tail of a schedule takes, where it has one
        # loss / ln 2 / bytes of text per token of the validation split; null where the source does not know those.
        ("bits_per_byte", _F),
        ("trainer", _S),  # external: trained by a user's command, not by froude; else null
    ]
)

STEPS = pa.schema(
    [
        ("run", _S),
        ("attempt", _I),
        ("step", _I),  # 1 = after the first update
        ("tokens", _I),  # seen after this step
        ("loss", _F),  # mean over the batch, before the update
        ("lr", _F),
        ("grad_norm", _F),  # L2, before clipping
        ("tokens_per_second", _F),
        ("world", _I),
        ("time", _TIME),
        # Every `noise_every` steps of an exact run, else null: the norms that laws.noise_scale reads. Small is a slot
        # (mean over slots), big the step's batch, both in tokens.
        ("batch_small", _I),
        ("batch_big", _I),
        ("small_sq_norm", _F),
        ("big_sq_norm", _F),
        ("noise_scale", _F),  # tokens, from moving averages; null until they tell: a trend, no measurement
        ("seconds", _F),  # of the step, by the wall clock
        ("workers", _I),  # the same as `world`
        # Of rank 0: seconds of drawing the batch, of the passes, of norm and sum over workers, of clipping and the
        # update; on a GPU its own time. Null where they were not taken.
        ("data_seconds", _F),
        ("forward_seconds", _F),
        ("backward_seconds", _F),
        ("reduce_seconds", _F),
        ("optimizer_seconds", _F),
        (
            "mfu",
            _F,
        ),  # share of the devices' peak FLOPs at the run's precision; null on a device that is not known
    ]
)

EVALS = pa.schema(
    [
        ("run", _S),
        ("attempt", _I),
        ("step", _I),
        ("tokens", _I),
        ("split", _S),
        ("loss", _F),
        ("time", _TIME),
        ("bits_per_byte", _F),  # as in TRIALS, of the split
    ]
)

COMMITS = pa.schema(
    [
        ("run", _S),
        ("seq", _I),
        ("parent", _S),  # digest of the record before it
        ("attempt", _I),
        ("kind", _S),  # attempt | checkpoint | finished
        ("step", _I),
        ("tokens", _I),
        ("time", _TIME),
        ("world", _I),
        ("recipe", _S),  # SHA-256 of the sealed recipe: named before step 0, by every record
    ]
)

LEDGER = pa.schema(
    [
        ("run", _S),
        ("attempt", _I),
        ("step", _I),
        ("slot", _I),
        ("first_sample", _I),  # global, counted over epochs
        ("samples", _I),
        ("tokens", _I),
        ("digest", _S),  # xxh3-64 of the tensor handed to forward
        ("disposition", _S),  # trained | skipped_by_policy
        # How many of the samples are of which part of a mixture; null for one source.
        ("parts", pa.list_(pa.struct([("part", _S), ("samples", _I)]))),
    ]
)

#: What the spike policy did or noticed.
EVENTS = pa.schema(
    [
        ("run", _S),
        ("attempt", _I),
        ("step", _I),  # for which the batch was drawn; 1 = the first update
        ("batch", _I),  # from 0; the first of those that a step of a ramp takes
        ("action", _S),  # warn | spike | skip | ease | rollback | lower | stop
        ("why", _S),
        ("time", _TIME),
    ]
)

#: L2 norms of gradients (before clipping) and parameters (after the update), root mean squares of activations; and what
#: docs/guide/stability.md lists: attention_logit, update_ratio, second_moment, momentum_*.
NORMS = pa.schema([("run", _S), ("attempt", _I), ("step", _I), ("kind", _S), ("name", _S), ("value", _F)])

#: What a user's own evaluation says at checkpoints (froude.train.observers.downstream).
DOWNSTREAM = pa.schema(
    [("run", _S), ("attempt", _I), ("step", _I), ("tokens", _I), ("name", _S), ("value", _F), ("time", _TIME)]
)

#: One row a study whose target run is finished, in a register (froude.register): a sealed forecast and what came.
SCORES = pa.schema(
    [
        ("study", _S),  # the folder's name
        ("run", _S),
        ("recipe", _S),  # SHA-256 of the sealed recipe
        ("fingerprint", _S),  # of the run
        ("sealed_at", _TIME),
        ("finished_at", _TIME),  # of the log's last record
        ("version", _S),  # of the froude that wrote the row
        ("model", _S),
        ("corpus", _S),
        ("params", _I),  # of the target run, without embedding and readout
        ("tokens", _I),
        ("batch", _I),  # tokens
        ("flops", _F),
        # The forecast of the final validation loss, in nats per token, and others made of the same proxies.
        ("forecast", _F),
        ("low", _F),
        ("high", _F),
        ("level", _F),
        ("certified", pa.bool_()),
        ("status", _S),  # of the loss law
        ("naive", _F),  # that of the proxy of most compute
        ("comparator", _F),  # published exponents
        ("compute_line", _F),
        ("free_loss", _F),
        # What came.
        ("loss", _F),  # measured
        ("inside", pa.bool_()),
        ("relative_error", _F),  # (forecast - loss) / loss
        ("erred", _S),  # law | curve | empty
        # The target over the largest proxy.
        ("reach_params", _F),
        ("reach_tokens", _F),
        ("reach_compute", _F),
        ("reach_batch", _F),
        ("proxy_cost", _F),  # FLOPs of all proxies over the target's; null where their rows do not tell
        ("profile", _S),  # of the gate
        ("overrides", pa.list_(_S)),  # checks of the gate that failed and were overridden
        ("trainer", _S),  # external: another trainer's metrics were followed; else null
    ]
)

SCHEMAS = {
    "trials": TRIALS,
    "steps": STEPS,
    "evals": EVALS,
    "commits": COMMITS,
    "ledger": LEDGER,
    "events": EVENTS,
    "norms": NORMS,
    "downstream": DOWNSTREAM,
}
#: What a run's commits carry besides its state.
TABLES = ("ledger", "steps", "evals", "events", "norms", "downstream")


def table(schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows as a table of exactly this schema; a missing key is null, an unknown one a KeyError."""
    known = set(schema.names)
    for row in rows:
        if unknown := set(row) - known:
            raise KeyError(f"no such column: {', '.join(sorted(unknown))}")
    return pa.table(
        {f.name: pa.array([row.get(f.name) for row in rows], f.type) for f in schema}, schema=schema
    )


def conformed(found: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly these columns, null where an earlier version had none; ValueError for any other column."""
    known = {field.name: field.type for field in schema}
    for field in found.schema:
        if known.get(field.name) != field.type:
            raise ValueError(f"no such column: {field.name} of {field.type}")
    columns = {
        name: found[name] if name in found.column_names else pa.nulls(found.num_rows, kind)
        for name, kind in known.items()
    }
    return pa.table(columns, schema=schema)


def to_bytes(frame: pa.Table) -> bytes:
    """The table as one Parquet file in memory."""
    sink = io.BytesIO()
    pq.write_table(frame, sink, compression="zstd")
    return sink.getvalue()


def table_of(content: bytes) -> pa.Table:
    """A small Parquet file in memory as a table; ValueError (Arrow's too) or OSError if it is not one, or not small."""
    # Arrow's threads may hold a Python file until after the interpreter has ended, which aborts the process.
    file = pq.ParquetFile(pa.BufferReader(content))
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    size = sum(group.total_byte_size for group in groups)
    if not 0 <= size <= MOST_BYTES or not 0 <= file.metadata.num_rows <= MOST_VALUES:
        raise ValueError(f"{size} bytes in {file.metadata.num_rows} rows are too much")
    # A damaged column's metadata is an error to a reader, but ends the process of whoever asks for it first
    # (pyarrow 26); scanning reads in constant memory, so nested columns can be counted before they are held.
    file.scan_contents(batch_size=1024)
    values = max(
        (group.column(i).num_values for group in groups for i in range(group.num_columns)), default=0
    )
    if not 0 <= values <= MOST_VALUES:
        raise ValueError(f"{values} values in a column are too much")
    return file.read(use_threads=False)
