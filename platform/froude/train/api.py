"""The doors through which models, data and supervisors come in; the package's own use the same ones."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from froude.config import ConfigError, Run
from froude.material import Material, commands, foreign_code
from froude.parametrizations import Kind as Kind
from froude.parametrizations import Multiplied
from froude.section import listing
from froude.train.data import documents
from froude.train.memory import checkpointing, chunked, weights
from froude.user_code import PASSING, call_user, load

Request = Literal["none", "save", "hold", "stop"]
Split = Literal["train", "validation"]
SET_NAME = re.compile(r"\w+", re.ASCII)
SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Part:
    """A matrix in a fused tensor: the number of its rows, which are divided equally among its `heads`.

    One named "" is a whole tensor that is not fused, but has heads.
    """

    name: str
    rows: int
    heads: int = 1


@runtime_checkable
class Model(Protocol):
    """An nn.Module made by `factory(run)`; the factory is called with torch's generator seeded by the run.

    The package sets learning rates, decay and epsilon by `kinds()`. The rest of `run.parametrization` is up to the
    factory; these are right under each:

    - Parameters start with sd `initial_sd(run, kind, fan_in)`, times what does not depend on width, or at zero. Under
      muP and SP that of hidden matrices is fan_in**-0.5, that of embeddings and readout the same at every width; a
      constant such as 0.02 for hidden matrices is neither.
    - `forward` multiplies logits by `multiplier(run, "logits")`, once, whether the readout is tied or not.
    - Hidden matrices that write into the residual stream start with `branch_sd(run)` times that sd. What they add to it
      is multiplied by `multiplier(run, "residual")`, which is 1 unless the rate is to hold over depth.
    - Attention multiplies q·k by `multiplier(run, "attention")`: 1/sqrt(head_dim), as long as heads do not grow.

    `froude coordcheck` finds out whether it holds, and names the rule that does not.

    A factory may have `content(run) -> Mapping[str, str]`, SHA-256 by name of files that the model is made of (not
    corpus, train or validation, which name the run's data), and `libraries`, packages whose versions count: both are
    recorded. A model may have `notes() -> Sequence[str]`, lines for whoever starts the run.

    For `compute.loss_chunk` a model has its forward pass in two: `features(tokens) -> [windows, context, width]` and
    `logits(features) -> [windows, context, vocab]`, of each position by itself, with all that is done to logits. For
    `compute.checkpointing` = "sqrt" it calls its blocks as `self.in_turn(blocks, x, *rest)`, an attribute that it sets
    to `froude.train.memory.checkpointing.in_turn`.

    A model may also have `fused() -> Mapping[str, Sequence[Part]]`: for each hidden matrix that holds several, such as
    those of queries, keys and values, what its rows are, from first to last. To an optimizer that works on matrices
    each part is one, and a hidden tensor [rows, ...] is rows by all the rest; one row of it alone is a matrix of the
    rest, so experts [experts, out, in] are parts of one row each.

    A factory that is a class may itself define `initial(name) -> Tensor`, a parameter's values at the start, made from
    run and name alone: of several workers none then builds the whole model, but each block as it is shared out.

    With `model.documents` forward is called as `forward(tokens, documents)`, int64 [windows, context]: the number of
    the document that each token is of, so that it attends to those of the same alone.
    """

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [windows, context, vocab] of int64 tokens [windows, context]."""

    def blocks(self) -> Sequence[nn.Module]:
        """Submodules to shard one by one, in the order of the forward pass."""

    def kinds(self) -> Mapping[str, Kind]:
        """What each parameter is, by its name in `named_parameters()`; a tied readout is an embedding."""

    def flops_per_token(self) -> float:
        """FLOPs of one token's forward and backward pass."""


@runtime_checkable
class Source(Protocol):
    """Training or validation windows, made by `factory(run, split)`; the same for every caller.

    `sha256` (64 hex digits) names the content, and changes with it: results are used again only where it is the same.
    For files, `froude.train.data.content.content_sha256` computes it.

    A source of validation windows may also have `sets() -> Mapping[str, Source]`: other validation sets by name, for
    each of which a study gets a law and a forecast of its own. `sha256` names their content, too.

    A source of training windows may also have `numbers(seed, samples) -> NDArray`: the windows that samples, counted
    from the run's start, are, if they are to come in another order than the package's. It must be a function of these
    alone, and no sample may need those before it. And `parts_of(numbers) -> Mapping[str, int]`: how many of these
    windows are of which part, for the ledger's column `parts`.

    A source that reads from afar may have `expect(numbers: Sequence[int])`, which begins to fetch windows and does not
    wait for them: it is called with those of a slot before they are read, and with those of the next batch.

    It may have `documents(first, n) -> NDArray`, for each token of these windows the number of its document, integers
    [n, context + 1]: a run with `model.documents` needs them.

    It may have `bytes_per_token`, bytes of text (UTF-8) over tokens: losses are then told in bits per byte as well.
    """

    length: int
    sha256: str

    def read(self, first: int, n: int) -> NDArray[Any]:
        """Windows first … first + n - 1 as integers [n, context + 1]: inputs and, shifted by one, targets."""


class Supervisor(Protocol):
    """Who steers the training loop: a test, a process of its own, or a worker of a cluster."""

    attempt: int

    def poll(self, step: int) -> Request:
        """What to do after this step; every rank must get the same answer."""


@dataclass
class Unsupervised:
    """Lets the run go on to its end."""

    attempt: int = 1

    def poll(self, step: int) -> Request:
        return "none"


def check_trust(run: Run, trust: bool) -> None:
    """Raise a ConfigError when training the run would use code from outside the package without `trust`."""
    if run.trainer.command and not trust:
        raise ConfigError(
            f"a command of your own trains only when trusted, but got {' '.join(run.trainer.command)}; read what it "
            "runs, then pass --trust"
        )
    check_imports(run, trust)


def check_imports(run: Run, trust: bool) -> None:
    """Raise a ConfigError when the run would import code from outside the package without `trust`."""
    if run.foreign and not trust:
        raise ConfigError(
            f"import paths outside the package run only when trusted, but got {', '.join(run.foreign)}; "
            "read that code, then pass --trust"
        )


def build_model(run: Run, device: torch.device | str = "cpu", workers: int = 1) -> nn.Module:
    """The run's model, the same bits for the same run wherever it is built (built on the CPU, then moved).

    For several workers it may lack its weights, which `weights.maker` makes. ConfigError if the factory raises (except
    about files and memory, which may be there next time) or makes no Model.
    """
    factory, name = load(run.model.factory), run.model.factory
    late = weights.come_late(run, factory, workers)
    place: AbstractContextManager[object] = weights.absent() if late else nullcontext()
    with torch.random.fork_rng(devices=[]), torch.device("meta") if str(device) == "meta" else place:
        torch.manual_seed(run.seed)
        model = call_user(f"model factory {name}", factory, run, but=PASSING)
    missing = [part for part in ("blocks", "kinds", "flops_per_token") if not hasattr(model, part)]
    if missing or not isinstance(model, nn.Module):
        what = "" if isinstance(model, nn.Module) else f"returned {type(model).__name__}, which "
        raise ConfigError(
            f"a model must be an nn.Module with blocks, kinds and flops_per_token, but {name} {what}lacks "
            f"{', '.join(missing) or 'nn.Module'}; see froude.train.api.Model"
        )
    _check_kinds(model, run)
    documents.check_model(run, model)
    chunked.install(model, run)
    checkpointing.install(model, run)
    return model if late or str(device) == "meta" else model.to(device)


def _check_kinds(model: nn.Module, run: Run) -> None:
    factory = run.model.factory
    kinds = call_user(f"kinds() of {factory}", model.kinds, but=PASSING)  # type: ignore[arg-type]
    if not isinstance(kinds, Mapping):
        raise ConfigError(
            f"kinds() must map each parameter's name to its kind, but that of {factory} returned "
            f"{type(kinds).__name__}; see froude.train.api.Model"
        )
    named = {name for name, _ in model.named_parameters()}
    if odd := named.symmetric_difference(kinds):
        raise ConfigError(
            f"kinds() must name each parameter of {factory} once, but differs in {', '.join(sorted(odd)[:4])}; "
            "correct kinds()"
        )
    known = get_args(Kind)
    for name, kind in kinds.items():
        if kind not in known:
            near = difflib.get_close_matches(str(kind), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "name one of them"
            raise ConfigError(
                f"kinds() must say {', '.join(known[:-1])} or {known[-1]}, but that of {factory} calls {name} "
                f"{kind!r}; {hint}"
            )
    for kind in run.optimizer.multipliers:
        if kind not in kinds.values():
            raise ConfigError(
                f"`optimizer.multipliers.{kind}` needs parameters of that kind, but {factory} has none among kinds(); "
                f"it has {', '.join(dict.fromkeys(kinds.values()))}"
            )


def build_source(run: Run, split: Split) -> Source:
    """The run's windows of one split; ConfigError as `build_model`."""
    what = f"source {run.data.source} of split {split}"
    source: Source = call_user(what, load(run.data.source), run, split, but=PASSING)
    sha256 = getattr(source, "sha256", None)
    if not isinstance(sha256, str) or not SHA256.fullmatch(sha256):
        raise ConfigError(
            f"a source must name its content by `sha256`, 64 hex digits, but that of {run.data.source} is {sha256!r}; "
            "froude.train.data.content.content_sha256(files) computes one"
        )
    documents.check_source(run, source, f"the {split} split of {run.data.path or run.data.source}")
    if run.data.sha256 and source.sha256 != run.data.sha256:
        raise ConfigError(
            f"the corpus must have the SHA-256 {run.data.sha256[:12]}… that the run names, but has "
            f"{source.sha256[:12]}…; restore the file, or clear `data.sha256` to train on another corpus"
        )
    return source


def validation_sets(run: Run, validation: Source) -> dict[str, Source]:
    """The other validation sets that a source has, by name; ConfigError for a name that no column can have."""
    given = getattr(validation, "sets", None)
    found = call_user(f"sets() of {run.data.source}", given, but=PASSING) if given is not None else {}
    odd = [
        name
        for name in found
        if not (isinstance(name, str) and SET_NAME.fullmatch(name)) or name in get_args(Split)
    ]
    if odd:
        raise ConfigError(
            "a validation set's name must be a string of letters, digits and _, and not "
            f"{listing(get_args(Split))}, but sets() of {run.data.source} has {odd[0]!r}; rename it"
        )
    for name, source in found.items():
        documents.check_source(run, source, f"validation set {name!r} of {run.data.source}")
    return dict(found)


def bytes_per_token(run: Run, source: Source) -> float | None:
    """What a source says of itself; None if it says nothing, ConfigError if it is no positive number."""
    given = getattr(source, "bytes_per_token", None)
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
        raise ConfigError(
            f"`bytes_per_token` must be a positive number, but that of {run.data.source} is {given!r}; correct it, or "
            "leave it out"
        )
    return float(given)


def material_of(run: Run) -> Material:
    """What the run's config cannot say of it, as it is here and now; both splits are asked for their hashes."""
    if run.trainer.command:
        return commands.material(run)
    train, validation = (build_source(run, split).sha256 for split in get_args(Split))
    paths = [run.model.factory, *run.data.sources]
    if run.optimizer.imported:
        paths.append(run.optimizer.name)
    if run.optimizer.imported or run.optimizer.spec.library:
        paths.append(run.optimizer.spec.factory)
        run.optimizer.spec.load()
    factory = load(run.model.factory)
    modules, versions = foreign_code([*paths, *getattr(factory, "libraries", ())])
    corpus = {"corpus": train} if train == validation else {"train": train, "validation": validation}
    if callable(content := getattr(factory, "content", None)):
        corpus |= call_user(f"content() of {run.model.factory}", content, run, but=PASSING)
    return Material(corpus, modules, versions)


def initial_sd(run: Run, kind: Kind, fan_in: int) -> float:
    """Standard deviation with which a matrix starts; `fan_in` is its input's size, and counts for hidden ones only."""
    shape = run.model
    match kind:
        case "hidden":
            sd = fan_in**-0.5
        case "embedding":
            sd = shape.embedding_sd
        case "readout":
            sd = shape.readout_sd
        case _:
            return 0.0  # gains start at 1, biases at 0
    family = run.optimizer.family(matrix=kind == "hidden")
    return float(sd * run.width_rules.factors(shape, kind, family).init)


def multiplier(run: Run, what: Multiplied) -> float:
    """What a forward pass multiplies logits by (tied or not), products of queries and keys, or what a block adds."""
    return run.width_rules.multiplier(run.model, what)


def branch_sd(run: Run) -> float:
    """Factor on the standard deviation with which a hidden matrix that writes into the residual stream starts."""
    return run.width_rules.branch(run.model)


@dataclass(frozen=True)
class Counts:
    """Parameters by kind; a tied readout counts once, as embedding."""

    embedding: int
    hidden: int
    readout: int
    norm: int
    bias: int

    @property
    def params(self) -> int:
        """N of the laws: without embedding and readout (norms and biases are in)."""
        return self.hidden + self.norm + self.bias

    @property
    def params_with_embeddings(self) -> int:
        return self.params + self.embedding + self.readout


def count_parameters(model: nn.Module) -> Counts:
    """Parameters of a model, on any device, by the kinds that it names."""
    totals: dict[str, int] = dict.fromkeys(("embedding", "hidden", "readout", "norm", "bias"), 0)
    kinds: Mapping[str, Kind] = model.kinds()  # type: ignore[operator]
    for name, parameter in model.named_parameters():
        totals[kinds[name]] += parameter.numel()
    return Counts(**totals)


def as_int64(windows: NDArray[Any]) -> Tensor:
    """Windows of any integer type as a tensor to index with."""
    return torch.from_numpy(np.ascontiguousarray(windows, dtype=np.int64))
